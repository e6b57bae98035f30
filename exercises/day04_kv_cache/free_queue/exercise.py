"""A free queue with a way out of the middle (fill-in, 30 minutes, 10 points).

Free blocks wait in a queue, least recently used first. A prefix hit takes one out of the middle, thousands of
times a second, so a list or a deque will not do. You write the doubly linked list that runs through the
blocks themselves: every operation in constant time, nothing allocated.

Not asked: Who puts blocks in, and why: that is the pool's business, and the next exercise.

Read: docs/topics/kv_cache/concepts.md
Check: learnvllm check kv_cache.free_queue
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from learnvllm.kv_cache.block_pool import KVCacheBlock


class FreeKVCacheBlockQueue:
    """A doubly linked list through the blocks themselves.

    A deque would do but for one operation: a prefix hit takes a block out of the middle, here in O(1) and
    without allocating anything. Two sentinels spare every operation the cases "first" and "last".
    """

    def __init__(self, blocks: Iterable[KVCacheBlock] = ()) -> None:
        self._head = KVCacheBlock(-1)
        self._tail = KVCacheBlock(-1)
        self._head.next_free = self._tail
        self._tail.prev_free = self._head
        self.num_free_blocks = 0
        for block in blocks:
            self.append(block)

    def append(self, block: KVCacheBlock) -> None:
        """Last out."""
        # TODO: Put the block at the end of the queue, just before the tail sentinel.
        raise NotImplementedError("TODO: FreeKVCacheBlockQueue.append")

    def appendleft(self, block: KVCacheBlock) -> None:
        """Next out."""
        # TODO: Put the block at the front of the queue, just after the head sentinel.
        raise NotImplementedError("TODO: FreeKVCacheBlockQueue.appendleft")

    def popleft(self) -> KVCacheBlock:
        """Take the block unused for longest. Raises IndexError when there is none."""
        # TODO: Take out the first block and return it. IndexError when only the sentinels are left.
        raise NotImplementedError("TODO: FreeKVCacheBlockQueue.popleft")

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block out from wherever it stands. Raises RuntimeError when it is not in the queue."""
        # TODO: Join the block's two neighbours, clear both of its pointers, and count one less. RuntimeError,
        # and nothing changed, when the block is not in the queue.
        raise NotImplementedError("TODO: FreeKVCacheBlockQueue.remove")

    def __iter__(self) -> Iterator[KVCacheBlock]:
        """From next out to last out. For tests and the invariant checker: O(n)."""
        block = self._head.next_free
        while block is not None and block is not self._tail:
            yield block
            block = block.next_free

    def __contains__(self, block: KVCacheBlock) -> bool:
        return block.prev_free is not None

    def _insert(self, before: KVCacheBlock | None, block: KVCacheBlock, after: KVCacheBlock | None) -> None:
        # TODO: Put the block between two neighbours: four pointers, and count one more. RuntimeError, and
        # nothing changed, when the block already stands in the queue.
        raise NotImplementedError("TODO: FreeKVCacheBlockQueue._insert")
