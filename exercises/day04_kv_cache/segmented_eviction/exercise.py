"""An order of eviction that survives a flood (extend, 45 minutes, 14 points).

Least recently used has one weakness: a flood of prompts that nobody repeats pushes out the prefix that
everybody shares. You write another free queue, with a place for content that was asked for again, and measure
what it brings (and costs) on two traces. With `--mine` it runs in the engine. vLLM's own pool has only LRU;
this is ours.

Not asked: Who sets `block.reused`: the pool does, when a prefix hit takes the block (not that of a preempted
request, which takes back its own), and clears it when the block is handed out.

Read: docs/topics/kv_cache/concepts.md
Check: learnvllm check kv_cache.segmented_eviction
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from learnvllm.kv_cache.block_pool import FreeKVCacheBlockQueue, KVCacheBlock
from learnvllm.kv_cache.eviction import PROTECTED_SHARE


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
        # TODO: All blocks begin on probation, in the order given. Set max_protected to protected_share of
        # their number, rounded down.
        raise NotImplementedError("TODO: SegmentedFreeQueue.__init__")

    @property
    def num_free_blocks(self) -> int:
        # TODO: Blocks in both segments.
        raise NotImplementedError("TODO: SegmentedFreeQueue.num_free_blocks")

    def append(self, block: KVCacheBlock) -> None:
        """Last out of its segment. Whoever that pushes out of the protected one is on probation again."""
        # TODO: To the end of the segment that block.reused names; then move the oldest protected ones out
        # while there are too many.
        raise NotImplementedError("TODO: SegmentedFreeQueue.append")

    def appendleft(self, block: KVCacheBlock) -> None:
        """Next out of all, whatever it was."""
        # TODO: Before all others, and no longer reused.
        raise NotImplementedError("TODO: SegmentedFreeQueue.appendleft")

    def popleft(self) -> KVCacheBlock:
        """Take the next block: from probation while there is one. Raises IndexError when none is free."""
        # TODO: The first of probation, or, when that is empty, of the protected. IndexError when both are.
        raise NotImplementedError("TODO: SegmentedFreeQueue.popleft")

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block out from wherever it stands. Raises RuntimeError when it is not in the queue."""
        # TODO: Out of its segment, from wherever it stands. RuntimeError when it is in neither.
        raise NotImplementedError("TODO: SegmentedFreeQueue.remove")

    def __iter__(self) -> Iterator[KVCacheBlock]:
        """From next out to last out."""
        # TODO: All blocks, in the order in which popleft would give them.
        raise NotImplementedError("TODO: SegmentedFreeQueue.__iter__")

    def __contains__(self, block: KVCacheBlock) -> bool:
        # TODO: Whether the block stands in either segment.
        raise NotImplementedError("TODO: SegmentedFreeQueue.__contains__")
