"""Segmented eviction: what was found again outlives what was not, and nothing else changes."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnvllm.kv_cache.block_pool import BlockPool, KVCacheBlock
from learnvllm.kv_cache.eviction import SegmentedFreeQueue
from learnvllm.kv_cache.manager import KVCacheManager
from learnvllm.scheduling.toy import make_kv_cache
from tests.kv_cache.helpers import admit, make_request
from tests.scheduling.fake_runner import SchedulerLoop, make_config, oracle


def ids(blocks) -> list[int]:
    return [block.block_id for block in blocks]


class Model:
    """The two segments as lists of ids."""

    def __init__(self, blocks: list[int], max_protected: int) -> None:
        self.probation, self.protected, self.max_protected = blocks, [], max_protected

    def append(self, block: int, reused: bool) -> None:
        (self.protected if reused else self.probation).append(block)
        while len(self.protected) > self.max_protected:
            self.probation.append(self.protected.pop(0))

    def popleft(self) -> int:
        return (self.probation or self.protected).pop(0)

    def remove(self, block: int) -> None:
        (self.probation if block in self.probation else self.protected).remove(block)


@given(
    st.integers(0, 8), st.floats(0, 1), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 7)), max_size=40)
)
def test_it_behaves_as_two_lists(num_blocks: int, share: float, steps: list[tuple[int, int]]) -> None:
    blocks = [KVCacheBlock(i) for i in range(num_blocks)]
    queue, model = SegmentedFreeQueue(blocks, share), Model(list(range(num_blocks)), int(share * num_blocks))
    taken: list[KVCacheBlock] = []
    for kind, pick in steps:
        if kind == 0 and queue.num_free_blocks:
            taken.append(queue.popleft())
            assert taken[-1].block_id == model.popleft()
        elif kind == 1 and queue.num_free_blocks:
            block = list(queue)[pick % queue.num_free_blocks]
            queue.remove(block)
            model.remove(block.block_id)
            taken.append(block)
        elif kind >= 2 and taken:
            block = taken.pop(pick % len(taken))
            block.reused = kind == 3
            if pick == 0:
                queue.appendleft(block)
                model.probation.insert(0, block.block_id)
            else:
                queue.append(block)
                model.append(block.block_id, kind == 3)
        assert ids(queue) == model.probation + model.protected
        assert queue.num_free_blocks == len(ids(queue))
        assert all((block in queue) == (block not in taken) for block in blocks)


def test_an_empty_queue_says_so_and_a_block_outside_cannot_be_removed() -> None:
    queue = SegmentedFreeQueue()
    with pytest.raises(IndexError):
        queue.popleft()
    for reused in (False, True):
        with pytest.raises(RuntimeError):
            queue.remove(KVCacheBlock(1, reused=reused))


def make_manager(num_blocks: int, eviction: str) -> KVCacheManager:
    return KVCacheManager(make_kv_cache(num_blocks, 4), eviction=eviction)  # type: ignore[arg-type]


def serve(manager: KVCacheManager, name: str, tokens: list[int]) -> int:
    request = make_request(name, tokens)
    num_hit, _ = admit(manager, request)
    manager.check_invariants([request])
    manager.free(request)
    manager.check_invariants([])
    return num_hit


@pytest.mark.parametrize(("eviction", "expected"), [("lru", 0), ("segmented", 16)])
def test_a_flood_does_not_push_out_what_was_asked_for_twice(eviction: str, expected: int) -> None:
    manager = make_manager(21, eviction)
    prefix = list(range(16))
    serve(manager, "a", [*prefix, 100])
    assert serve(manager, "b", [*prefix, 101]) == 16
    for i in range(10):
        serve(manager, f"flood {i}", list(range(1000 * (i + 1), 1000 * (i + 1) + 40)))
    assert serve(manager, "c", [*prefix, 102]) == expected


def test_what_went_out_of_use_leaves_in_the_end() -> None:
    manager = make_manager(21, "segmented")
    old, new = list(range(32)), list(range(500, 540))  # 8 and 10 blocks; 10 may be protected
    for round_, prefix in enumerate([old, old, new, new, new]):
        serve(manager, f"r{round_}", [*prefix, 1000 + round_])
    for i in range(4):
        serve(manager, f"flood {i}", list(range(2000 * (i + 1), 2000 * (i + 1) + 40)))
    assert serve(manager, "new", [*new, 9]) == 40
    assert serve(manager, "old", [*old, 9]) == 0


def test_reset_forgets_reuse_too() -> None:
    manager = make_manager(9, "segmented")
    serve(manager, "a", list(range(9)))
    serve(manager, "b", list(range(9)))
    assert any(block.reused for block in manager.block_pool.blocks)
    assert manager.reset_prefix_cache()
    assert not any(block.reused for block in manager.block_pool.blocks)
    manager.check_invariants([])
    assert serve(manager, "c", list(range(9))) == 0


def test_what_a_preempted_request_takes_back_is_not_reused() -> None:
    manager = make_manager(21, "segmented")
    serve(manager, "others", list(range(9)))  # two blocks of 4
    serve(manager, "others again", list(range(9)))
    request = make_request("r", range(17))  # two more of its own
    admit(manager, request, 16)
    manager.free(request)  # as preemption does
    request.num_preemptions, request.num_computed_tokens = 1, 0
    assert admit(manager, request)[0] == 16
    assert [block.reused for block in manager.get_blocks("r").blocks[0]] == [True, True, False, False, False]
    manager.free(request)
    other = make_request("s", range(17))
    admit(manager, other)
    assert [block.reused for block in manager.get_blocks("s").blocks[0]][:4] == [True] * 4


def test_a_block_handed_out_again_begins_anew() -> None:
    pool = BlockPool(3, enable_caching=True, free_queue=SegmentedFreeQueue)
    (block,) = pool.get_new_blocks(1)
    pool.cache_full_blocks([block], [b"a"])
    pool.touch([block])
    pool.free_blocks([block, block])
    assert block.reused
    assert block in pool.get_new_blocks(2)
    assert not block.reused


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_tokens_do_not_depend_on_the_order_of_eviction(async_scheduling: bool) -> None:
    config = make_config(num_blocks=20, max_num_batched_tokens=16)
    cache = dataclasses.replace(config.cache_config, prefix_cache_eviction="segmented")
    config = dataclasses.replace(config, cache_config=cache)
    loop = SchedulerLoop(config, async_scheduling=async_scheduling)
    rng = random.Random(0)
    prompts = {}
    for i in range(30):
        begin = [7] * 12 if rng.random() < 0.5 else []
        prompts[str(i)] = begin + [rng.randrange(50) for _ in range(rng.randrange(1, 20))]
        loop.add(str(i), prompts[str(i)], max_tokens=5)
        loop.step()
    while loop.scheduler.has_requests():
        loop.step()
    assert isinstance(loop.scheduler.kv_cache_manager.block_pool.free_block_queue, SegmentedFreeQueue)
    for name, prompt in prompts.items():
        assert loop.tokens[name] == oracle(prompt, 5)[0]
