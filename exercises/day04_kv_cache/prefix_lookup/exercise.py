"""Find the prefix, then make room (fill-in, 45 minutes, 17 points).

Two calls join scheduler and cache: what of this request is already there, and is there room for its next
tokens. The first is a few lines with a famous trap; the second must say no without leaving a trace.

Not asked: How groups agree on a hit and how tables grow: `self.coordinator` does that, and its methods are
given.

Read: docs/topics/kv_cache/concepts.md
Check: learnvllm check kv_cache.prefix_lookup
"""

from __future__ import annotations

from collections.abc import Iterable

from learnvllm.architecture.config import PrefixCacheEviction
from learnvllm.architecture.request import Request
from learnvllm.kv_cache.block_pool import BlockPool
from learnvllm.kv_cache.coordinator import GroupBlocks, KVCacheCoordinator
from learnvllm.kv_cache.interface import KVCacheConfig
from learnvllm.kv_cache.invariants import check_invariants
from learnvllm.kv_cache.manager import KVCacheBlocks


class KVCacheManager:
    """Block tables of all requests over one pool.

    Args:
        kv_cache_config: number of blocks, block size, groups.
        enable_caching: share blocks by content and keep content of freed ones until they are needed.
        watermark: share of the blocks that admission leaves free, so that those who run can grow.
        max_step_tokens: most tokens one request gets in a step; None: no limit.
        eviction: whose content goes first when a block is needed.
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        *,
        enable_caching: bool = True,
        watermark: float = 0.0,
        max_step_tokens: int | None = None,
        eviction: PrefixCacheEviction = "lru",
    ) -> None:
        self.kv_cache_config = kv_cache_config
        self.enable_caching = enable_caching
        self.block_size = kv_cache_config.block_size
        self.watermark_blocks = int(watermark * kv_cache_config.num_blocks)
        if max_step_tokens is None:
            max_step_tokens = kv_cache_config.num_blocks * self.block_size
        self.coordinator = KVCacheCoordinator(kv_cache_config, enable_caching, max_step_tokens, eviction)
        self.block_pool: BlockPool = self.coordinator.block_pool
        self.num_groups = len(kv_cache_config.groups)
        self.empty_blocks = KVCacheBlocks(self.coordinator.empty)

    @property
    def usage(self) -> float:
        """Share of the pool that requests hold, 0 to 1."""
        return self.block_pool.usage

    def get_computed_blocks(self, request: Request) -> tuple[KVCacheBlocks, int]:
        """The longest cached prefix of a request that is to be admitted, and its length in tokens.

        At least the last token is always left to compute: its logits choose the next one. As only whole
        blocks are shared, a prompt that fills its blocks exactly and is cached completely recomputes its last
        block. A request for prompt log-probabilities needs the logits of the whole prompt and so takes
        nothing from the cache.

        Nothing is reserved by looking: pass the result to `allocate_slots` before anything else is allocated.
        """
        # TODO: The coordinator's longest hit that leaves at least one token to compute, and its length in
        # tokens. Nothing when caching is off or the request wants prompt log-probabilities.
        raise NotImplementedError("TODO: KVCacheManager.get_computed_blocks")

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_new_computed_tokens: int = 0,
        *,
        num_reserved_blocks: int = 0,
        full_sequence_must_fit: bool = False,
    ) -> KVCacheBlocks | None:
        """Make room for the next `num_new_tokens` tokens of a request, or add nothing and return None.

        Either way, blocks that a sliding window has moved past are given back first: they are of no more use.

        Layout of its table, in tokens:

            | computed | new_computed (prefix hit, admission only) | new |

        Blocks the new tokens fill become findable at once, before their KV is written. That is safe because a
        scheduled step is always executed, steps run in order, and within a step every layer writes the KV of
        all tokens before it reads any. It needs a scheduler that never takes a request out of a step again,
        and ours does not.

        Args:
            request: holds its tokens computed so far and the hashes of its full blocks.
            num_new_tokens: tokens to compute in the coming step; at least 1.
            new_computed_blocks: prefix hit from `get_computed_blocks`, on admission.
            num_new_computed_tokens: its length.
            num_reserved_blocks: free blocks to leave alone (watermark, blocks promised to others).
            full_sequence_must_fit: refuse unless all tokens known, not just the new ones, have room.

        Returns:
            The blocks added to the table (the prefix hit not among them), or None when too few are free.
        """
        # TODO: ValueError below 1 token. Give back skipped blocks; count what must be free (with
        # full_sequence_must_fit at least what all known tokens will still take); None if that and the
        # reserved blocks are not free. Then take the hit (`_take_hits`), grow, name, and return the blocks
        # added.
        raise NotImplementedError("TODO: KVCacheManager.allocate_slots")

    def _take_hits(self, request: Request, hits: GroupBlocks) -> None:
        """Open the tables. That a request takes back what preemption took from it does not mean that others
        will ask for it: its blocks are as `reused` as they were."""
        own = [b for blocks in hits for b in blocks if not b.reused] if request.num_preemptions else []
        self.coordinator.allocate_new_computed_blocks(request.request_id, hits)
        for block in own:
            block.reused = False

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Make findable what the first `num_tokens` tokens fill, as far as those tokens are known."""
        if self.enable_caching:
            self.coordinator.cache_blocks(request, min(num_tokens, request.num_tokens))

    def get_num_blocks_outstanding(self, request: Request) -> int:
        """Blocks a running request will still take for the tokens it knows."""
        return self.coordinator.get_num_blocks_outstanding(
            request.request_id, request.num_tokens, self.coordinator.empty
        )

    def free(self, request: Request) -> None:
        """Close a request's tables. Harmless when it has none."""
        self.coordinator.free(request.request_id)

    def has_blocks(self, request_id: str) -> bool:
        return request_id in self.coordinator.managers[0].req_to_blocks

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        """A request's tables; empty when it has none."""
        return KVCacheBlocks(
            tuple(list(manager.req_to_blocks.get(request_id, ())) for manager in self.coordinator.managers)
        )

    def get_block_ids(self, request_id: str) -> tuple[list[int], ...]:
        return self.get_blocks(request_id).get_block_ids()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content. False, and nothing happens, while any request holds blocks."""
        return self.block_pool.reset_prefix_cache()

    def check_invariants(self, requests: Iterable[Request]) -> None:
        """Raise AssertionError unless every block is where it should be. `requests`: all with tables."""
        check_invariants(self.coordinator, requests)
