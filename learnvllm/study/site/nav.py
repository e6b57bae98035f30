"""The navigation, from the pages that are there: start, the days, reference."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import yaml

from learnvllm.study.catalogue import DAYS, Day
from learnvllm.study.site import ROOT, log, pages, reference, translation

Nav = list[Any]
"""As mkdocs wants it: a list of paths, {title: path} and {title: list}."""


def navigation(tree: Iterable[str]) -> Nav:
    """For the pages of `tree`. What is in no section of it, mkdocs complains about."""
    there = set(tree)
    days = [{f"{day.number} · {day.title}": found} for day in DAYS if (found := _day(day))]
    parts: Nav = [
        {"Start": _existing(there, ["index.md", "your-code.md", "architecture.md", "performance.md"])},
        {"Days": days},
        {"Reference": _existing(there, reference.PAGES)},
        {"中文": _chinese(there)},
        {"Yours": _existing(there, (log.PROGRESS, log.JOURNAL))},
    ]
    return [part for part in parts if all(part.values())]


def _existing(there: set[str], names: Iterable[str]) -> list[str]:
    return [name for name in names if name in there]


def _day(day: Day) -> Nav:
    """The notebooks follow the concepts."""
    found: Nav = []
    for name, page in pages.topic_pages(day).items():
        found.append(page.path if name == "index" else {pages.LABELS.get(name, page.title): page.path})
        if name == "concepts":
            found += [{f"Notebook: {book.title}": book.path} for book in pages.notebook_pages(day)]
    return found


def _chinese(there: set[str]) -> list[str]:
    """Start first, then in the order of the English pages."""
    english = [
        "index.md",
        "architecture.md",
        *(page.path for day in DAYS for page in pages.topic_pages(day).values()),
    ]
    return _existing(there, [translation.FOLDER + name for name in english])


def plain_config(tree: Iterable[str]) -> str:
    """Our mkdocs.yml for a folder in which all pages are written out: no generator, but the navigation."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    text = re.sub(r"(?m)^  - gen-files:\n(?:    .*\n)+|^watch:.*\n", "", text)
    return text + "\n" + yaml.safe_dump({"nav": navigation(tree)}, allow_unicode=True, sort_keys=False)
