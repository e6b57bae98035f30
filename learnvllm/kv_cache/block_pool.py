"""All blocks of the KV cache: who is free, who is used how often, and which content can be found again.

A block nobody uses waits in a queue, least recently used first. It keeps its content until it is handed out
again, so until then a prefix hit may take it back. Upstream namesake: vllm/v1/core/block_pool.py (BlockPool),
kv_cache_utils.py (KVCacheBlock, FreeKVCacheBlockQueue).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from learnvllm.kv_cache.hashing import BlockHash

NULL_BLOCK_ID = 0


@dataclass(slots=True, eq=False)
class KVCacheBlock:
    """One block. `eq=False`: a block is itself, whatever its fields say."""

    block_id: int
    ref_count: int = 0
    """How many block tables hold it."""
    block_hash: BlockHash | None = None
    """Set while the block can be found by its content."""
    group_id: int = 0
    """The cache group whose content the hash names. Meaningless without a hash."""
    reused: bool = False
    """A prefix hit has found its content since it was handed out. For eviction orders other than LRU."""
    is_null: bool = False
    prev_free: KVCacheBlock | None = field(default=None, repr=False)
    next_free: KVCacheBlock | None = field(default=None, repr=False)


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
        self._insert(self._tail.prev_free, block, self._tail)

    def appendleft(self, block: KVCacheBlock) -> None:
        """Next out."""
        self._insert(self._head, block, self._head.next_free)

    def popleft(self) -> KVCacheBlock:
        """Take the block unused for longest. Raises IndexError when there is none."""
        block = self._head.next_free
        if block is None or block is self._tail:
            raise IndexError("no free KV cache block")
        self.remove(block)
        return block

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block out from wherever it stands. Raises RuntimeError when it is not in the queue."""
        before, after = block.prev_free, block.next_free
        if before is None or after is None:
            raise RuntimeError(f"block {block.block_id} is not in the free queue")
        before.next_free = after
        after.prev_free = before
        block.prev_free = block.next_free = None
        self.num_free_blocks -= 1

    def __iter__(self) -> Iterator[KVCacheBlock]:
        """From next out to last out. For tests and the invariant checker: O(n)."""
        block = self._head.next_free
        while block is not None and block is not self._tail:
            yield block
            block = block.next_free

    def __contains__(self, block: KVCacheBlock) -> bool:
        return block.prev_free is not None

    def _insert(self, before: KVCacheBlock | None, block: KVCacheBlock, after: KVCacheBlock | None) -> None:
        if block.prev_free is not None or before is None or after is None:
            raise RuntimeError(f"block {block.block_id} is already in the free queue")
        block.prev_free, block.next_free = before, after
        before.next_free = after.prev_free = block
        self.num_free_blocks += 1


class FreeQueue(Protocol):
    """The order in which free blocks are handed out. `eviction.py` has another one."""

    @property
    def num_free_blocks(self) -> int: ...
    def append(self, block: KVCacheBlock) -> None: ...
    def appendleft(self, block: KVCacheBlock) -> None: ...
    def popleft(self) -> KVCacheBlock: ...
    def remove(self, block: KVCacheBlock) -> None: ...
    def __iter__(self) -> Iterator[KVCacheBlock]: ...
    def __contains__(self, block: KVCacheBlock) -> bool: ...


FreeQueueFactory = Callable[[Iterable[KVCacheBlock]], FreeQueue]


@dataclass(slots=True)
class BlockPoolLog:
    """What a tracer wants to know. Only written while someone has attached one to the pool."""

    freed: list[int] = field(default_factory=list)
    """Blocks that nobody uses any more."""
    evicted: list[int] = field(default_factory=list)
    """Blocks handed out again while they still held findable content."""


