"""The pool hands out what was unused longest, finds content by its hash, and forgets it when it is given
away."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnvllm.kv_cache.block_pool import BlockPool, BlockPoolLog, FreeKVCacheBlockQueue, KVCacheBlock


def ids(blocks) -> list[int]:
    return [block.block_id for block in blocks]


def name(text: str) -> bytes:
    return text.encode()


class TestFreeQueue:
    def test_first_in_first_out(self) -> None:
        queue = FreeKVCacheBlockQueue(KVCacheBlock(i) for i in range(3))
        assert [queue.popleft().block_id for _ in range(3)] == [0, 1, 2]
        with pytest.raises(IndexError, match="no free KV cache block"):
            queue.popleft()

    def test_a_block_leaves_from_the_middle(self) -> None:
        blocks = [KVCacheBlock(i) for i in range(3)]
        queue = FreeKVCacheBlockQueue(blocks)
        queue.remove(blocks[1])
        assert blocks[1] not in queue
        assert ids(queue) == [0, 2]

    def test_a_block_cannot_be_in_it_twice_or_leave_twice(self) -> None:
        blocks = [KVCacheBlock(i) for i in range(2)]
        queue = FreeKVCacheBlockQueue(blocks)
        with pytest.raises(RuntimeError, match="block 0 is already in the free queue"):
            queue.append(blocks[0])
        queue.remove(blocks[0])
        with pytest.raises(RuntimeError, match="block 0 is not in the free queue"):
            queue.remove(blocks[0])

    @given(
        st.lists(st.tuples(st.sampled_from(["append", "appendleft", "popleft", "remove"]), st.integers(0, 7)))
    )
    def test_it_behaves_as_a_list(self, operations: list[tuple[str, int]]) -> None:
        blocks = [KVCacheBlock(i) for i in range(8)]
        queue, model = FreeKVCacheBlockQueue(), []
        for operation, index in operations:
            block = blocks[index]
            if operation == "append" and block not in model:
                queue.append(block)
                model.append(block)
            elif operation == "appendleft" and block not in model:
                queue.appendleft(block)
                model.insert(0, block)
            elif operation == "popleft" and model:
                assert queue.popleft() is model.pop(0)
            elif operation == "remove" and block in model:
                queue.remove(block)
                model.remove(block)
            assert list(queue) == model
            assert queue.num_free_blocks == len(model)


class TestBlockPool:
    def test_block_zero_is_never_handed_out(self) -> None:
        pool = BlockPool(5, enable_caching=True)
        assert sorted(ids(pool.get_new_blocks(4))) == [1, 2, 3, 4]
        assert pool.null_block.block_id == 0

    def test_a_pool_needs_a_block_besides_the_null_block(self) -> None:
        with pytest.raises(ValueError, match="at least 2"):
            BlockPool(1, enable_caching=True)

    def test_asking_for_too_many_takes_none(self) -> None:
        pool = BlockPool(4, enable_caching=True)
        with pytest.raises(RuntimeError, match="4 KV cache blocks wanted, 3 are free"):
            pool.get_new_blocks(4)
        assert pool.get_num_free_blocks() == 3

    def test_freeing_more_often_than_taking_is_an_error(self) -> None:
        pool = BlockPool(4, enable_caching=True)
        blocks = pool.get_new_blocks(1)
        pool.free_blocks(blocks)
        with pytest.raises(RuntimeError, match="freed more often than it was taken"):
            pool.free_blocks(blocks)

    def test_a_shared_block_is_free_when_its_last_holder_leaves(self) -> None:
        pool = BlockPool(4, enable_caching=True)
        blocks = pool.get_new_blocks(1)
        pool.touch(blocks)
        pool.free_blocks(blocks)
        assert pool.get_num_free_blocks() == 2
        pool.free_blocks(blocks)
        assert pool.get_num_free_blocks() == 3

    def test_touching_a_free_block_takes_it_out_of_the_queue(self) -> None:
        pool = BlockPool(4, enable_caching=True)
        blocks = pool.get_new_blocks(2)
        pool.cache_full_blocks(blocks, [name("a"), name("b")])
        pool.free_blocks(reversed(blocks))
        pool.touch([blocks[0]])
        assert ids(pool.get_new_blocks(2)) == [3, blocks[1].block_id]
        assert pool.get_cached_block(name("a")) is blocks[0]

    def test_the_null_block_is_neither_touched_nor_freed(self) -> None:
        pool = BlockPool(4, enable_caching=True)
        pool.touch([pool.null_block])
        pool.free_blocks([pool.null_block])
        assert pool.null_block.ref_count == 0
        assert pool.get_num_free_blocks() == 3

    def test_fault_20_a_block_given_away_is_not_found_any_more(self) -> None:
        pool = BlockPool(2, enable_caching=True)
        block = pool.get_new_blocks(1)
        pool.cache_full_blocks(block, [name("old")])
        pool.free_blocks(block)
        assert pool.get_cached_block(name("old")) is block[0]
        pool.get_new_blocks(1)
        assert pool.get_cached_block(name("old")) is None
        assert block[0].block_hash is None

    def test_fault_22_least_recently_used_content_goes_first(self) -> None:
        pool = BlockPool(5, enable_caching=True)
        first, second = pool.get_new_blocks(2), pool.get_new_blocks(2)
        pool.cache_full_blocks(first, [name("a0"), name("a1")])
        pool.cache_full_blocks(second, [name("b0"), name("b1")])
        pool.free_blocks(reversed(first))
        pool.free_blocks(reversed(second))
        pool.touch(first)  # used again: now the younger
        pool.free_blocks(reversed(first))
        order = [second[1], second[0], first[1], first[0]]  # and of each the tail before the head
        assert ids(pool.free_block_queue) == ids(order)

    def test_a_block_nobody_can_ask_for_goes_before_all_cached_ones(self) -> None:
        pool = BlockPool(4, enable_caching=True)
        blocks = pool.get_new_blocks(3)
        pool.cache_full_blocks(blocks[:2], [name("a"), name("b")])
        pool.free_blocks(blocks)
        assert ids(pool.free_block_queue) == ids([blocks[2], blocks[0], blocks[1]])
        pool.get_new_blocks(1)
        assert pool.get_cached_block(name("a")) is not None
        assert pool.get_cached_block(name("b")) is not None

    def test_the_first_block_to_hold_a_content_keeps_the_name(self) -> None:
        pool = BlockPool(4, enable_caching=True)
        first, second = pool.get_new_blocks(2)
        pool.cache_full_blocks([first], [name("same")])
        pool.cache_full_blocks([second], [name("same")])
        assert pool.get_cached_block(name("same")) is first
        assert second.block_hash is None

    def test_the_null_block_has_no_content(self) -> None:
        pool = BlockPool(4, enable_caching=True)
        pool.cache_full_blocks([pool.null_block], [name("a")])
        assert pool.get_cached_block(name("a")) is None

    def test_groups_do_not_find_each_others_content(self) -> None:
        pool = BlockPool(4, enable_caching=True, num_groups=2)
        first, second = pool.get_new_blocks(2)
        pool.cache_full_blocks([first], [name("same")], group_id=0)
        assert pool.get_cached_block(name("same"), group_id=1) is None
        pool.cache_full_blocks([second], [name("same")], group_id=1)
        assert pool.get_cached_block(name("same"), group_id=1) is second

    def test_reset_forgets_everything_but_only_while_nothing_is_in_use(self) -> None:
        pool = BlockPool(4, enable_caching=True)
        blocks = pool.get_new_blocks(2)
        pool.cache_full_blocks(blocks[:1], [name("a")])
        assert not pool.reset_prefix_cache()
        assert pool.get_cached_block(name("a")) is blocks[0]
        pool.free_blocks(blocks)
        assert pool.reset_prefix_cache()
        assert pool.get_cached_block(name("a")) is None
        assert blocks[0].block_hash is None

    def test_usage_is_the_share_of_blocks_held(self) -> None:
        pool = BlockPool(5, enable_caching=True)
        assert pool.usage == 0
        blocks = pool.get_new_blocks(1)
        assert pool.usage == 0.25
        pool.free_blocks(blocks)
        assert pool.usage == 0

    def test_a_log_sees_blocks_freed_and_evicted_from_when_it_is_attached(self) -> None:
        pool = BlockPool(2, enable_caching=True)
        block = pool.get_new_blocks(1)
        pool.cache_full_blocks(block, [name("a")])
        pool.log = BlockPoolLog()
        pool.free_blocks(block)
        assert (pool.log.freed, pool.log.evicted) == ([1], [])
        pool.get_new_blocks(1)
        assert (pool.log.freed, pool.log.evicted) == ([1], [1])
