"""Tables of generated pages, as Markdown: what a cell may hold, and the rows below their head."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table. A column whose name ends in a colon is set to the right, as numbers are.

    Cells stand as they are given: `text`, `code` and `markdown` make them of what may hold anything.
    """
    names = [column.removesuffix(":") for column in columns]
    rules = ["---:" if column.endswith(":") else "---" for column in columns]
    return "\n".join([line(names), f"|{'|'.join(rules)}|", *map(line, rows)])


def line(cells: Sequence[object]) -> str:
    """One row."""
    return "|" + "".join(f" {cell} |" if cell != "" else " |" for cell in cells)


def markdown(text: str) -> str:
    """Markdown, on one line."""
    return " ".join(text.split()).replace("|", "\\|")


def text(plain: str) -> str:
    """Plain text; what looks like a flag or a name is set as code."""
    escaped = html.escape(" ".join(plain.split()), quote=False).replace("|", "&#124;")
    escaped = re.sub(r"[*_\[\]`$]", lambda sign: f"&#{ord(sign[0])};", escaped)
    return re.sub(r"(?<![\w-])(--[\w-]*\w|LEARNVLLM&#95;[\w&#;]+)", r"<code>\1</code>", escaped)


def code(text: str) -> str:
    """As HTML: how a | within backticks is to be escaped in a table differs from one Markdown to the next."""
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>"
