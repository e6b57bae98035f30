"""The free queue: a list with O(1) everywhere, whose nodes are the blocks themselves."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.day04 import CONCEPTS
from support.refusal import refuses

from learnvllm.kv_cache.block_pool import KVCacheBlock
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
FreeKVCacheBlockQueue = subject.FreeKVCacheBlockQueue

READ = f"Read {CONCEPTS}#the-mental-model."
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["append", "appendleft", "popleft", "remove"]), st.integers(0, 5)), max_size=30
)


def make(count):
    """`count` blocks, and a queue that holds them in order."""
    blocks = [KVCacheBlock(i) for i in range(count)]
    return blocks, FreeKVCacheBlockQueue(blocks)


def ids(queue):
    """Ids from next out to last out. A chain that bites its own tail is cut, with a word about it."""
    found = []
    for block in queue:
        found.append(block.block_id)
        assert len(found) <= 100, (
            f"Following next_free from the front never arrives at the tail: {found[:8]} ... A block points "
            f"back to one before it. {READ}"
        )
    return found


def check_holds(queue, expected, did):
    """The queue holds the blocks `expected`, in that order, and every pointer and the count say the same."""
    wanted = [block.block_id for block in expected]
    assert ids(queue) == wanted, f"After {did} the queue must hold {wanted}, it holds {ids(queue)}. {READ}"
    assert queue.num_free_blocks == len(wanted), (
        f"After {did} the queue holds {len(wanted)} blocks, num_free_blocks says {queue.num_free_blocks}. "
        "The pool promises blocks by this number: it must be right after every operation."
    )
    for left, right in pairwise(expected):
        assert right.prev_free is left, (
            f"After {did} block {left.block_id}.next_free is block {right.block_id}, but block "
            f"{right.block_id}.prev_free is {right.prev_free}. Invariant: a.next_free is b exactly when "
            f"b.prev_free is a; without it the next removal tears the chain. {READ}"
        )


def check_outside(block, queue, did):
    """A block that left shows it, so that nobody has to search for it."""
    assert block.prev_free is None, f"After {did} the block still has prev_free = {block.prev_free}."
    assert block.next_free is None, f"After {did} the block still has next_free = {block.next_free}."
    assert block not in queue, f"After {did} block {block.block_id} is still said to be `in` the queue."


@pytest.mark.points(1)
def test_blocks_come_out_in_the_order_they_went_in():
    blocks, queue = make(3)
    check_holds(queue, blocks, "FreeKVCacheBlockQueue([0, 1, 2])")
    for left in (3, 2, 1):
        block = queue.popleft()
        assert block is blocks[3 - left], (
            f"popleft() must give block {3 - left}, unused for longest, it gave {block.block_id}. Evicting "
            "any other would throw away content that is more likely to be asked for again."
        )
        check_outside(block, queue, "popleft()")
    check_holds(queue, [], "three popleft()")


@pytest.mark.points(1)
def test_appendleft_puts_a_block_before_all_others():
    blocks, queue = make(2)
    first = KVCacheBlock(9)
    queue.appendleft(first)
    check_holds(queue, [first, *blocks], "appendleft(9) on [0, 1]")
    queue.append(KVCacheBlock(8))
    assert ids(queue) == [9, 0, 1, 8], f"Then append(8) must give [9, 0, 1, 8], not {ids(queue)}."


@pytest.mark.points(1)
@pytest.mark.parametrize("count", [0, 1, 3])
def test_an_empty_queue_says_so(count):
    """Whether it was always empty or has been emptied."""
    _, queue = make(count)
    for _ in range(count):
        queue.popleft()
    refuses(IndexError, queue.popleft, "popleft() of an empty queue must raise IndexError.")
    check_holds(queue, [], "popleft() of an empty queue")


@pytest.mark.points(2)
@given(count=st.integers(1, 6), data=st.data())
def test_a_block_leaves_from_anywhere(count, data):
    """A prefix hit: the block is needed again, wherever in the queue it stands."""
    blocks, queue = make(count)
    index = data.draw(st.integers(0, count - 1), label="index")
    queue.remove(blocks[index])
    did = f"remove({index}) from {list(range(count))}"
    check_outside(blocks[index], queue, did)
    check_holds(queue, [block for block in blocks if block is not blocks[index]], did)


@pytest.mark.points(2)
@given(count=st.integers(1, 4), data=st.data())
def test_a_mistake_is_refused_and_changes_nothing(count, data):
    """In twice, or out twice: a bug of the pool that must not become a torn chain."""
    blocks, queue = make(count)
    outside = KVCacheBlock(9)
    inside = blocks[data.draw(st.integers(0, count - 1), label="index")]
    operation = data.draw(st.sampled_from(["append", "appendleft", "remove"]), label="operation")
    block = outside if operation == "remove" else inside
    did = f"{operation}({block.block_id}) on {list(range(count))}"
    where = "not in the queue" if operation == "remove" else "already in the queue"
    refuses(
        RuntimeError,
        lambda: getattr(queue, operation)(block),
        f"{did}: block {block.block_id} is {where}, so this must raise RuntimeError.",
    )
    check_holds(queue, blocks, f"a refused {did}")
    assert outside not in queue, f"After a refused {did} block 9, which never was in the queue, is `in` it."


@pytest.mark.points(2)
@given(OPERATIONS)
def test_any_sequence_of_operations_gives_what_a_list_gives(operations):
    """The oracle is a Python list, which does the same in O(n)."""
    blocks = [KVCacheBlock(i) for i in range(6)]
    queue, model = FreeKVCacheBlockQueue(), []
    done = []
    for operation, index in operations:
        block = blocks[index]
        if operation == "popleft":
            if not model:
                continue
            done.append("popleft()")
            block = model.pop(0)
            assert queue.popleft() is block, f"{', '.join(done)}: the block to come out is {block.block_id}."
        elif operation == "remove":
            if block not in model:
                continue
            done.append(f"remove({index})")
            queue.remove(block)
            model.remove(block)
        else:
            if block in model:
                continue
            done.append(f"{operation}({index})")
            getattr(queue, operation)(block)
            model.insert(0 if operation == "appendleft" else len(model), block)
        check_holds(queue, model, ", ".join(done))
    for block in blocks:
        if block not in model:
            check_outside(block, queue, ", ".join(done) or "nothing")


@pytest.mark.points(1)
def test_removing_costs_the_same_in_a_long_queue():
    """Counted, not timed: how many blocks' pointers are read to take one out of the middle."""
    reads = Counter()

    class Watched(KVCacheBlock):
        def __getattribute__(self, name):
            if name in ("next_free", "prev_free"):
                reads["pointers"] += 1
            return super().__getattribute__(name)

    costs = {}
    for count in (10, 1000):
        blocks = [Watched(i) for i in range(count)]
        queue = FreeKVCacheBlockQueue(blocks)
        reads.clear()
        queue.remove(blocks[count // 2])
        queue.append(blocks[count // 2])
        costs[count] = reads["pointers"]
    assert costs[1000] <= costs[10] + 10, (
        f"Taking a block out of the middle and appending it reads {costs[10]} pointers in a queue of 10 "
        f"blocks and {costs[1000]} in one of 1000. The block knows its neighbours: nothing is to be searched."
    )
