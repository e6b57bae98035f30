"""A prefix that everybody can go on from (fill-in, 20 minutes, 8 points).

A model with full and sliding-window layers has a table per group, and a prefix counts only if every group can
go on from it. The length that one group offers may be no hit for another, so you look for a number on which
all agree.

Not asked: How a group finds its own hit: each manager has find_longest_cache_hit(block_hashes,
max_num_blocks).

Read: docs/topics/kv_cache/concepts.md
Check: learnvllm check kv_cache.hybrid_hit
"""

from __future__ import annotations

from collections.abc import Sequence

from learnvllm.architecture.config import PrefixCacheEviction
from learnvllm.architecture.request import Request
from learnvllm.kv_cache.block_pool import BlockPool
from learnvllm.kv_cache.coordinator import GroupBlocks
from learnvllm.kv_cache.eviction import free_queue_factory
from learnvllm.kv_cache.hashing import BlockHash
from learnvllm.kv_cache.interface import KVCacheConfig
from learnvllm.kv_cache.single_type_manager import FullAttentionManager, make_manager


class KVCacheCoordinator:
    """The managers of all groups.

    Raises:
        ValueError: groups differ in block size. Then one hash per block could not name the content in all of
            them.
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        enable_caching: bool,
        max_step_tokens: int,
        eviction: PrefixCacheEviction = "lru",
    ) -> None:
        self.block_size = kv_cache_config.block_size
        specs = [group.spec for group in kv_cache_config.groups]
        if not specs or any(spec.block_size != self.block_size for spec in specs):
            raise ValueError(
                f"all cache groups need the block size {self.block_size}, "
                f"they have {[spec.block_size for spec in specs]}"
            )
        self.block_pool = BlockPool(
            kv_cache_config.num_blocks, enable_caching, len(specs), free_queue_factory(eviction)
        )
        self.managers = tuple(
            make_manager(spec, self.block_pool, group_id, max_step_tokens)
            for group_id, spec in enumerate(specs)
        )
        self._forgetful = tuple(m for m in self.managers if not isinstance(m, FullAttentionManager))
        self.empty: GroupBlocks = tuple([] for _ in specs)

    def find_longest_cache_hit(
        self, block_hashes: Sequence[BlockHash], max_num_tokens: int
    ) -> tuple[GroupBlocks, int]:
        """The longest prefix, in whole blocks and at most `max_num_tokens`, that every group can go on from.

        A shorter prefix of a hit is a hit for full attention, but not for a sliding window, whose last blocks
        then are others. So the groups are asked in turn, each no more than the one before could offer, until
        all agree; the length only falls, so they will.
        """
        # TODO: Ask self.managers until all offer the same number of blocks, beginning with what
        # max_num_tokens allows. Return one list per group, all of that length, and the length in tokens.
        raise NotImplementedError("TODO: KVCacheCoordinator.find_longest_cache_hit")

    def get_num_blocks_to_allocate(self, request_id: str, num_tokens: int, hits: GroupBlocks) -> int:
        needed = 0
        for manager, blocks in zip(self.managers, hits):
            needed += manager.get_num_blocks_to_allocate(request_id, num_tokens, blocks)
        return needed

    def get_num_blocks_outstanding(self, request_id: str, num_tokens: int, hits: GroupBlocks) -> int:
        return sum(
            manager.get_num_blocks_outstanding(request_id, num_tokens, blocks)
            for manager, blocks in zip(self.managers, hits)
        )

    def allocate_new_computed_blocks(self, request_id: str, hits: GroupBlocks) -> None:
        for manager, blocks in zip(self.managers, hits):
            manager.allocate_new_computed_blocks(request_id, blocks)

    def allocate_new_blocks(self, request_id: str, num_tokens: int) -> GroupBlocks:
        return tuple(manager.allocate_new_blocks(request_id, num_tokens) for manager in self.managers)

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        for manager in self.managers:
            manager.cache_blocks(request, num_tokens)

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        for manager in self._forgetful:
            manager.remove_skipped_blocks(request_id, num_computed_tokens)

    def free(self, request_id: str) -> None:
        for manager in self.managers:
            manager.free(request_id)
