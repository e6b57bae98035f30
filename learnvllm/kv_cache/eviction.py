"""Whose content goes first when memory runs short: what was asked for once, before what was asked for again.

Plain least-recently-used order has one weakness: a flood of prompts that nobody repeats pushes out the one
prefix that everybody shares. `SegmentedFreeQueue` keeps the two apart. Ours: vLLM's pool knows only LRU; its
offload tier has ARC (vllm/v1/kv_offload/cpu/policies/arc.py). Paper: Karedla et al. 1994, segmented LRU.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from learnvllm.architecture.config import PrefixCacheEviction
from learnvllm.kv_cache.block_pool import FreeKVCacheBlockQueue, FreeQueueFactory, KVCacheBlock

PROTECTED_SHARE = 0.5


class SegmentedFreeQueue:
    """Two queues in a row: probation, then protected. Blocks leave from the front of the first.

    A block whose content a prefix hit has found (`KVCacheBlock.reused`) waits in the protected segment,
    every other on probation. The protected segment is bounded: its oldest block is moved to the end of
    probation and must be found once more to come back, so that content which has gone out of use leaves.

    Args:
        blocks: the free blocks, in the order in which they are to be handed out.
        protected_share: share of `blocks` that may be protected, 0 (plain LRU) to 1.
    """

    def __init__(self, blocks: Iterable[KVCacheBlock] = (), protected_share: float = PROTECTED_SHARE) -> None:
        self._probation = FreeKVCacheBlockQueue(blocks)
        self._protected = FreeKVCacheBlockQueue()
        self.max_protected = int(protected_share * self._probation.num_free_blocks)

    @property
    def num_free_blocks(self) -> int:
        return self._probation.num_free_blocks + self._protected.num_free_blocks

    def append(self, block: KVCacheBlock) -> None:
        """Last out of its segment. Whoever that pushes out of the protected one is on probation again."""
        if not block.reused:
            self._probation.append(block)
            return
        self._protected.append(block)
        while self._protected.num_free_blocks > self.max_protected:
            oldest = self._protected.popleft()
            oldest.reused = False
            self._probation.append(oldest)

    def appendleft(self, block: KVCacheBlock) -> None:
        """Next out of all, whatever it was."""
        block.reused = False
        self._probation.appendleft(block)

    def popleft(self) -> KVCacheBlock:
        """Take the next block: from probation while there is one. Raises IndexError when none is free."""
        if self._probation.num_free_blocks:
            return self._probation.popleft()
        return self._protected.popleft()

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block out from wherever it stands. Raises RuntimeError when it is not in the queue."""
        segment = self._protected if block.reused else self._probation
        segment.remove(block)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        """From next out to last out."""
        yield from self._probation
        yield from self._protected

    def __contains__(self, block: KVCacheBlock) -> bool:
        return block in self._probation or block in self._protected


def free_queue_factory(eviction: PrefixCacheEviction) -> FreeQueueFactory:
    """What makes the pool's free queue. Both orders hand out blocks without a name first."""
    return SegmentedFreeQueue if eviction == "segmented" else FreeKVCacheBlockQueue
