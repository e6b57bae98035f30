"""A terminal while a program writes to it: what is typed meanwhile is not shown but kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def typing_unseen() -> Iterator[None]:
    """What is typed is not echoed into what is written; whoever reads next gets it, after a Ctrl-C, too.

    Standard input must be a terminal. Ctrl-C interrupts as ever.
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
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSANOW, before)
