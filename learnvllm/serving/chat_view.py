"""What `learnvllm chat` shows and reads: rich and prompt_toolkit on a terminal, plain lines anywhere else.

An answer streams as Markdown: complete paragraphs are printed for good, only the last one is redrawn.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from learnvllm.architecture.errors import ValidationError
from learnvllm.architecture.interrupts import interrupt_afterwards
from learnvllm.architecture.text import is_utf8
from learnvllm.serving.terminal import typing_unseen


class ChatView:
    """One terminal, or a pipe.

    Args:
        plain: text as it is, no Markdown.
        history: file of earlier inputs, for the arrow keys.
    """

    def __init__(self, *, plain: bool, history: Path) -> None:
        self.reads_terminal = sys.stdin.isatty() and sys.stdout.isatty()
        self.shows_terminal = sys.stdout.isatty()
        self.markdown = self.shows_terminal and not plain
        self._session: Any = _make_session(history) if self.reads_terminal else None
        self._console: Any = _make_console() if self.shows_terminal else None

    def read(self) -> str | None:
        """The next message, without surrounding space; None at the end of the input."""
        interrupted = False
        while True:
            try:
                if self._session is not None:
                    return str(self._session.prompt()).strip()
                line = sys.stdin.readline()
                if not is_utf8(line):
                    raise ValueError("it is not valid UTF-8")
                return line.strip() if line else None
            except EOFError:
                return None
            except ValueError as error:
                raise ValidationError(f"The message cannot be read: {error}.") from None
            except KeyboardInterrupt:
                if self._session is None:
                    raise
                if interrupted:
                    return None
                interrupted = True
                self.note("Ctrl-C again, Ctrl-D or /quit leaves.")

    @contextmanager
    def answer(self) -> Iterator[Callable[[str], None]]:
        """A function that shows the next piece of an answer. What is typed meanwhile waits for `read`."""
        with typing_unseen() if self.reads_terminal else nullcontext():
            stream = _MarkdownStream(self._console) if self.markdown else _PlainStream()
            try:
                yield stream.add
            finally:
                stream.end()

    def welcome(self, model: str) -> None:
        if self._console is not None:
            self._console.print(f"[bold]{model}[/]  [dim]/help for commands, Ctrl-D leaves[/]")

    def note(self, text: str) -> None:
        if self._console is not None:
            self._console.print(text, style="dim", markup=False, highlight=False)

    def error(self, text: str) -> None:
        if self._console is not None:
            self._console.print(text, style="red", markup=False, highlight=False)
        else:
            print(text, file=sys.stderr, flush=True)

    def stats(self, num_tokens: int | None, to_first: float, after_first: float, interrupted: bool) -> None:
        """Speed of the last answer.

        Args:
            num_tokens: None: not known (a server counts at the end, and an interrupted one not at all).
            to_first, after_first: seconds until the first token, and from there to the end.
        """
        rate = ""
        if num_tokens is not None and num_tokens > 1 and after_first > 0:
            rate = f", {float(f'{(num_tokens - 1) / after_first:.3g}'):g} tokens/s"
        stopped = "stopped; " if interrupted else ""
        self.note(f"({stopped}first token after {to_first * 1000:.0f} ms{rate})")


def _make_session(history: Path) -> Any:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory

    kept: History
    try:
        history.parent.mkdir(parents=True, exist_ok=True)
        history.touch(mode=0o600)
        kept = FileHistory(str(history))
    except OSError:  # a home that cannot be written to
        kept = InMemoryHistory()
    return PromptSession("> ", history=kept)


def _make_console() -> Any:
    from rich.console import Console

    return Console()


class _PlainStream:
    """Text as it is."""

    def add(self, piece: str) -> None:
        print(piece, end="", flush=True)

    def end(self) -> None:
        print(flush=True)


class _MarkdownStream:
    """Redraws only the block being written: a whole answer would flicker, and could outgrow the window.

    It draws from the cursor up, so nothing else may move that; and a Ctrl-C amid two steps of a change would
    leave a block shown twice, or not at all.
    """

    def __init__(self, console: Any) -> None:
        from rich.live import Live

        self._console = console
        self._pending = ""
        self._live = Live(console=console, refresh_per_second=12, transient=True, vertical_overflow="crop")

    def add(self, piece: str) -> None:
        with interrupt_afterwards():
            self._live.start()  # once
            self._pending += piece
            done, self._pending = split_blocks(self._pending)
            if done:
                self._live.update("")
                self._console.print(self._render(done))
            self._live.update(self._render(self._pending))

    def end(self) -> None:
        with interrupt_afterwards():
            self._live.update("")
            self._live.stop()
            if self._pending.strip():
                self._console.print(self._render(self._pending))

    @staticmethod
    def _render(text: str) -> Any:
        from rich.markdown import Markdown

        return Markdown(text)


def split_blocks(text: str) -> tuple[str, str]:
    """(complete blocks, the one being written): a block ends at an empty line outside of a code fence."""
    end, position, fenced = 0, 0, False
    for line in text.splitlines(keepends=True):
        position += len(line)
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not line.strip() and not fenced and line.endswith("\n"):
            end = position
    return text[:end], text[end:]