class BlockPool:
    """Owns `num_blocks` blocks. Block 0 is the null block: it stands in tables where no KV is needed.

    Args:
        num_blocks: blocks in all, the null block included; at least 2.
        enable_caching: remember contents by hash.
        num_groups: cache groups that share the pool. The same tokens have different KV in each, so each has a
            map.
        free_queue: makes the queue of free blocks, and so decides whose content is evicted first.
    """

    def __init__(
        self,
        num_blocks: int,
        enable_caching: bool,
        num_groups: int = 1,
        free_queue: FreeQueueFactory = FreeKVCacheBlockQueue,
    ) -> None:
        if num_blocks < 2:
            raise ValueError(f"num_blocks={num_blocks}: at least 2 are needed, block 0 is the null block")
        self.num_blocks = num_blocks
        self.enable_caching = enable_caching
        self.blocks = [KVCacheBlock(block_id) for block_id in range(num_blocks)]
        self.null_block = self.blocks[NULL_BLOCK_ID]
        self.null_block.is_null = True
        self.free_block_queue = free_queue(self.blocks[1:])
        self.cached_blocks: list[dict[BlockHash, KVCacheBlock]] = [{} for _ in range(num_groups)]
        self.log: BlockPoolLog | None = None

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that can hold KV."""
        return self.num_blocks - 1

    @property
    def usage(self) -> float:
        """Share of usable blocks that some request holds, 0 to 1."""
        return 1 - self.free_block_queue.num_free_blocks / self.num_usable_blocks

    def get_num_free_blocks(self) -> int:
        """Blocks nobody holds, those with cached content included."""
        return self.free_block_queue.num_free_blocks

    def get_cached_block(self, block_hash: BlockHash, group_id: int = 0) -> KVCacheBlock | None:
        return self.cached_blocks[group_id].get(block_hash)

    def get_new_blocks(self, count: int) -> list[KVCacheBlock]:
        """Hand out `count` blocks, each with one reference. What they held can no longer be found.

        Raises:
            RuntimeError: fewer are free; nothing has been taken.
        """
        if count > self.free_block_queue.num_free_blocks:
            raise RuntimeError(
                f"{count} KV cache blocks wanted, {self.free_block_queue.num_free_blocks} are free"
            )
        new = [self.free_block_queue.popleft() for _ in range(count)]
        for block in new:
            if block.block_hash is not None:
                self._evict(block)
            block.ref_count = 1
            block.reused = False
        return new

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """A prefix hit: one more holder for each block. A free one leaves the queue, safe from eviction."""
        for block in blocks:
            if block.is_null:
                continue
            if block.ref_count == 0:
                self.free_block_queue.remove(block)
            block.ref_count += 1
            block.reused = True

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """One holder less for each block; whoever has none left becomes free, in the order given.

        A caller gives a request's last block first: the queue is emptied from the front, and the end of a
        prompt is less likely to be asked for again than its beginning. A block without a hash cannot be asked
        for at all and goes to the very front.
        """
        for block in ordered_blocks:
            if block.is_null:
                continue
            if block.ref_count <= 0:
                raise RuntimeError(f"block {block.block_id} is freed more often than it was taken")
            block.ref_count -= 1
            if block.ref_count:
                continue
            if block.block_hash is None:
                self.free_block_queue.appendleft(block)
            else:
                self.free_block_queue.append(block)
            if self.log is not None:
                self.log.freed.append(block.block_id)

    def cache_full_blocks(
        self, blocks: Sequence[KVCacheBlock], hashes: Sequence[BlockHash], group_id: int = 0
    ) -> None:
        """Make full blocks findable: blocks[i] holds the content named hashes[i].

        When another block already goes by that name the new one stays anonymous: a table only grows at its
        end, so the request keeps its own copy, but one name for one block keeps the map simple.
        """
        names = self.cached_blocks[group_id]
        for block, block_hash in zip(blocks, hashes):
            if block.is_null or block_hash in names:
                continue
            if block.block_hash is not None:
                raise RuntimeError(f"block {block.block_id} already has a hash")
            block.block_hash = block_hash
            block.group_id = group_id
            names[block_hash] = block

    def reset_prefix_cache(self) -> bool:
        """Forget every cached content. False, and nothing happens, while any block is in use."""
        if self.free_block_queue.num_free_blocks != self.num_usable_blocks:
            return False
        for block in [self.free_block_queue.popleft() for _ in range(self.num_usable_blocks)]:
            block.block_hash, block.reused = None, False
            self.free_block_queue.append(block)
        for names in self.cached_blocks:
            names.clear()
        return True

    def _evict(self, block: KVCacheBlock) -> None:
        """The block is given away: from now on its old name must lead nowhere."""
        assert block.block_hash is not None
        del self.cached_blocks[block.group_id][block.block_hash]
        block.block_hash = None
        if self.log is not None:
            self.log.evicted.append(block.block_id)
