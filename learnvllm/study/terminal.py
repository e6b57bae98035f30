"""What the companion prints: rich on a terminal, plain in a pipe or under NO_COLOR, JSON for programs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.markup import escape
from rich.text import Text
from rich.theme import Theme

from learnvllm.study import files
from learnvllm.study.exercise import StudyError

STYLES = Theme({"good": "green", "bad": "red", "faint": "dim", "head": "bold", "cmd": "cyan"})
_PIPE_WIDTH = 100


def console() -> Console:
    """Where to print. Made anew each time: tests and pipes replace sys.stdout."""
    stream = sys.stdout
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
    out.print(
        Markdown(names_kept(flush), style=style) if out.is_terminal else Text(flush),
        soft_wrap=not out.is_terminal,
    )


_CODE_OR_EDGE = re.compile(
    r"(?s)(```.*?```|(`+)(?!`).*?(?<!`)\2(?!`))"  # code
    r"|(?<!\w)(_+)(?=\w)|(?<=[^\W_])(_+)(?!\w)"  # underscores at the edge of a word
)


def names_kept(markdown: str) -> str:
    """An author's Markdown in which underscores are letters: `__lt__` without backticks is no bold lt.

    Authors set words in italics with *, which stays what it is. Within a word Markdown leaves them alone.
    """
    return _CODE_OR_EDGE.sub(lambda m: m[1] or (m[3] or m[4]).replace("_", "\\_"), markdown)


def print_json(value: Any, *, compact: bool = False) -> None:
    """One JSON value; `compact`: on one line, for a stream of them."""
    print(json.dumps(value, indent=None if compact else 2, ensure_ascii=False), flush=True)


def shown(path: Path) -> str:
    """A path as a part of markup: `[` is a letter of its name."""
    return escape(files.shown(path))


def editor() -> str:
    """The learner's editor, as the environment names it; empty where it names none."""
    return (os.environ.get("VISUAL") or os.environ.get("EDITOR") or "").strip()


def edit(path: Path) -> int:
    """Open it in the editor, and wait. Raises StudyError when that does not start."""
    try:
        return subprocess.call([*shlex.split(editor()), str(path)])
    except (OSError, ValueError) as error:
        raise StudyError(
            f"The editor {editor()!r} (EDITOR) does not start: {error}. Open {files.shown(path)}."
        ) from None


def readable(test: str) -> str:
    """`test_a_block_leaves` as words."""
    return test.removeprefix("test_").replace("_", " ")


def plural(count: float, word: str) -> str:
    """`1 point`, `2 points`."""
    return f"{count:g} {word}{'' if count == 1 else 's'}"


def minutes(count: int) -> str:
    """`45 min`, `2 h 10 min`."""
    hours, rest = divmod(count, 60)
    return " ".join([*([f"{hours} h"] if hours else []), *([f"{rest} min"] if rest or not hours else [])])


def seconds(count: float) -> str:
    """`45 s`, then minutes."""
    return f"{count:.0f} s" if count < 90 else minutes(round(count / 60))
