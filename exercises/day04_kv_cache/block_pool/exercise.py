"""The pool that owns every block (module, 45 minutes, 16 points).

Every block is held by some tables or waits in the free queue, and a free block keeps its content until it is
handed out again. You write the pool that keeps this true: handing out, sharing, taking back, naming and
forgetting.

Not asked: What a name is made of, and which blocks a request needs: a hash is 32 opaque bytes here.

Read: docs/topics/kv_cache/concepts.md
Check: learnvllm check kv_cache.block_pool
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from learnvllm.kv_cache.block_pool import (
    NULL_BLOCK_ID,
    BlockPoolLog,
    FreeKVCacheBlockQueue,
    FreeQueueFactory,
    KVCacheBlock,
)
from learnvllm.kv_cache.hashing import BlockHash


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
        # TODO: The block that goes by this name in this group, or None.
        raise NotImplementedError("TODO: BlockPool.get_cached_block")

    def get_new_blocks(self, count: int) -> list[KVCacheBlock]:
        """Hand out `count` blocks, each with one reference. What they held can no longer be found.

        Raises:
            RuntimeError: fewer are free; nothing has been taken.
        """
        # TODO: Refuse (RuntimeError) before anything is taken if fewer than count are free. Else take them
        # from the front of the queue, forget the name of each that has one (a log, if attached, gets its id
        # in `evicted`), and set ref_count to 1 and reused to False.
        raise NotImplementedError("TODO: BlockPool.get_new_blocks")

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """A prefix hit: one more holder for each block. A free one leaves the queue, safe from eviction."""
        # TODO: For each block but the null block: out of the queue if nobody held it, one reference more, and
        # mark it reused.
        raise NotImplementedError("TODO: BlockPool.touch")

    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """One holder less for each block; whoever has none left becomes free, in the order given.

        A caller gives a request's last block first: the queue is emptied from the front, and the end of a
        prompt is less likely to be asked for again than its beginning. A block without a hash cannot be asked
        for at all and goes to the very front.
        """
        # TODO: For each block but the null block: one reference less (RuntimeError when it has none); if that
        # was the last, into the queue at the end that the docstring names, and its id into log.freed if a log
        # is attached.
        raise NotImplementedError("TODO: BlockPool.free_blocks")

    def cache_full_blocks(
        self, blocks: Sequence[KVCacheBlock], hashes: Sequence[BlockHash], group_id: int = 0
    ) -> None:
        """Make full blocks findable: blocks[i] holds the content named hashes[i].

        When another block already goes by that name the new one stays anonymous: a table only grows at its
        end, so the request keeps its own copy, but one name for one block keeps the map simple.
        """
        # TODO: Give blocks[i] the name hashes[i] in the group's map, on the block and in the map, unless the
        # block is the null block or the name is taken. RuntimeError when a block already has another name.
        raise NotImplementedError("TODO: BlockPool.cache_full_blocks")

    def reset_prefix_cache(self) -> bool:
        """Forget every cached content. False, and nothing happens, while any block is in use."""
        # TODO: Only while every usable block is free: no block has a name or counts as reused any more, and
        # all maps are empty. (A queue may sort by `reused`: take blocks out before you change it.)
        raise NotImplementedError("TODO: BlockPool.reset_prefix_cache")

    def _evict(self, block: KVCacheBlock) -> None:
        """The block is given away: from now on its old name must lead nowhere."""
        # TODO: Yours to keep or to drop: the one place where a block loses its name.
        raise NotImplementedError("TODO: BlockPool._evict")
