"""What the pages claim about code and tests is there: every symbol, every test, every row of the table.

Nothing is imported or run: files are parsed, so that the check takes a second.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from learnvllm.study.site.reference import mechanisms

ROOT = Path(__file__).resolve().parent.parent.parent

MECHANISMS, FAULTS = mechanisms.load()
ENTRIES = MECHANISMS + FAULTS


@cache
def names_in(path: Path) -> frozenset[str]:
    """Every name a file binds at its top or in a class: `function`, `Class.method`, `NAME`, imports."""
    found: set[str] = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            for target in node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]:
                if isinstance(target, ast.Name):
                    found.add(prefix + target.id)
            if isinstance(node, ast.ImportFrom):
                found.update(prefix + (alias.asname or alias.name) for alias in node.names)
            if isinstance(node, ast.If | ast.Try):
                visit(node.body, prefix)

    visit(ast.parse(path.read_text("utf-8")).body, "")
    return frozenset(found)


def module_file(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def exists(path: Path, name: str) -> bool:
    return path.is_file() and name in names_in(path)


def pages() -> list[Path]:
    return sorted(ROOT.glob("docs/topics/*/*.md"))


def test_ids_are_unique_and_every_entry_names_code_tests_and_a_topic() -> None:
    labels = [entry.label for entry in ENTRIES]
    assert len(labels) == len(set(labels))
    assert all(e.code and e.tests and e.topics and e.what for e in ENTRIES)
    assert {topic for e in ENTRIES for topic in e.topics} <= mechanisms.TOPICS.keys()
    assert all(not e.threads for e in MECHANISMS)


def test_every_symbol_exists() -> None:
    missing = [
        f"{entry.label}: {symbol}"
        for entry in ENTRIES
        for symbol in entry.code
        if not exists(module_file(symbol.partition(":")[0]), symbol.partition(":")[2])
    ]
    assert not missing


def test_every_test_exists() -> None:
    missing = []
    for entry in ENTRIES:
        for node in entry.tests:
            file, _, name = node.partition("::")
            if not exists(ROOT / file, name.replace("::", ".")):
                missing.append(f"{entry.label}: {node}")
    assert not missing


@pytest.mark.parametrize("topic", mechanisms.TOPICS)
def test_a_topic_names_every_row_it_explains(topic: str) -> None:
    text = "\n".join(page.read_text("utf-8") for page in sorted((ROOT / "docs/topics" / topic).glob("*.md")))
    silent = [
        entry.label
        for entry in ENTRIES
        if topic in entry.topics and not re.search(rf"\b{re.escape(entry.label)}\b", text)
    ]
    assert not silent


def test_code_that_pages_cite_exists() -> None:
    """`scheduler.py:Scheduler` is looked for in the page's own package, longer paths from the root."""
    missing = []
    for page in pages():
        package = ROOT / "learnvllm" / page.parent.name
        for path, name in re.findall(r"`([\w/.]+\.py):([\w.]+)`", page.read_text("utf-8")):
            if not path.startswith("vllm/") and not any(
                exists(base / path, name) for base in (package, ROOT)
            ):
                missing.append(f"{page.parent.name}: {path}:{name}")
    assert not missing


def test_results_that_pages_quote_exist() -> None:
    quoted = {
        (page.parent.name, path)
        for page in pages()
        for path in re.findall(r"`((?:benchmarks|tests)/[\w/.]+)`", page.read_text("utf-8"))
    }
    assert not [path for path in quoted if not (ROOT / path[1]).exists()]


def test_pages_load_nothing_from_elsewhere() -> None:
    loading = re.compile(r"""!\[[^]]*\]\(https?:|\bsrc=["']https?:|<link\b|@import""")
    assert not [str(page) for page in pages() if loading.search(page.read_text("utf-8"))]


def test_the_generated_page_has_a_section_for_every_entry() -> None:
    text = mechanisms.page()
    assert all(f"{{ #{entry.anchor} }}" in text for entry in ENTRIES)
    assert len({entry.anchor for entry in ENTRIES}) == len(ENTRIES)
