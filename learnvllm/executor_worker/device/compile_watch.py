"""Kernels are compiled while the engine warms up, or a request waits for seconds: this says which was not.

Triton compiles a kernel anew for each combination of dtypes, constants and of what it notices of its numbers
(1, a multiple of 16). What warm-up did not meet is compiled at first use; every such kernel is logged by
name, with what is new about it, so that the warm-up can be completed. Upstream: the warm-up contract of
vllm #46182 and #50176.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import Any

logger = logging.getLogger(__name__)

_ALL_OF_IT = ("key", "specialization_data")
"""Entries that repeat all others, so they differ whenever any does."""


class CompileWatch:
    """Notes every compilation from `start` on; those after `warmed_up` are late."""

    def __init__(self) -> None:
        self.late: list[str] = []
        self._known: dict[str, list[dict[str, str]]] = defaultdict(list)
        self._is_warm = False

    def start(self) -> None:
        """Have Triton tell. One watch a process: the newest hears it."""
        from triton import knobs

        knobs.runtime.jit_post_compile_hook = self

    def warmed_up(self) -> None:
        self._is_warm = True

    def __call__(self, *, fn: Any, compile: Any, **other: Any) -> None:
        """Triton's hook: a kernel has been compiled."""
        traits = {name: str(value) for name, value in dict(compile).items() if name not in _ALL_OF_IT}
        if self._is_warm:
            what = f"{fn.name}: {self._difference(fn.name, traits)}"
            self.late.append(what)
            logger.warning("Compiled after warm-up, while requests waited: %s", what)
        self._known[fn.name].append(traits)

    def _difference(self, name: str, traits: dict[str, str]) -> str:
        """What sets a kernel apart from the nearest that warm-up compiled: the missed key."""
        if not self._known[name]:
            return "no such kernel was warmed up"
        unlike = ([key for key in traits if traits[key] != known.get(key)] for known in self._known[name])
        nearest = min(unlike, key=len)
        return "other " + ", ".join(nearest) if nearest else "compiled twice"
