"""`learnvllm chat` as somebody sees it who types while an answer is written, and stops it."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from learnvllm.architecture.interrupts import interrupt_afterwards
from learnvllm.serving.chat_view import _make_console, _MarkdownStream
from tests.serving.fake_server import FakeServer

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")

ON_ITS_TERMINAL = (
    "import fcntl, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"  # so that Ctrl-C is a signal
    "from learnvllm import cli; sys.exit(cli.main(sys.argv[1:]))"
)
_SEQUENCE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b[()].|\x1b[^\[]", re.DOTALL)


class Screen:
    """The lines that a terminal shows after what was written to it: only the cursor's sequences count."""

    def __init__(self) -> None:
        self.rows, self.row, self.column = [""], 0, 0

    def write(self, text: str) -> None:
        position = 0
        while position < len(text):
            if match := _SEQUENCE.match(text, position):
                self._move(match[1] or "", match[2])
                position = match.end()
            else:
                self._put(text[position])
                position += 1

    def _put(self, char: str) -> None:
        if char == "\n":
            self.row += 1
            self.rows += [""] * (self.row + 1 - len(self.rows))
        elif char == "\r":
            self.column = 0
        elif char == "\b":
            self.column = max(0, self.column - 1)
        elif char >= " ":
            line = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = line[: self.column] + char + line[self.column + 1 :]
            self.column += 1

    def _move(self, number: str, what: str | None) -> None:
        count = int(number) if number.isdigit() and number != "0" else 1
        if what == "A":
            self.row = max(0, self.row - count)
        elif what == "C":
            self.column += count
        elif what == "D":
            self.column = max(0, self.column - count)
        elif what in ("K", "J"):
            kept = "" if number == "2" else self.rows[self.row][: self.column]
            self.rows[self.row] = kept
            if what == "J":
                del self.rows[self.row + 1 :]


class Chat:
    """A chat on a terminal of its own."""

    def __init__(self, url: str, home: Path, *flags: str) -> None:
        import pty
        import termios

        self.terminal, inside = pty.openpty()
        termios.tcsetwinsize(inside, (40, 80))
        command = [sys.executable, "-c", ON_ITS_TERMINAL, "chat", "--url", url, "--max-tokens", "90", *flags]
        env = {**os.environ, "LEARNVLLM_HOME": str(home), "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm"}
        self.process = subprocess.Popen(
            command, stdin=inside, stdout=inside, stderr=inside, env=env, start_new_session=True
        )
        os.close(inside)
        self.written = ""
        self._read = 0

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def wait_for(self, text: str) -> None:
        """Until it is written, after whatever was waited for before."""
        deadline = time.monotonic() + 60
        while (found := self.written.find(text, self._read)) < 0:
            assert time.monotonic() < deadline, f"{text!r} is not in {self.written[self._read :]!r}"
            if select.select([self.terminal], [], [], 0.1)[0]:
                self.written += os.read(self.terminal, 4096).decode(errors="replace")
        self._read = found + len(text)

    def screen(self) -> list[str]:
        screen = Screen()
        screen.write(self.written)
        return [row.rstrip() for row in screen.rows]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)


@pytest.fixture(params=[[], ["--plain"]], ids=["markdown", "plain"])
def talk(fake_server: FakeServer, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Chat]:
    fake_server.engine.token_seconds = 0.05
    chat = Chat(fake_server.url, tmp_path, *request.param)
    try:
        chat.wait_for(">")
        yield chat
    finally:
        chat.end()
        fake_server.engine.token_seconds = 0.0


def test_what_is_typed_while_an_answer_is_written_is_kept_for_the_next_prompt(talk: Chat) -> None:
    talk.type("hello\r")
    talk.wait_for("tokens;")
    talk.type("second question\rhalf a third")
    talk.wait_for("tokens;")
    assert "second" not in talk.written
    talk.type("\x03")
    talk.wait_for("stopped")
    rows = talk.screen()
    first = next(i for i, row in enumerate(rows) if row == "> hello")
    last = next(i for i, row in enumerate(rows) if "stopped" in row)
    answer = " ".join(rows[first + 1 : last]).split()
    assert answer.count("world") >= 1
    words = ["the", "world", "of", "blocks", "and", "tokens;"]
    assert answer == (words * len(answer))[: len(answer)], "once, and nothing else amid it"
    talk.wait_for("second question")
    talk.wait_for("tokens;")  # it is asked
    talk.type("\x03")
    talk.wait_for("stopped")
    talk.wait_for("half a third")
    talk.type(" one\r")
    talk.wait_for("tokens;")
    assert "> half a third one" in talk.screen()
    talk.type("\x04")  # Ctrl-D is kept, too
    talk.type("\x03")
    assert talk.process.wait(20) == 0


def test_afterwards_the_terminal_shows_again_what_is_typed(talk: Chat) -> None:
    import termios

    before = termios.tcgetattr(talk.terminal)  # prompt_toolkit's
    talk.type("hello\r")
    talk.wait_for("tokens;")
    during = termios.tcgetattr(talk.terminal)
    assert not during[3] & termios.ECHO
    assert during[3] & termios.ISIG
    talk.type("\x03")
    talk.wait_for("stopped")
    talk.wait_for(">")
    assert termios.tcgetattr(talk.terminal) == before
    talk.type("\x04")
    assert talk.process.wait(20) == 0
    assert termios.tcgetattr(talk.terminal)[3] & termios.ECHO


def test_sigterm_amid_an_answer_leaves_a_terminal_that_shows_what_is_typed(talk: Chat) -> None:
    import termios

    talk.type("hello\r")
    talk.wait_for("tokens;")
    talk.process.send_signal(signal.SIGTERM)
    assert talk.process.wait(20) == 128 + signal.SIGTERM
    assert termios.tcgetattr(talk.terminal)[3] & termios.ECHO


def test_ctrl_c_waits_until_the_screen_is_whole() -> None:
    done = []

    def draw() -> None:
        with interrupt_afterwards():
            signal.raise_signal(signal.SIGINT)
            done.append(1)

    with pytest.raises(KeyboardInterrupt):
        draw()
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with interrupt_afterwards():
        pass


def test_ctrl_c_that_ends_a_program_ends_it_after_the_block() -> None:
    code = (
        "import signal; from learnvllm.architecture.interrupts import interrupt_afterwards\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "with interrupt_afterwards():\n"
        "    signal.raise_signal(signal.SIGINT); print('whole', flush=True)\n"
        "print('never')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (-signal.SIGINT, "whole\n")


def test_a_block_that_is_interrupted_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = _MarkdownStream(_make_console())
    update = stream._live.update
    monkeypatch.setattr(
        stream._live, "update", lambda shown: (signal.raise_signal(signal.SIGINT), update(shown))
    )
    with pytest.raises(KeyboardInterrupt):
        stream.add("one\n\ntwo")
    monkeypatch.undo()
    stream.end()
    assert capsys.readouterr().out.split() == ["one", "two"]
