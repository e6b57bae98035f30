"""Tables with sentences in them, made ready for narrow screens.

Each cell knows its column's name (`data-label`), for docs/assets/extra.css shows one cell below the other on
a phone. Long paths in cells get places to break: after / and :, and after a . that no suffix follows.
"""

from __future__ import annotations

import html
import re

from learnvllm.study.site import maths
from learnvllm.study.tables import line

SENTENCE = 40
"""Characters of a cell that make its table one with sentences."""
LONG_NAME = 20
_RULE = re.compile(r"\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?")
_PATH = re.compile(r"`([\w./:*-]+)`")
_MAY_BREAK = re.compile(r"(?<=[/:])(?=\w)|(?<=\.)(?=\w)(?!(?:py|md|toml|json|yaml|mjs|js)\b)")
_MARKUP = re.compile(r"<[^>]*>|\]\([^)]*\)|[`*\[\]]")


def with_labels(markdown: str) -> str:
    """A page, its tables made ready."""
    return "".join(text if code else _in_prose(text) for code, text in maths.split_code(markdown))


def _in_prose(text: str) -> str:
    lines = text.split("\n")
    for number in range(1, len(lines)):
        if _RULE.fullmatch(lines[number]) and "|" in lines[number] and lines[number - 1].startswith("|"):
            end = number + 1
            while end < len(lines) and lines[end].startswith("|"):
                end += 1
            lines[number + 1 : end] = _ready(cells(lines[number - 1]), lines[number + 1 : end])
    return "\n".join(lines)


def _ready(names: list[str], rows: list[str]) -> list[str]:
    table = [[breakable(cell) for cell in cells(row)] for row in rows]
    if max((len(plain(cell)) for row in table for cell in row), default=0) >= SENTENCE:
        labels = [html.escape(plain(name)) for name in names]
        table = [[_labelled(cell, label) for cell, label in zip(row, labels)] for row in table]
    return [line(row) for row in table]


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
