"""Segmented eviction: the order of two lists, and what it does to the hit rate."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.day04 import CONCEPTS, make_manager, serve
from support.refusal import refuses

from learnvllm.kv_cache.block_pool import FreeKVCacheBlockQueue, KVCacheBlock
from learnvllm.study import prefix_traces
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
SegmentedFreeQueue = subject.SegmentedFreeQueue

READ = f"Read {CONCEPTS}#eviction."


def ids(blocks):
    return [block.block_id for block in blocks]


def block(block_id, reused=False):
    return KVCacheBlock(block_id, reused=reused)


def drain(queue):
    return ids(queue.popleft() for _ in range(queue.num_free_blocks))


@pytest.mark.points(1)
def test_without_reuse_it_is_plain_lru():
    queue = SegmentedFreeQueue([block(i) for i in range(4)])
    queue.append(block(4))
    queue.appendleft(block(5))
    assert queue.num_free_blocks == 6, f"6 blocks are free, num_free_blocks says {queue.num_free_blocks}."
    assert ids(queue) == [5, 0, 1, 2, 3, 4], f"Nothing was reused: oldest first, got {ids(queue)}."
    came = drain(queue)
    assert came == [5, 0, 1, 2, 3, 4], (
        f"popleft() must follow that order: expected [5, 0, 1, 2, 3, 4], the blocks came as {came}."
    )
    refuses(IndexError, queue.popleft, "popleft() of an empty queue must raise IndexError.")


@pytest.mark.points(2)
def test_what_was_found_again_goes_last():
    queue = SegmentedFreeQueue([block(i) for i in range(4)], protected_share=1.0)
    queue.append(block(10, reused=True))
    for i in (4, 5):
        queue.append(block(i))
    queue.append(block(11, reused=True))
    expected = [0, 1, 2, 3, 4, 5, 10, 11]
    assert ids(queue) == expected, (
        "Blocks 10 and 11 were found again, 4 and 5 were not, although they came later than 10. Expected "
        f"{expected} from next out to last out, got {ids(queue)}. {READ}"
    )
    came = drain(queue)
    assert came == expected, (
        "popleft() must follow the order that iterating shows, and give the protected at last: expected "
        f"{expected}, the blocks came as {came}."
    )


@pytest.mark.points(2)
def test_protection_is_bounded_and_the_oldest_gets_one_more_chance():
    queue = SegmentedFreeQueue([block(i) for i in range(4)], protected_share=0.5)
    assert queue.max_protected == 2, f"Half of 4 blocks is 2, max_protected is {queue.max_protected}."
    reused = [block(10 + i, reused=True) for i in range(3)]
    for each in reused:
        queue.append(each)
    expected = [0, 1, 2, 3, 10, 11, 12]
    assert ids(queue) == expected, (
        "2 may be protected and a third came: the oldest, block 10, goes to the *end* of probation. Expected "
        f"{expected}, got {ids(queue)}. {READ}"
    )
    assert [each.reused for each in reused] == [False, True, True], (
        "Block 10 lost its protection, so it must be found again to be protected again: reused must be False "
        f"for it and True for 11 and 12, got {[each.reused for each in reused]}."
    )
    queue.append(block(4))
    expected = [0, 1, 2, 3, 10, 4, 11, 12]
    assert ids(queue) == expected, (
        f"What comes later stands behind block 10 on probation: expected {expected}, got {ids(queue)}."
    )
    for share, bound in ((0.25, 1), (0.75, 3), (1.0, 4)):
        of_four = SegmentedFreeQueue([block(i) for i in range(4)], protected_share=share).max_protected
        assert of_four == bound, f"A share of {share} of 4 blocks is {bound}, max_protected is {of_four}."
    none = SegmentedFreeQueue([block(0)], protected_share=0.0)
    none.append(block(1, reused=True))
    none.append(block(2))
    assert ids(none) == [0, 1, 2], f"With a share of 0 it is plain LRU, [0, 1, 2]; got {ids(none)}."


@pytest.mark.points(2)
def test_blocks_leave_from_anywhere_and_mistakes_are_refused():
    blocks = [block(i) for i in range(4)]
    queue = SegmentedFreeQueue(blocks)
    protected = block(10, reused=True)
    queue.append(protected)
    for each in (blocks[2], protected):
        assert each in queue, f"Block {each.block_id} was put into the queue, and `in` does not find it."
        queue.remove(each)
        assert each not in queue, (
            f"Block {each.block_id} was removed, and is still said to be `in` the queue."
        )
    assert ids(queue) == [0, 1, 3], (
        f"Blocks 2 and 10 were removed from [0, 1, 2, 3, 10]: expected [0, 1, 3], got {ids(queue)}."
    )
    assert queue.num_free_blocks == 3, f"3 blocks are left, num_free_blocks says {queue.num_free_blocks}."
    for outsider in (blocks[2], protected, block(11, reused=True)):
        rule = f"remove() of block {outsider.block_id}, which is not in the queue, must raise RuntimeError."
        refuses(RuntimeError, lambda block=outsider: queue.remove(block), rule)
    queue.appendleft(protected)
    assert protected.reused is False, (
        "A block that goes to the very front has nothing worth protecting: it is not reused any more, so "
        "that remove() looks for it where it stands."
    )
    queue.remove(protected)
    got = (ids(queue), queue.num_free_blocks)
    assert got == ([0, 1, 3], 3), (
        f"Block 10 came to the front and left again: expected blocks and count ([0, 1, 3], 3), got {got}."
    )


class QueueMachine(RuleBasedStateMachine):
    """The oracle: two Python lists."""

    def __init__(self):
        super().__init__()
        self.blocks = [block(i) for i in range(7)]
        self.queue = SegmentedFreeQueue(self.blocks, protected_share=0.5)
        self.probation, self.protected, self.outside = list(self.blocks), [], []
        self.done = []

    @precondition(lambda self: self.probation or self.protected)
    @rule()
    def popleft(self):
        expected = (self.probation or self.protected).pop(0)
        self.done.append("popleft()")
        got = self.queue.popleft()
        assert got is expected, self.say(f"block {expected.block_id} was next, got {got.block_id}")
        self.outside.append(got)

    @precondition(lambda self: self.probation or self.protected)
    @rule(data=st.data())
    def remove(self, data):
        each = data.draw(st.sampled_from(self.probation + self.protected), label="remove")
        self.done.append(f"remove({each.block_id})")
        (self.protected if each in self.protected else self.probation).remove(each)
        self.queue.remove(each)
        self.outside.append(each)

    @precondition(lambda self: self.outside)
    @rule(data=st.data(), reused=st.booleans(), front=st.sampled_from([False, False, True]))
    def add(self, data, reused, front):
        each = self.outside.pop(data.draw(st.integers(0, len(self.outside) - 1), label="index"))
        each.reused = reused
        self.done.append(f"{'appendleft' if front else 'append'}({each.block_id}, reused={reused})")
        if front:
            self.queue.appendleft(each)
            self.probation.insert(0, each)
            return
        self.queue.append(each)
        (self.protected if reused else self.probation).append(each)
        while len(self.protected) > 3:
            self.probation.append(self.protected.pop(0))

    @invariant()
    def agrees(self):
        expected = ids(self.probation + self.protected)
        assert ids(self.queue) == expected, self.say(f"the order must be {expected}, it is {ids(self.queue)}")
        assert self.queue.num_free_blocks == len(expected), self.say(
            f"{len(expected)} blocks are free, num_free_blocks says {self.queue.num_free_blocks}"
        )
        for each in self.probation + self.protected:
            protected = each in self.protected
            assert each.reused == protected, self.say(
                f"block {each.block_id}: reused must be {protected}, it is {each.reused}"
            )
        wrong = ids(each for each in self.outside if each in self.queue)
        assert not wrong, self.say(f"blocks {wrong} are outside, and said to be `in` the queue")

    def say(self, what):
        return f"7 blocks, 3 may be protected. After {'; '.join(self.done[-8:])}: {what}. {READ}"


@pytest.mark.points(3)
def test_any_sequence_gives_what_two_lists_give():
    run_state_machine_as_test(QueueMachine, settings=settings(max_examples=80, stateful_step_count=30))


@pytest.fixture
def segmented(monkeypatch):
    """KVCacheManagers with eviction "segmented" get the queue under grading."""
    monkeypatch.setattr(
        "learnvllm.kv_cache.coordinator.free_queue_factory",
        lambda eviction: SegmentedFreeQueue if eviction == "segmented" else FreeKVCacheBlockQueue,
    )


@pytest.mark.points(2)
def test_measured_a_flood_does_not_push_out_what_everybody_shares(segmented):
    """Trace 1: three requests of ten share one of 4 system prompts, the rest are documents seen once."""
    rates = {
        eviction: prefix_traces.hit_rate(
            prefix_traces.assistants_and_documents(), prefix_traces.make_manager(81, eviction)
        )
        for eviction in ("lru", "segmented")
    }
    assert rates["segmented"] > 2 * rates["lru"], (
        f"400 prompts, a pool of 80 blocks: LRU finds {rates['lru']:.1%} of the prompt tokens, the segmented "
        f"queue must find more than twice as much and finds {rates['segmented']:.1%}. What was found again "
        f"must outlive what was not. {READ}"
    )


@pytest.mark.points(1)
def test_measured_conversations_lose_little_and_new_favourites_are_taken_in(segmented):
    """Trace 2: conversations, whose old turns are protected although their time is over."""
    chat = prefix_traces.conversations()
    lru = prefix_traces.hit_rate(chat, prefix_traces.make_manager(81))
    rate = prefix_traces.hit_rate(chat, prefix_traces.make_manager(81, "segmented"))
    assert rate > 0.9 * lru, (
        f"Conversations are LRU's home ground: {lru:.1%}. The bound must keep the loss below a tenth; got "
        f"{rate:.1%}."
    )
    shift = prefix_traces.assistants_and_documents(200) + prefix_traces.assistants_and_documents(200, seed=1)
    first = prefix_traces.hit_rate(shift[:200], prefix_traces.make_manager(81, "segmented"))
    both = prefix_traces.hit_rate(shift, prefix_traces.make_manager(81, "segmented"))
    assert both > 0.8 * first, (
        f"After 200 requests all system prompts change. The hit rate must not fall for ever ({first:.1%} "
        f"before, {both:.1%} over both): content that has gone out of use must lose its protection."
    )


@pytest.mark.points(1)
def test_the_pool_stays_whole_whatever_is_evicted(segmented):
    manager = make_manager(12, eviction="segmented")
    for i, prompt in enumerate(prefix_traces.conversations(60)):
        serve(manager, str(i), prompt[:40])
        manager.check_invariants([])
    done = manager.reset_prefix_cache()
    assert done is True, f"Nobody holds a block: reset_prefix_cache() must return True; got {done!r}."
    manager.check_invariants([])
