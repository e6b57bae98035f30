"""The navigation, from the pages that are there: start, the days, reference."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml

from learnvllm.study.catalogue import DAYS, Day
from learnvllm.study.site import DOCS, ROOT, log, pages, reference, translation, words
from learnvllm.study.site.words import Say

FIRST = ("index.md", "your-code.md", "architecture.md", "performance.md")
"""The order of the Start pages; others of docs/ itself follow, by name."""

Nav = list[Any]
"""As mkdocs wants it: a list of paths, {title: path} and {title: list}."""


def navigation(tree: Iterable[str]) -> Nav:
    """For the pages of `tree`. What is in no section of it, mkdocs complains about."""
    there = set(tree)
    days = [{f"{day.number} · {day.title}": found} for day in DAYS if (found := _day(day))]
    parts: Nav = [
        {"Start": _existing(there, _start())},
        {"Days": days},
        {"Reference": _existing(there, reference.PAGES)},
        {"中文": _chinese(there)},
        {"Yours": _existing(there, (log.PROGRESS, log.JOURNAL))},
    ]
    return [part for part in parts if all(part.values())]


def _start() -> list[str]:
    names = sorted(path.name for path in DOCS.glob("*.md") if not path.name.endswith(translation.SUFFIX))
    return [*FIRST, *(name for name in names if name not in FIRST)]


def _existing(there: set[str], names: Iterable[str]) -> list[str]:
    return [name for name in names if name in there]


def _day(day: Day, say: Say = str) -> Nav:
    """The notebooks follow the concepts."""
    found: Nav = []
    for name, page in pages.topic_pages(day).items():
        found.append(page.path if name == "index" else {pages.LABELS.get(name, page.title): page.path})
        if name == "concepts":
            found += [
                {say("Notebook: {}").format(book.title): book.path} for book in pages.notebook_pages(day)
            ]
    return found


def _chinese(there: set[str]) -> Nav:
    """Start first, then in the order of the English pages. Notebooks there have English titles."""
    found: Nav = [*_start(), *(one for day in DAYS for one in _day(day, words.chinese))]
    parts: Nav = []
    for one in found:
        title, path = next(iter(one.items())) if isinstance(one, dict) else ("", one)
        chinese = translation.FOLDER + path
        if chinese in there:
            parts.append({title: chinese} if path.startswith("notebooks/") else chinese)
    return parts


def plain_config(tree: Iterable[str]) -> str:
    """Our mkdocs.yml for a folder in which all pages are written out: no generator, but the navigation."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    text = re.sub(r"(?m)^  - gen-files:\n(?:    .*\n)+|^watch:.*\n", "", text)
    return text + "\n" + yaml.safe_dump({"nav": navigation(tree)}, allow_unicode=True, sort_keys=False)
