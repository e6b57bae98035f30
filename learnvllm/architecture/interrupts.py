"""Ctrl-C may come between any two lines: what must not be left half done holds it back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupt_afterwards() -> Iterator[None]:
    """Hold Ctrl-C back until the block is done: half a step would leave blocks half allocated, and half a
    redrawn screen shows what is on it twice."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is ever interrupted
        return
    held: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if held:
            signal.raise_signal(held[0])
