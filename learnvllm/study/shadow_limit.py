"""How long one call of the learner's code may take under --shadow: a loop without end is a difference, too.

The alarm raises inside the loop; so its traceback, as any error's, says which of the learner's lines it was.
"""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from learnvllm.study.overlay_plan import Plan

LIMIT_S = 10.0
"""Seconds that one call may take."""


class NeverEnds(Exception):
    """The learner's code has run for so long that it will hardly come to an end."""


@contextmanager
def time_limit() -> Iterator[None]:
    """Interrupt a loop that goes on for ever, where the system can: in a process' main thread."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return
    before = signal.getsignal(signal.SIGALRM)
    if before is _give_up:  # a call within a call: the outer one's time counts
        yield
        return
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _give_up(*_: Any) -> None:
    raise NeverEnds(f"not done after {LIMIT_S:g} s; does it go round for ever?")


def where(error: BaseException, suspects: Iterable[Plan]) -> list[str]:
    """The exception, and the lines of the learner's files that it came through."""
    files = {str(plan.exercise.path): plan.exercise for plan in suspects}
    lines = [f"{type(error).__name__}: {error}"]
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename in files:
            name = files[frame.filename].id
            lines.append(f"{name}, {Path(frame.filename).name} line {frame.lineno}: {frame.line}")
    return lines
