"""A terminal while a program writes to it: what is typed meanwhile is not shown but kept."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def typing_unseen() -> Iterator[None]:
    """What is typed is not echoed into what is written; whoever reads next gets it, after a Ctrl-C, too.

    Standard input must be a terminal. Ctrl-C interrupts as ever; SIGTERM ends the program, but by an
    exception, so that the terminal shows again what is typed.
    """
    try:
        import termios
    except ImportError:  # Windows
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    changed = list(before)
    # Nor line by line: a line that is half typed would be lost with the change to the prompt's own mode.
    changed[3] = changed[3] & ~(termios.ECHO | termios.ICANON) | termios.NOFLSH
    termios.tcsetattr(terminal, termios.TCSANOW, changed)
    try:
        with _sigterm_raises():
            yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # only that one may have handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
