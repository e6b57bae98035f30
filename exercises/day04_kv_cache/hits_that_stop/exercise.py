"""The hits that stop early (break-and-fix, 30 minutes, 10 points).

A report from production: "Prompts that are computed in one step are found again completely. With chunked
prefill the hit rate halves, and in conversations the hit ends where the first answer began, although the pool
is nearly empty. Output is always correct." The mistake is in this file, in one line. Reproduce it, find the
invariant it breaks, repair it.

Not asked: The pool and the hashes: both are the reference's and innocent.

This file has a mistake in it. Find it and repair it.

Read: docs/topics/kv_cache/concepts.md
Check: learnvllm check kv_cache.hits_that_stop
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from learnvllm.architecture.math_utils import cdiv
from learnvllm.architecture.request import Request
from learnvllm.kv_cache.block_pool import BlockPool, KVCacheBlock
from learnvllm.kv_cache.hashing import BlockHash
from learnvllm.kv_cache.interface import KVCacheSpec
from learnvllm.kv_cache.single_type_manager import _count_free


class SingleTypeKVCacheManager(ABC):
    """Block tables of one group. Subclasses answer two questions: what is skipped, and what is a prefix hit.

    Args:
        spec: the group's spec.
        block_pool: shared with all other groups.
        group_id: index of the group.
        max_step_tokens: most tokens of one request in a step.
    """

    def __init__(self, spec: KVCacheSpec, block_pool: BlockPool, group_id: int, max_step_tokens: int) -> None:
        self.spec = spec
        self.block_size = spec.block_size
        self.block_pool = block_pool
        self.group_id = group_id
        self.max_step_tokens = max_step_tokens
        self.req_to_blocks: dict[str, list[KVCacheBlock]] = {}
        """Request id -> its table: entry i holds tokens [i * block_size, (i + 1) * block_size)."""
        self.num_cached_blocks: dict[str, int] = {}
        """Request id -> leading blocks of its table that have been offered to the prefix cache."""

    @abstractmethod
    def get_num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Leading tokens that no token from position `num_computed_tokens` on will read."""

    @abstractmethod
    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_num_blocks: int
    ) -> list[KVCacheBlock]:
        """The longest table of at most `max_num_blocks` blocks from which a request could go on.

        Blocks the attention would not read any more may be missing from the cache: the null block takes their
        place.
        """

    def get_num_blocks_to_allocate(
        self, request_id: str, num_tokens: int, hits: Sequence[KVCacheBlock] = ()
    ) -> int:
        """Free blocks it takes to grow to `num_tokens`, hits that nobody else holds included."""
        held = self.req_to_blocks.get(request_id)
        num_held = len(hits) if held is None else len(held)
        num_new = max(cdiv(num_tokens, self.block_size) - num_held, 0)
        return num_new + _count_free(hits) if hits else num_new

    def get_num_blocks_outstanding(
        self, request_id: str, num_tokens: int, hits: Sequence[KVCacheBlock] = ()
    ) -> int:
        """Blocks the request will still take from the pool until `num_tokens` tokens are computed."""
        held = self.req_to_blocks.get(request_id)
        if held is None:
            num_held = sum(1 for block in hits if block.ref_count > 0 and not block.is_null)
        else:
            num_held = sum(1 for block in held if not block.is_null)
        return max(self.spec.max_blocks(num_tokens, self.max_step_tokens) - num_held, 0)

    def allocate_new_computed_blocks(self, request_id: str, hits: Sequence[KVCacheBlock]) -> None:
        """Open the table of a request that is admitted, beginning with its prefix hit."""
        if request_id in self.req_to_blocks:
            raise RuntimeError(f"request {request_id!r} already has a block table")
        self.block_pool.touch(hits)
        self.req_to_blocks[request_id] = list(hits)
        self.num_cached_blocks[request_id] = len(hits)

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> list[KVCacheBlock]:
        """Grow the table until it holds `num_tokens` tokens; return what was added."""
        table = self.req_to_blocks[request_id]
        num_new = cdiv(num_tokens, self.block_size) - len(table)
        if num_new <= 0:
            return []
        new = self.block_pool.get_new_blocks(num_new)
        table.extend(new)
        return new

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Make the blocks findable that the first `num_tokens` tokens fill."""
        first = self.num_cached_blocks[request.request_id]
        last = num_tokens // self.block_size
        if first >= last:
            return
        table = self.req_to_blocks[request.request_id]
        self.block_pool.cache_full_blocks(table[first:last], request.block_hashes[first:last], self.group_id)
        self.num_cached_blocks[request.request_id] = cdiv(num_tokens, self.block_size)

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        """Give back the blocks all of whose tokens are skipped. A block with one token still read stays."""
        last = self.get_num_skipped_tokens(num_computed_tokens) // self.block_size
        table = self.req_to_blocks.get(request_id)
        if table is None:
            return
        removed: list[KVCacheBlock] = []
        for index in range(min(last, len(table)) - 1, -1, -1):
            if table[index].is_null:
                break  # everything before went earlier
            removed.append(table[index])
            table[index] = self.block_pool.null_block
        self.block_pool.free_blocks(removed)

    def free(self, request_id: str) -> None:
        """Close the table. Its last block is freed first and so evicted first."""
        table = self.req_to_blocks.pop(request_id, None)
        if table is not None:
            del self.num_cached_blocks[request_id]
            self.block_pool.free_blocks(reversed(table))
