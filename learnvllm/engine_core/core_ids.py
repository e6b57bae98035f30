"""What the core calls each request: by its id, unless an earlier request of that id ended here first.

A stop string or an abort ends a request here while the core may still be sending outputs of it. A client may
reuse the id at once, and must not receive them: the core gets another name, "a#1".
"""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict

ENDED_HERE_KEPT, ENDED_HERE_S = 4096, 300.0
"""So many ids are remembered, and more as long as one of their outputs may be on its way: any number of
requests may end at once."""


class CoreIds:
    """The core's id of every running request, by the id it has here."""

    def __init__(self) -> None:
        self._core_ids: dict[str, str] = {}
        self._in_core: set[str] = set()
        self._ended_here: OrderedDict[str, float] = OrderedDict()
        """The last of the core's ids whose requests ended here first, and when."""
        self._numbers = itertools.count(1)

    def add(self, request_id: str) -> str:
        """A request starts; returns what the core is to call it."""
        core_id = request_id
        while core_id in self._in_core or core_id in self._ended_here:
            core_id = f"{request_id}#{next(self._numbers)}"
        self._core_ids[request_id] = core_id
        self._in_core.add(core_id)
        return core_id

    def get(self, request_id: str) -> str | None:
        """The core's id of a running request; None where there is none."""
        return self._core_ids.get(request_id)

    def remove(self, request_id: str, *, ended_here: bool) -> None:
        """A request is over. ended_here: the core does not know of that yet."""
        core_id = self._core_ids.pop(request_id)
        self._in_core.remove(core_id)
        if ended_here:
            self._note_ended_here(core_id)

    def clear(self) -> None:
        self._core_ids.clear()
        self._in_core.clear()

    def _note_ended_here(self, core_id: str) -> None:
        now = time.monotonic()
        self._ended_here[core_id] = now
        while len(self._ended_here) > ENDED_HERE_KEPT:
            oldest = next(iter(self._ended_here))
            if now - self._ended_here[oldest] < ENDED_HERE_S:
                break
            del self._ended_here[oldest]
