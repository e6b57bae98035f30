"""Run a command that may do anything: bounded in time, in memory, in what it prints, and nothing outlives it.

Works alike on Linux, macOS and Windows: psutil finds what the process has started.
"""

from __future__ import annotations

import codecs
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from learnvllm.study.bounded_text import Bounded

KEPT_OUTPUT = 64 * 1024
MEMORY_LIMIT = 3 * 2**30
POLL_S = 0.05
_GUARDIAN = """
import os, signal, sys
sys.stdin.read()
os.killpg(int(sys.argv[1]), signal.SIGKILL) if hasattr(os, "killpg") else os.kill(int(sys.argv[1]), 15)
"""
"""A process of its own that ends the group when we have gone, however that came: its stdin is a pipe that
only we hold, and a closed terminal or SIGKILL leaves us no time to do it ourselves."""


@dataclass(frozen=True)
class Ending:
    """How a process came to its end."""

    code: int
    reason: str | None
    """None: by itself. "time", "memory": it was ended for its limit."""
    output: str
    """The beginning and the end of what it printed."""


def run(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout_s: float,
    watch: Callable[[], None] | None = None,
) -> Ending:
    """Run `command` to its end or its limit, then end all that it has left running.

    Args:
        watch: called a few times a second meanwhile.
    """
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # its own process group, to be ended as a whole
    )
    assert process.stdout is not None
    guardian = _start_guardian(process.pid)
    output = _Output(process.stdout)
    family = _Family(process)
    reason = None
    deadline = time.monotonic() + timeout_s
    try:
        while reason is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_S)
                break
            if watch is not None:
                watch()
            reason = family.limit_reached(deadline)
    finally:  # also when Ctrl-C comes: nothing is left behind
        guardian.kill()  # first: once the group is gone, its number may become another's
        guardian.communicate()
        family.end()
        process.wait()
    if watch is not None:
        watch()
    return Ending(process.returncode, reason, output.text())


def _start_guardian(group: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARDIAN, str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # what ends us with our terminal must not end it
    )


class _Family:
    """A process and all that it started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._known: dict[int, psutil.Process] = {}
        self._next_look = 0.0

    def limit_reached(self, deadline: float) -> str | None:
        """ "time" or "memory"; None while within both."""
        now = time.monotonic()
        if now >= deadline:
            return "time"
        if now >= self._next_look:
            self._next_look = now + 5 * POLL_S
            if self._memory() > MEMORY_LIMIT:
                return "memory"
        return None

    def _memory(self) -> int:
        self._look()
        total = 0
        for process in self._known.values():
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    def _look(self) -> None:
        """Note descendants while their parents live: an orphan cannot be found any more."""
        if self._process.returncode is not None:  # its number may be another's by now
            return
        with contextlib.suppress(psutil.Error):
            parent = psutil.Process(self._process.pid)
            for process in (parent, *parent.children(recursive=True)):
                self._known.setdefault(process.pid, process)

    def end(self) -> None:
        """Nobody is asked: the code under grading might not listen."""
        self._look()
        if sys.platform != "win32":
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        for process in self._known.values():
            with contextlib.suppress(psutil.Error):
                process.kill()  # psutil refuses when the number has passed to another process


class _Output:
    """Reads a pipe to its end, so that its writer never waits, and keeps the beginning and the end."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self._pipe = pipe
        self._kept = Bounded(KEPT_OUTPUT)
        self._thread = threading.Thread(target=self._drain, daemon=True)
        self._thread.start()

    def _drain(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            while chunk := self._pipe.read1(64 * 1024):  # type: ignore[attr-defined]
                self._kept.write(decoder.decode(chunk))

    def text(self) -> str:
        self._thread.join(2)  # a process that escaped its group may hold the pipe open
        return self._kept.take()
