"""Notice that files were saved, by polling: it works on every system, on network drives and in containers.

A file's state is its mtime and size. While an editor replaces a file it is gone for a moment; that is no
change, its coming back is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

INTERVAL_S = 0.3

State = tuple[tuple[int, int] | None, ...]


def state_of(paths: Sequence[Path]) -> State:
    """(mtime in ns, size) of each file, None for one that is not there."""
    return tuple(_stat(path) for path in paths)


def _stat(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def changes(
    paths: Sequence[Path], wait: Callable[[float], object] = time.sleep, *, since: State | None = None
) -> Iterator[None]:
    """Yield after every change, for ever. What changed while the consumer was busy counts as one change.

    Args:
        wait: called between two looks; whoever raises in it (Ctrl-C) ends the watching.
        since: what was there when the consumer last looked (`state_of`); left out: what is there now.
    """
    seen = state_of(paths) if since is None else since
    while True:
        wait(INTERVAL_S)
        state = state_of(paths)
        if None not in state and state != seen:
            seen = state
            yield
