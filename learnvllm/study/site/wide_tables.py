"""Tables, made ready for narrow screens, all by one rule: what fits a phone stays a table there.

In one that does not, each cell knows its column's name (`data-label`), and docs/assets/extra.css shows one
cell below the other. Only a matrix stays and scrolls: its columns are read beside each other. Tables of a
page with the same columns look alike: if one does not fit, none stays. Long paths get places to break: after
/ and :, and after a . that no suffix follows.
"""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from learnvllm.study.site import maths
from learnvllm.study.tables import line

PHONE = 54
"""Letters in a row of a table, the space between columns counted as two, where 390 pixels are full."""
NARROWEST, MOST_LINES = 16, 5
"""Letters in a line of text below which it is hard to read, and lines of a cell above which it is."""
MATRIX = 6
"""Columns from which a table is a matrix."""
LONG_NAME = 20
_RULE = re.compile(r"\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?")
_WIDE = re.compile(r"[\u2e80-\uffef]")
_PATH = re.compile(r"`([\w./:*-]+)`")
_MAY_BREAK = re.compile(r"(?<=[/:])(?=\w)|(?<=\.)(?=\w)(?!(?:py|md|toml|json|yaml|mjs|js)\b)")
_MARKUP = re.compile(r"<[^>]*>|\]\([^)]*\)|[`*\[\]]")


def with_labels(markdown: str) -> str:
    """A page, its tables made ready."""
    parts = [(code, text.split("\n")) for code, text in maths.split_code(markdown)]
    found = [(lines, table) for code, lines in parts if not code for table in _tables(lines)]
    too_wide = {tuple(table.names) for _, table in found if not table.fits()}
    for lines, table in found:
        rows = table.rows
        if tuple(table.names) in too_wide and len(table.names) < MATRIX:
            labels = [html.escape(plain(name)) for name in table.names]
            rows = [[_labelled(cell, label) for cell, label in zip(row, labels)] for row in rows]
        lines[table.first : table.first + len(rows)] = map(line, rows)
    return "".join("\n".join(lines) for _, lines in parts)


@dataclass(frozen=True)
class _Table:
    """Where its rows are among the lines of a text, and what is in them."""

    first: int
    names: list[str]
    rows: list[list[str]]

    def fits(self) -> bool:
        """Can it be read on a phone without scrolling?"""
        rows = [row + [""] * (len(self.names) - len(row)) for row in self.rows]
        columns = zip(map(_longest_word, self.names), *(map(_needed, row) for row in rows))
        return sum(2 + max(column) for column in columns) <= PHONE


def _tables(lines: list[str]) -> Iterator[_Table]:
    for number in range(1, len(lines)):
        if _RULE.fullmatch(lines[number]) and "|" in lines[number] and lines[number - 1].startswith("|"):
            rows = itertools.takewhile(lambda text: text.startswith("|"), lines[number + 1 :])
            table = [[breakable(cell) for cell in cells(row)] for row in rows]
            yield _Table(number + 1, cells(lines[number - 1]), table)


def _words(cell: str) -> list[str]:
    """What no line breaks; 中 is one, as wide as two letters."""
    shown = plain(cell.replace("<wbr>", " "))
    return re.split(r"[\s-]+", _WIDE.sub(r" \g<0>\g<0> ", shown).strip())


def _longest_word(cell: str) -> int:
    return max(map(len, _words(cell)))


def _needed(cell: str) -> int:
    """Letters in a line that a cell needs: its longest word, and enough for its text."""
    words = _words(cell)
    length = sum(map(len, words)) + plain(cell).count(" ")
    return max(_longest_word(cell), min(length, NARROWEST), length // MOST_LINES)


def cells(row: str) -> list[str]:
    """Of a line of a table. A | in code, or after a backslash, is no border."""
    inner = row.strip().removeprefix("|")
    found, cell, code = [], "", ""
    for part in re.findall(r"\\.|`+|[^\\`|]+|\||\\", inner):
        if part == "|" and not code:
            found.append(cell.strip())
            cell = ""
            continue
        if part.startswith("`"):
            code = "" if part == code else code or part
        cell += part
    return [*found, cell.strip()] if cell.strip() else found


def plain(cell: str) -> str:
    """What a reader sees of it, roughly."""
    return html.unescape(_MARKUP.sub("", cell)).strip()


def breakable(cell: str) -> str:
    """Long names in code may break at their joints."""

    def broken(found: re.Match[str]) -> str:
        name = found[1]
        if len(name) < LONG_NAME:
            return found[0]
        # Within HTML, __init__ would be Markdown for bold.
        pieces = [re.sub(r"[_*]", lambda sign: f"&#{ord(sign[0])};", p) for p in _MAY_BREAK.split(name)]
        return f"<code>{'<wbr>'.join(pieces)}</code>"

    return _PATH.sub(broken, cell)


def _labelled(cell: str, label: str) -> str:
    return f'{cell} {{ data-label="{label}" }}' if cell and label else cell
