"""A whole decode step as one launch: kernels recorded once for a batch size, replayed over the same buffers.

A step of small kernels is bound by the host that launches them; a graph launches hundreds at once. It holds
sizes and addresses, not values, so a batch is padded up to the next captured size, and what cannot be
captured runs as it is. How much can be is the least of what the parts support.
Upstream: vllm/v1/worker/gpu/cudagraph_utils.py (CudaGraphManager), vllm/v1/cudagraph_dispatcher.py.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Protocol

import torch

logger = logging.getLogger(__name__)


class GraphSupport(IntEnum):
    """For which batches a part of the step can be captured; each level includes those before it."""

    NEVER = 0
    """It asks the host, or allocates by content."""
    SINGLE_TOKEN_DECODE = 1
    """Every request computes one token."""
    UNIFORM_BATCH = 2
    """Every request computes equally many (verifying drafts)."""
    ALWAYS = 3
    """Any mix of prompts and decodes."""


def weakest(components: Mapping[str, GraphSupport]) -> tuple[GraphSupport, str]:
    """What all components together support, and which of them decides: the first of the weakest."""
    name = min(components, key=components.__getitem__)
    return components[name], name


def needed_support(num_reqs: int, num_tokens: int, max_query_len: int) -> GraphSupport:
    """What a batch asks of every component."""
    if num_tokens == num_reqs:
        return GraphSupport.SINGLE_TOKEN_DECODE
    if num_tokens == num_reqs * max_query_len:
        return GraphSupport.UNIFORM_BATCH
    return GraphSupport.ALWAYS


def capture_sizes(max_reqs: int) -> list[int]:
    """Batch sizes to capture: dense where a padded row costs most, then every 8, from 256 on every 16."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, max_reqs + 1, 16)]
    return sorted({*(size for size in sizes if size < max_reqs), max_reqs})


class GraphBackend(Protocol):
    """What records and replays: CUDA, or the recorder of graph_recorder.py."""

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        """Record what `function` does to tensors; calling the result does it again, at the same addresses.

        Raises:
            RuntimeError: it asks the host for a value.
        """
        ...


class CudaBackend:
    """CUDA graphs of one stream. They share a pool of memory, for only one of them runs at a time."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, function: Callable[[], None]) -> Callable[[], None]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            function()
        return graph.replay


class CudaGraphManager:
    """Which steps are replayed, and the graphs of them.

    Args:
        backend: None: nothing is captured.
        components: what each part of the step supports.
        run: does a decode step of so many requests, reading and writing fixed buffers only.
    """

    def __init__(
        self,
        backend: GraphBackend | None,
        components: Mapping[str, GraphSupport],
        max_reqs: int,
        run: Callable[[int], None],
    ) -> None:
        self.backend, self.run = backend, run
        self.support, self.decided_by = weakest(components)
        is_on = backend is not None and self.support > GraphSupport.NEVER
        self.sizes = capture_sizes(max_reqs) if is_on else []
        self._replays: dict[int, Callable[[], None]] = {}

    def capture(self) -> None:
        """Record a graph for each size, the largest first, so that the others reuse its memory. Each runs
        once before: a kernel's first launch compiles it, which cannot be recorded."""
        if self.backend is None or not self.sizes:
            logger.info("No CUDA graphs: %s", self.explain())
            return
        for size in reversed(self.sizes):
            self.run(size)
            self._replays[size] = self.backend.capture(lambda size=size: self.run(size))  # type: ignore[misc]
        logger.info("Captured %d CUDA graphs for decodes of up to %d.", len(self.sizes), self.sizes[-1])

    def dispatch(self, num_reqs: int, num_tokens: int, max_query_len: int, samples_all: bool) -> int | None:
        """The captured size to pad this step to; None: run it as it is.

        samples_all: whether every request gets a token, which is what was captured.
        """
        needed = needed_support(num_reqs, num_tokens, max_query_len)
        if needed > min(self.support, GraphSupport.SINGLE_TOKEN_DECODE) or not samples_all:
            return None  # only single-token decodes are captured, whatever else could be
        index = bisect.bisect_left(self.sizes, num_reqs)
        size = self.sizes[index] if index < len(self.sizes) else None
        return size if size in self._replays else None

    def replay(self, size: int) -> None:
        self._replays[size]()

    def explain(self) -> str:
        """One sentence: what is captured, or why nothing is."""
        if self.backend is None:
            return "this device has none, or --enforce-eager."
        if self.support is GraphSupport.NEVER:
            return f"{self.decided_by} cannot be captured."
        return (
            f"single-token decodes in {len(self.sizes)} sizes; {self.decided_by} allows {self.support.name}."
        )
