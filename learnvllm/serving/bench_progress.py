"""What a benchmark is at, and how long each of its stages took: loading, warming up, measuring.

Told on stderr by a thread, as nothing else moves while a model loads: on a terminal a bar, elsewhere a line
every few seconds. Upstream namesake: the tqdm bars of vllm/benchmarks.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TextIO

REDRAW_S, LINE_S = 0.5, 5.0


@dataclass
class Stage:
    """Whoever works counts here; whoever tells it reads."""

    name: str
    total: int | None = None
    """Requests; None where there are none to count."""
    finished: int = 0
    moves: int = 0
    """Steps of the engine, say: they show that it moves between the ends of two requests."""
    moves_name: str = "steps"

    @property
    def detail(self) -> str:
        return f"{self.moves} {self.moves_name}" if self.moves else ""

    def line(self, seconds: float) -> str:
        requests = "" if self.total is None else f"{self.finished} of {self.total} requests"
        counted = [text for text in (requests, self.detail) if text]
        return f"{self.name}: {', '.join([*counted, f'{seconds:.0f} s'])}"


class Progress:
    """Tells the stages one after the other.

    Args:
        quiet: keep the times, tell nothing.
    """

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.seconds: dict[str, float] = {}
        """How long each stage took, by its name."""

    @contextmanager
    def stage(self, name: str, total: int | None = None, moves_name: str = "steps") -> Iterator[Stage]:
        stage, began, over = Stage(name, total, moves_name=moves_name), time.perf_counter(), threading.Event()
        thread = None
        if not self.quiet and sys.stderr is not None:
            target = _draw if _has_room(sys.stderr) else _write
            thread = threading.Thread(target=target, args=(stage, over), name="progress", daemon=True)
            thread.start()
        try:
            yield stage
        finally:
            self.seconds[name] = time.perf_counter() - began
            over.set()
            if thread is not None:
                thread.join()


def _has_room(stream: TextIO) -> bool:
    """Whether it is a terminal that a bar can be drawn on: in one of size 0 tqdm draws nothing.

    One that cannot be asked for its size is taken to have one.
    """
    if not stream.isatty():
        return False
    try:
        return min(os.get_terminal_size(stream.fileno())) > 0
    except OSError:
        return True


def _draw(stage: Stage, over: threading.Event) -> None:
    from tqdm import tqdm

    bar: tqdm[Any] = tqdm(
        total=stage.total,
        desc=stage.name,
        unit="req",
        bar_format=None if stage.total else "{desc}: {elapsed}{postfix}",
        dynamic_ncols=True,
        leave=False,
    )
    while not over.wait(REDRAW_S):
        bar.n = stage.finished
        bar.set_postfix_str(stage.detail)  # draws it
    bar.close()


def _write(stage: Stage, over: threading.Event) -> None:
    began = time.perf_counter()
    _say(f"{stage.name} ...")
    while not over.wait(LINE_S):
        _say(stage.line(time.perf_counter() - began))


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):  # nobody reads it any more: no reason to stop measuring
        print(text, file=sys.stderr, flush=True)
