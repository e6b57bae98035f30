"""Code on pages, by symbol: `code:learnvllm/scheduling/scheduler.py:Scheduler.schedule` is that method. And
what programs printed, by file: `output:benchmarks/results/throughput.txt`.

What a page shows is cut out of the file when the site is built, so it cannot go stale; a symbol that is gone
stops the build.
"""

from __future__ import annotations

import ast
import difflib
import re
import textwrap
from functools import cache
from pathlib import Path

from learnvllm.study.exercise import StudyError
from learnvllm.study.site import ROOT


def fenced_source(reference: str) -> str:
    """`path:Symbol` as a Markdown code block that is titled with its path. Raises StudyError."""
    path, _, symbol = reference.partition(":")
    return fenced(symbol_source(ROOT / path, symbol), "python", title=path)


def fenced(text: str, language: str, title: str = "") -> str:
    """A code block, whatever backticks are in it."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    titled = f' title="{title}"' if title else ""
    return f"{fence}{language}{titled}\n{text}\n{fence}"


def printed(reference: str) -> str:
    """A file of output as blocks of text, its Markdown tables between them as tables. Raises StudyError."""
    path = ROOT / reference
    if not path.is_file():
        raise StudyError(f"there is no file {reference}")
    parts = re.split(r"(?m)((?:^\|.*\|$\n?)+)", path.read_text("utf-8"))
    shown = [
        part.strip() if part.startswith("|") else fenced(part.strip("\n"), "text")
        for part in parts
        if part.strip()
    ]
    return "\n\n".join(shown)


def symbol_source(path: Path, symbol: str) -> str:
    """The lines that define `symbol`: decorators, comments and docstring included, indentation taken off.

    `symbol` is a function, a class, `Class.method`, or a name that is assigned to (then with the string below
    it that explains it).

    Raises:
        StudyError: no such file, or nothing of that name in it.
    """
    shown = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
    if not path.is_file():
        raise StudyError(f"there is no file {shown}")
    lines, spans = _parse(path, path.stat().st_mtime_ns)
    if symbol not in spans:
        close = difflib.get_close_matches(symbol, spans, n=3)
        told = f" Did you mean {' or '.join(close)}?" if close else ""
        raise StudyError(f"{shown} defines no {symbol or 'symbol without a name'}.{told}")
    first, last = spans[symbol]
    return textwrap.dedent("\n".join(lines[first - 1 : last]))


@cache
def _parse(path: Path, changed: int) -> tuple[list[str], dict[str, tuple[int, int]]]:
    """The file's lines, and for each symbol the first and last of them, from 1."""
    text = path.read_text("utf-8")
    spans: dict[str, tuple[int, int]] = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node, after in zip(body, [*body[1:], None]):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                spans.setdefault(prefix + node.name, (first, node.end_lineno or first))
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            for name in _assigned(node):
                explains = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                last = after if explains and after is not None else node
                spans.setdefault(prefix + name, (node.lineno, last.end_lineno or node.lineno))
            if isinstance(node, ast.If | ast.Try):
                visit(node.body, prefix)

    visit(ast.parse(text).body, "")
    return text.splitlines(), spans


def _assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]
