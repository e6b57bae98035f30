"""What the graders of Day 4 share: small caches and requests, and a memory in which every read is checked.

`CheckedMemory` stands for the tensors: the "KV" of a token is the whole prefix that leads to it, written to
(group, block, offset) where a device would write it. A stale block, a block of two owners or a wrong name is
found at the first read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from learnvllm.architecture.request import Request
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.kv_cache.hashing import make_block_hasher
from learnvllm.kv_cache.manager import KVCacheManager
from learnvllm.scheduling.toy import make_kv_cache

CONCEPTS = "docs/topics/kv_cache/concepts.md"
BLOCK_SIZE = 4


def name_of(content: str | int) -> bytes:
    """A stand-in for a block's hash: 32 bytes that spell the content."""
    return str(content).encode().ljust(32, b".")


def make_manager(
    num_blocks: int = 11,
    block_size: int = BLOCK_SIZE,
    windows: Sequence[int | None] = (None,),
    manager_class: Any = KVCacheManager,
    **options: Any,
) -> Any:
    return manager_class(make_kv_cache(num_blocks, block_size, windows), **options)


def make_request(
    request_id: str,
    tokens: Iterable[int],
    block_size: int = BLOCK_SIZE,
    *,
    cache_salt: str | None = None,
    **params: Any,
) -> Request:
    return Request(
        request_id,
        list(tokens),
        SamplingParams(max_tokens=100, **params),
        cache_salt=cache_salt,
        block_hasher=make_block_hasher(block_size),
    )


def admit(manager: Any, request: Request, num_tokens: int | None = None) -> int:
    """Take the prefix hit and room up to `num_tokens` tokens (all); returns the hit's length in tokens."""
    hits, num_hit = manager.get_computed_blocks(request)
    num_tokens = request.num_tokens if num_tokens is None else num_tokens
    blocks = manager.allocate_slots(request, num_tokens - num_hit, hits, num_hit)
    assert blocks is not None, (
        f"Request {request.request_id!r} needs room for {num_tokens} tokens ({num_hit} of them a hit) and "
        f"was refused, with {manager.block_pool.get_num_free_blocks()} blocks free."
    )
    request.num_computed_tokens = num_tokens
    return num_hit


def serve(manager: Any, request_id: str, tokens: Iterable[int]) -> int:
    """Admit a request, compute it and let it go; returns how many tokens were found."""
    request = make_request(request_id, tokens, manager.block_size)
    num_hit = admit(manager, request)
    manager.free(request)
    return num_hit


def table(manager: Any, request: Request, group: int = 0) -> list[int]:
    """Block ids of a request; 0 is the null block."""
    return manager.get_block_ids(request.request_id)[group]


class CheckedMemory:
    """Writes and reads KV as a device would, and knows what must be found where."""

    def __init__(self, manager: Any, windows: Sequence[int | None] = (None,)) -> None:
        self.manager, self.windows = manager, windows
        self.kv: dict[tuple[int, int, int], tuple[int, ...]] = {}

    def compute(self, request: Request, start: int, end: int) -> None:
        """Write tokens [start, end), then read what they attend to."""
        tokens = request.all_token_ids
        for group in range(len(self.windows)):
            for position in range(start, end):
                self.kv[self._slot(request, group, position)] = tuple(tokens[: position + 1])
        for group, window in enumerate(self.windows):
            first = 0 if window is None else max(start - window + 1, 0)
            for position in range(first, end):
                slot = self._slot(request, group, position)
                found = self.kv.get(slot)
                assert found == tuple(tokens[: position + 1]), (
                    f"Request {request.request_id!r} attends to position {position} in block {slot[1]}, "
                    f"offset {slot[2]}, and finds {self._describe(found)}. Invariant: whatever counts as "
                    f"computed has its KV in the request's own table. Read {CONCEPTS}#the-mental-model."
                )

    def _slot(self, request: Request, group: int, position: int) -> tuple[int, int, int]:
        ids = table(self.manager, request, group)
        index, offset = divmod(position, self.manager.block_size)
        assert index < len(ids), (
            f"Request {request.request_id!r} computes or reads position {position}, which lies in entry "
            f"{index} of its table, but the table has {len(ids)} entries."
        )
        assert ids[index] != 0, (
            f"Request {request.request_id!r} needs position {position}, but entry {index} of its table is "
            "the null block: given back (or never found) although it is still read."
        )
        return group, ids[index], offset

    @staticmethod
    def _describe(found: tuple[int, ...] | None) -> str:
        return "nothing: no step has written it" if found is None else f"the KV of other tokens, {found[-6:]}"
