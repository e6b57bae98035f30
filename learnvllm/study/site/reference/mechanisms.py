"""The mechanism table, made from docs/mechanisms.toml: what we answer for, where, and what proves it.

tests/site/test_mechanisms.py checks the same file against the code and the tests.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass

from learnvllm.study.catalogue import DAYS
from learnvllm.study.site import DOCS
from learnvllm.study.tables import table

TOPICS = {day.topic: day.title for day in DAYS if (DOCS / "topics" / day.topic / "index.md").is_file()}
"""The topics that have a page, in the order of their days."""


@dataclass(frozen=True)
class Entry:
    """One table of mechanisms.toml."""

    id: str
    title: str
    what: str
    code: list[str]
    tests: list[str]
    topics: list[str]
    threads: str = ""
    """Faults: where it was reported."""

    @property
    def label(self) -> str:
        """How pages name it."""
        return f"Fault {self.id}" if self.threads else self.id

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.label.lower())


def load() -> tuple[list[Entry], list[Entry]]:
    """The mechanisms and the faults, as they stand in the file."""
    tables = tomllib.loads((DOCS / "mechanisms.toml").read_text("utf-8"))
    return [Entry(**t) for t in tables["mechanism"]], [Entry(**t) for t in tables["fault"]]


def page() -> str:
    mechanisms, faults = load()
    return (
        "# Mechanisms and faults\n\n"
        f"{len(mechanisms)} mechanisms that vLLM is made of, and {len(faults)} faults that were reported or "
        "reproduced elsewhere, each with the code that answers for it here and the tests that hold it. The "
        "list is `docs/mechanisms.toml`; a test checks that every name in it exists.\n\n"
        f"## Mechanisms\n\n{overview(mechanisms)}\n\n{details(mechanisms)}\n"
        "## Faults\n\nA number is a fault that was reported, with the threads to read; letters are "
        "faults that we reproduced on a CPU in nano-vllm and mini-sglang.\n\n"
        f"{overview(faults)}\n\n{details(faults)}"
    )


def overview(entries: list[Entry]) -> str:
    rows = [
        (f"[{e.label}](#{e.anchor})", e.title, ", ".join(map(topic_link, e.topics)), len(e.tests))
        for e in entries
    ]
    return table(("Number", "What", "Explained in", "Tests"), rows)


def topic_link(topic: str) -> str:
    return f"[{TOPICS[topic]}](../topics/{topic}/index.md)"


def details(entries: list[Entry]) -> str:
    return "\n".join(detail(entry) for entry in entries)


def detail(e: Entry) -> str:
    reported = f"\nReported: {e.threads}.\n" if e.threads else ""
    code = "\n".join(f"- `{symbol}`" for symbol in e.code)
    tests = "\n".join(f"- `{node}`" for node in e.tests)
    return (
        f"### {e.label} · {e.title} {{ #{e.anchor} }}\n\n{e.what}\n{reported}\n"
        f"Code:\n\n{code}\n\nTests:\n\n{tests}\n"
    )
