"""The glossary, from docs/glossary.toml: vLLM's words in English and Chinese, one line each."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass

from learnvllm.study.exercise import StudyError
from learnvllm.study.site import DOCS
from learnvllm.study.tables import table


@dataclass(frozen=True)
class Term:
    """One word."""

    term: str
    zh: str
    """What Chinese texts about vLLM call it. Often they leave the English word as it is."""
    means: str
    page: str = ""
    """Page of docs/ that explains it."""

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.term.lower()).strip("-")


def load() -> list[Term]:
    """In alphabetical order. Raises StudyError for a word that is there twice."""
    terms = [Term(**table) for table in tomllib.loads((DOCS / "glossary.toml").read_text("utf-8"))["term"]]
    anchors = [term.anchor for term in terms]
    twice = {term.term for term in terms if anchors.count(term.anchor) > 1}
    if twice:
        raise StudyError(f"docs/glossary.toml has {', '.join(sorted(twice))} more than once")
    return sorted(terms, key=lambda term: term.term.lower())


def page() -> str:
    """All words in one table. A page that is not there yet is not linked."""
    rows = [(f'<span id="{term.anchor}"></span>{linked(term)}', term.zh, term.means) for term in load()]
    words = table(("Term", "中文", "Meaning"), rows)
    return f"# Glossary\n\nThe words of vLLM, in English and in Chinese.\n\n{words}\n"


def linked(term: Term) -> str:
    path = term.page.partition("#")[0]
    return f"[{term.term}](../{term.page})" if path and (DOCS / path).exists() else term.term
