"""A whole step as one launch: kernels recorded once for a size of batch, replayed over the same buffers.

A step of small kernels is bound by the host that launches them; a graph launches hundreds at once. It holds
sizes and addresses, not values, so a batch is padded up to the next captured size, and what cannot be
captured runs as it is. How much can be is the least of what the parts support.
Upstream: vllm/v1/worker/gpu/cudagraph_utils.py (CudaGraphManager), vllm/v1/cudagraph_dispatcher.py.
"""

from __future__ import annotations

import bisect
import gc
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from functools import partial
from typing import NamedTuple, Protocol

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


def decode_sizes(max_reqs: int) -> list[int]:
    """Decodes to capture, by their number of requests: dense where a padded row costs most."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, max_reqs + 1, 16)]
    return sorted({*(size for size in sizes if size < max_reqs), max_reqs})


MIXED_TOKENS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
"""Beyond these a step's arithmetic takes longer than its launches."""
MIXED_REQS = (8, 64)
"""And as many as there may be: what is padded costs rows of logits."""


class GraphKey(NamedTuple):
    """What a graph is for: all of these are numbers the host decides by, so they are frozen in it."""

    num_reqs: int
    num_tokens: int
    max_query_len: int


def graph_keys(
    support: GraphSupport, max_reqs: int, max_tokens: int
) -> tuple[list[GraphKey], list[GraphKey]]:
    """Graphs of decodes and of mixed batches, each from small to large."""
    decodes = [GraphKey(n, n, 1) for n in decode_sizes(max_reqs)] if support > GraphSupport.NEVER else []
    if support < GraphSupport.ALWAYS:
        return decodes, []
    most, limit = max_reqs + 1, min(max_tokens, MIXED_TOKENS[-1])  # one request takes what is missing
    reqs = sorted({*(n for n in MIXED_REQS if n < most), most})
    tokens = sorted({*(n for n in MIXED_TOKENS if n < limit), limit})
    return decodes, [GraphKey(r, t, t) for t in tokens for r in reqs]


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
        max_tokens: of a mixed batch that may be captured.
        run: does a step of such a size, reading and writing fixed buffers only.
    """

    def __init__(
        self,
        backend: GraphBackend | None,
        components: Mapping[str, GraphSupport],
        max_reqs: int,
        max_tokens: int,
        run: Callable[[GraphKey], None],
    ) -> None:
        self.backend, self.run = backend, run
        self.support, self.decided_by = weakest(components)
        support = self.support if backend is not None else GraphSupport.NEVER
        self.decodes, self.mixed = graph_keys(support, max_reqs, max_tokens)
        self._decode_sizes = [key.num_reqs for key in self.decodes]
        self._replays: dict[GraphKey, Callable[[], None]] = {}

    def capture(self, before_each: Callable[[GraphKey], None] = lambda key: None) -> None:
        """Record all graphs, the largest first, so that the others reuse its memory. Each runs once before:
        a kernel's first launch compiles it, which cannot be recorded."""
        keys = sorted([*self.decodes, *self.mixed], key=lambda key: key.num_tokens, reverse=True)
        with without_garbage():
            for key in keys if self.backend is not None else ():
                before_each(key)
                self.run(key)
                self._replays[key] = self.backend.capture(partial(self.run, key))  # type: ignore[union-attr]
        logger.info("CUDA graphs: %s", self.explain())

    def dispatch(
        self, num_reqs: int, num_tokens: int, max_query_len: int, samples_all: bool
    ) -> GraphKey | None:
        """What to pad this step to; None: run it as it is.

        samples_all: whether every request gets a token, as in a captured decode.
        """
        needed = needed_support(num_reqs, num_tokens, max_query_len)
        if needed is GraphSupport.SINGLE_TOKEN_DECODE and samples_all:
            index = bisect.bisect_left(self._decode_sizes, num_reqs)
            found = self.decodes[index] if index < len(self.decodes) else None
        else:  # one more request, without an owner, takes the tokens that are missing
            fits = (key for key in self.mixed if key.num_reqs > num_reqs and key.num_tokens >= num_tokens)
            found = next(fits, None)
        return found if found in self._replays else None

    def replay(self, key: GraphKey) -> None:
        self._replays[key]()

    def release(self) -> None:
        """Forget the graphs: they hold `run`'s owner, and that holds this."""
        self._replays.clear()
        self.run = lambda key: None

    def explain(self) -> str:
        """One sentence: what is captured, or why nothing is."""
        if self.backend is None:
            return "none: this device has none, or --enforce-eager."
        if self.support is GraphSupport.NEVER:
            return f"none: {self.decided_by} cannot be captured."
        sizes = f"{len(self.decodes)} of decodes and {len(self.mixed)} of mixed batches"
        return f"{sizes}; {self.decided_by} allows {self.support.name}."


@contextmanager
def without_garbage() -> Iterator[None]:
    """Collect garbage before, and none within: an earlier engine's graph that is freed while another is
    recorded ends the recording."""
    gc.collect()
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
