"""The glossary, from docs/glossary.toml: vLLM's words in English and Chinese, one line each."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass

from learnvllm.study.exercise import StudyError
from learnvllm.study.site import DOCS


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
    return table("# Glossary\n\nThe words of vLLM, in English and in Chinese.", "Term", "Meaning", "../")


def table(head: str, first: str, last: str, up: str, exists: Callable[[str], bool] | None = None) -> str:
    """The table below `head`. A page that is not there yet is not linked."""
    there = exists or (lambda path: (DOCS / path).exists())
    rows = []
    for term in load():
        path = term.page.partition("#")[0]
        name = f"[{term.term}]({up}{term.page})" if path and there(path) else term.term
        rows.append(f'| <span id="{term.anchor}"></span>{name} | {term.zh} | {term.means} |')
    return f"{head}\n\n| {first} | 中文 | {last} |\n|---|---|---|\n" + "\n".join(rows) + "\n"
