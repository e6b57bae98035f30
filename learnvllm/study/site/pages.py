"""What is there to read: the pages of docs/ and the notebooks, with title and minutes, in their order."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from learnvllm.study import notebooks
from learnvllm.study.catalogue import PAGES, Day, find_notebooks
from learnvllm.study.exercise import StudyError
from learnvllm.study.site import DOCS, ROOT

Link = Callable[[str], str]
"""Path in the site's tree, perhaps with #anchor -> the same, relative to the page that links."""

TOPIC_PAGES = ("index", *PAGES)
"""Of a topic; the notebooks come after the concepts."""
LABELS = {
    "index": "Plan of the day",
    "concepts": "Concepts",
    "exercises": "Exercises",
    "walkthrough": "Walkthrough",
    "upstream": "In vLLM",
    "quiz": "Quiz",
}
_HEADING = re.compile(r"^# +(.+?)(?: *\{.*\})?$", re.MULTILINE)
_FRONT_MATTER = re.compile(r"\A---\n(.*?)\n---\n", re.DOTALL)


@dataclass(frozen=True)
class Page:
    """One page of the site."""

    path: str
    """In the site's tree, like topics/scheduling/concepts.md."""
    title: str
    minutes: int = 0


def split_front_matter(text: str, name: str) -> tuple[dict[str, Any], str]:
    """The fields above a page and the page itself. Raises StudyError when they are no YAML."""
    found = _FRONT_MATTER.match(text)
    if not found:
        return {}, text
    try:
        meta = yaml.safe_load(found[1]) or {}
    except yaml.YAMLError as error:
        raise StudyError(f"{name}: its front matter is no YAML: {error}") from None
    if not isinstance(meta, dict):
        raise StudyError(f"{name}: its front matter must be lines like `minutes: 20`")
    return meta, text[found.end() :]


def with_front_matter(meta: dict[str, Any], body: str) -> str:
    """The other way round."""
    if not meta:
        return body
    return f"---\n{yaml.safe_dump(meta, allow_unicode=True, sort_keys=False)}---\n{body}"


def read_page(path: Path) -> Page:
    """A page of docs/. Raises StudyError: it has no heading, or its front matter is wrong."""
    name = path.relative_to(DOCS).as_posix()
    meta, body = split_front_matter(path.read_text("utf-8"), f"docs/{name}")
    heading = _HEADING.search(body)
    if not heading:
        raise StudyError(f"docs/{name} has no heading of the first level (# Title)")
    minutes = meta.get("minutes", 0)
    if not isinstance(minutes, int):
        raise StudyError(f"docs/{name}: minutes: {minutes!r} is no whole number")
    return Page(name, heading[1].strip(), minutes)


def heading(markdown: str) -> str:
    """Its first of the first level."""
    found = _HEADING.search(markdown)
    return found[1].strip() if found else ""


def topic_pages(day: Day) -> dict[str, Page]:
    """Name -> page, those that are there, in the order of the work; others than the usual ones come last."""
    folder = DOCS / "topics" / day.topic
    found = {p.stem: read_page(p) for p in sorted(folder.glob("*.md")) if not p.name.endswith(".zh.md")}
    usual = {name: found.pop(name) for name in TOPIC_PAGES if name in found}
    return {**usual, **found}


def notebook_pages(day: Day) -> list[Page]:
    """The day's notebooks as pages."""
    return [_notebook_page(path) for path in find_notebooks(day)]


@cache
def _notebook_page(path: Path) -> Page:
    first = notebooks.read(path).cells[0].source
    heading = _HEADING.search(first)
    if not heading:
        raise StudyError(f"{path.relative_to(ROOT)}: its first cell has no heading (# Title)")
    minutes = re.search(r"(\d+)\s+minutes?\b", first)
    return Page(notebook_path(path), heading[1].strip(), int(minutes[1]) if minutes else 0)


def notebook_path(path: Path) -> str:
    """notebooks/day03_scheduling/01_budget.py -> its page in the site's tree."""
    return f"notebooks/{path.parent.name}/{path.stem}.md"
