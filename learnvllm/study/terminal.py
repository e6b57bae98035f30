"""What the companion prints: rich on a terminal, plain in a pipe or under NO_COLOR, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.text import Text
from rich.theme import Theme

STYLES = Theme({"good": "green", "bad": "red", "faint": "dim", "head": "bold", "cmd": "cyan"})
_PIPE_WIDTH = 100


def console(*, stderr: bool = False) -> Console:
    """Where to print. Made anew each time: tests and pipes replace sys.stdout."""
    stream = sys.stderr if stderr else sys.stdout
    plain = bool(os.environ.get("NO_COLOR")) or not stream.isatty()
    with suppress(AttributeError, ValueError):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a ✓ in an old code page
    return Console(
        file=stream,
        theme=STYLES,
        highlight=False,
        emoji=False,
        force_terminal=False if plain else None,
        width=None if stream.isatty() else _PIPE_WIDTH,
    )


def print_markdown(out: Console, text: str, *, faint: bool = False) -> None:
    """An author's text: rendered on a terminal, as it was written in a pipe."""
    first, newline, rest = text.strip().partition("\n")
    flush = first + newline + textwrap.dedent(rest)  # from a TOML or YAML block, indented but for its start
    style = "faint" if faint else ""
    out.print(Markdown(flush, style=style) if out.is_terminal else Text(flush), soft_wrap=not out.is_terminal)


def print_json(value: Any, *, compact: bool = False) -> None:
    """One JSON value; `compact`: on one line, for a stream of them."""
    print(json.dumps(value, indent=None if compact else 2, ensure_ascii=False), flush=True)


def plural(count: float, word: str) -> str:
    """`1 point`, `2 points`."""
    return f"{count:g} {word}{'' if count == 1 else 's'}"


def minutes(count: int) -> str:
    """`45 min`, `2 h 10 min`."""
    hours, rest = divmod(count, 60)
    return " ".join([*([f"{hours} h"] if hours else []), *([f"{rest} min"] if rest or not hours else [])])
