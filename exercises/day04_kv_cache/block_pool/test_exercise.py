"""The block pool: every block is held or free, and every name leads to the block that has it."""

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
from support.day04 import CONCEPTS, make_manager, name_of, serve

from learnvllm.kv_cache.block_pool import BlockPoolLog
from learnvllm.kv_cache.eviction import SegmentedFreeQueue
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
BlockPool = subject.BlockPool

READ = f"Read {CONCEPTS}#the-mental-model."


def ids(blocks):
    return [block.block_id for block in blocks]


def pool_with_names(*contents, num_blocks=None):
    """A pool whose blocks have been held once, named by content, and let go in that order."""
    pool = BlockPool(num_blocks or len(contents) + 1, True)
    blocks = pool.get_new_blocks(len(contents))
    pool.cache_full_blocks(blocks, [name_of(content) for content in contents])
    pool.free_blocks(blocks)
    return pool, blocks


@pytest.mark.points(1)
def test_blocks_are_handed_out_with_one_reference_each_and_never_the_null_block():
    pool = BlockPool(5, True)
    blocks = pool.get_new_blocks(4)
    assert sorted(ids(blocks)) == [1, 2, 3, 4], (
        f"A pool of 5 has 4 blocks to hand out, 1 to 4; it gave {sorted(ids(blocks))}. Block 0 is the null "
        f"block: it stands in tables where no KV is needed and is nobody's. Read {CONCEPTS}#windows."
    )
    assert [block.ref_count for block in blocks] == [1] * 4, (
        f"Each block handed out has one holder, so ref_count 1; got {[b.ref_count for b in blocks]}."
    )
    assert pool.usage == 1.0
    assert pool.get_num_free_blocks() == 0


@pytest.mark.points(1)
def test_too_many_wanted_is_refused_and_nothing_is_taken():
    pool = BlockPool(4, True)
    held = pool.get_new_blocks(1)
    with pytest.raises(RuntimeError):
        pool.get_new_blocks(3)
    assert pool.get_num_free_blocks() == 2, (
        f"3 blocks wanted, 2 free: refused, and 2 must still be free, not {pool.get_num_free_blocks()}. A "
        "request that is refused waits and asks again; blocks taken on the way would be lost for good."
    )
    assert len(pool.get_new_blocks(2)) == 2, "Exactly as many as are free must be possible."
    assert held[0].ref_count == 1


@pytest.mark.points(2)
def test_a_free_block_is_found_until_it_is_handed_out_and_then_never_again():
    """Fault 20 (nano-vllm #163): a stale name gives one user the KV of another."""
    pool, (block,) = pool_with_names("a")
    assert pool.get_cached_block(name_of("a")) is block, (
        "A block that nobody holds keeps its content and its name: the free memory *is* the prefix cache. "
        f"Expected block {block.block_id} under its name, got {pool.get_cached_block(name_of('a'))}. {READ}"
    )
    (again,) = pool.get_new_blocks(1)
    assert again is block
    found = pool.get_cached_block(name_of("a"))
    assert found is None, (
        f"Block {block.block_id} has been handed out to somebody who will overwrite it, but its old name "
        "still leads to it. The next request with that prefix would read another request's KV (nano-vllm "
        f"#163). Forget the name before the block is given away. {READ}"
    )
    assert block.block_hash is None, (
        "The block itself must forget its name too, or it can never get a new one."
    )
    pool.cache_full_blocks([block], [name_of("b")])
    assert pool.get_cached_block(name_of("b")) is block


@pytest.mark.points(2)
def test_a_shared_block_is_free_when_its_last_holder_leaves():
    pool, (block,) = pool_with_names("a", num_blocks=4)
    pool.touch([block])
    pool.touch([block])
    assert block.ref_count == 2, f"Two hits, two holders: ref_count must be 2, not {block.ref_count}."
    assert pool.get_num_free_blocks() == 2, (
        f"A block in use is not free: 3 usable, 1 held, so 2 free, not {pool.get_num_free_blocks()}. A hit "
        "takes the block out of the queue, or the next request would be given it while it is being read."
    )
    pool.free_blocks([block])
    assert block not in ids(pool.free_block_queue)
    assert pool.get_num_free_blocks() == 2, "One of two holders has left: the other still reads the block."
    pool.free_blocks([block])
    assert pool.get_num_free_blocks() == 3
    with pytest.raises(RuntimeError):
        pool.free_blocks([block])
    assert block.ref_count == 0, f"What is refused changes nothing: nobody holds it, not {block.ref_count}."


@pytest.mark.points(2)
def test_what_was_unused_for_longest_is_evicted_first_and_blocks_without_a_name_before_it():
    pool, (a, b, c) = pool_with_names("a", "b", "c", num_blocks=5)
    pool.touch([a])
    pool.free_blocks([a])
    (anonymous,) = pool.get_new_blocks(1)
    pool.free_blocks([anonymous])
    order = ids(pool.get_new_blocks(4))
    expected = ids([anonymous, b, c, a])
    assert order == expected, (
        f"Blocks {ids([a, b, c])} with content went free in this order, then block {a.block_id} was used "
        f"again, then block {anonymous.block_id}, which has no name, went free. They must be handed out as "
        f"{expected}: what nobody can ask for goes first, then the content unused for longest. "
        f"Got {order}. Read {CONCEPTS}#eviction."
    )


@pytest.mark.points(1)
def test_one_name_belongs_to_one_block_and_the_first_keeps_it():
    pool = BlockPool(4, True)
    first, second, third = pool.get_new_blocks(3)
    pool.cache_full_blocks([first], [name_of("a")])
    pool.cache_full_blocks([second, third], [name_of("a"), name_of("c")])
    assert pool.get_cached_block(name_of("a")) is first, "Two blocks, one content: the first keeps the name."
    assert second.block_hash is None, (
        f"Block {second.block_id} offered a name that block {first.block_id} already has, so it stays "
        "anonymous. With the name on both, evicting one would delete the name of the other."
    )
    assert pool.get_cached_block(name_of("c")) is third, (
        "Two requests began alike and part in the third block's content: that it comes behind a block whose "
        "name was taken is no reason to leave it anonymous."
    )
    pool.free_blocks([second])
    assert pool.get_new_blocks(1) == [second]
    assert pool.get_cached_block(name_of("a")) is first
    with pytest.raises(RuntimeError):
        pool.cache_full_blocks([first], [name_of("b")])


@pytest.mark.points(1)
def test_groups_have_names_of_their_own_and_the_null_block_has_none():
    pool = BlockPool(4, True, num_groups=2)
    full, window = pool.get_new_blocks(2)
    pool.cache_full_blocks([full], [name_of("a")], 0)
    pool.cache_full_blocks([pool.null_block, window], [name_of("x"), name_of("a")], 1)
    found = [pool.get_cached_block(name_of("a"), group) for group in (0, 1)]
    assert found == [full, window], (
        "The same tokens have different KV in each cache group, so each group has names of its own: expected "
        f"blocks {ids([full, window])} for groups 0 and 1, got {found}."
    )
    assert pool.get_cached_block(name_of("x"), 1) is None, (
        "The null block holds nothing, so nothing may lead to it."
    )
    assert pool.null_block.block_hash is None
    pool.touch([pool.null_block])
    pool.free_blocks([pool.null_block])
    assert pool.null_block.ref_count == 0
    pool.free_blocks([full])
    pool.get_new_blocks(2)
    assert pool.get_cached_block(name_of("a"), 1) is window, "Evicting in group 0 must leave group 1 alone."


@pytest.mark.points(1)
def test_reset_forgets_everything_but_only_while_nothing_is_held():
    pool, (a, b) = pool_with_names("a", "b")
    pool.touch([a])
    refused = pool.reset_prefix_cache()
    assert refused is False, "While a request holds a block, reset_prefix_cache() returns False."
    assert pool.get_cached_block(name_of("b")) is b, "... and forgets nothing."
    pool.free_blocks([a])
    assert pool.reset_prefix_cache() is True
    assert [pool.get_cached_block(name_of(x)) for x in "ab"] == [None, None]
    assert not any(block.reused for block in pool.blocks), "Reuse is forgotten with the content."
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(blocks, [name_of("c"), name_of("d")])
    assert pool.get_cached_block(name_of("c")) is blocks[0], "After a reset the pool works as a new one."
    two = BlockPool(3, True, num_groups=2)
    held = two.get_new_blocks(2)
    for group, block in enumerate(held):
        two.cache_full_blocks([block], [name_of("a")], group)
    two.free_blocks(held)
    assert two.reset_prefix_cache() is True
    left = [group for group in (0, 1) if two.get_cached_block(name_of("a"), group)]
    assert not left, f"Reset forgets the names of every group; those of group {left} still lead somewhere."


@pytest.mark.points(1)
def test_a_log_and_other_orders_of_eviction_are_told_what_happens():
    pool = BlockPool(3, True, free_queue=SegmentedFreeQueue)
    a, b = pool.get_new_blocks(2)
    pool.cache_full_blocks([a, b], [name_of("a"), name_of("b")])
    pool.log = BlockPoolLog()
    pool.free_blocks([a, b])
    pool.touch([a])
    assert (a.reused, b.reused) == (True, False), (
        "touch() is a prefix hit: it marks the block as reused, for eviction orders that favour such content."
    )
    pool.touch([a])
    pool.free_blocks([a])  # somebody still holds it: not freed yet
    pool.free_blocks([a])
    assert pool.get_new_blocks(2) == [b, a], "With the segmented queue the block found again goes last."
    assert (pool.log.freed, pool.log.evicted) == (ids([a, b, a]), ids([b, a])), (
        f"The log must have seen freed={ids([a, b, a])} and evicted={ids([b, a])}, it has {pool.log}."
    )
    assert not a.reused, "A block handed out holds new content, which nobody has found yet."


class PoolMachine(RuleBasedStateMachine):
    """Requests come, share, name and go; a dictionary and a list say what must be."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(6, True, num_groups=2)
        self.refs = dict.fromkeys(range(1, 6), 0)
        self.names = {}  # block id -> (group, content)
        self.named_free = []  # ids of free blocks with content, next out first
        self.done = []

    def block(self, block_id):
        return self.pool.blocks[block_id]

    @rule(count=st.integers(0, 3))
    def take(self, count):
        free = [i for i, refs in self.refs.items() if refs == 0]
        self.done.append(f"get_new_blocks({count})")
        if count > len(free):
            with pytest.raises(RuntimeError):
                self.pool.get_new_blocks(count)
            return
        anonymous = {i for i in free if i not in self.names}
        got = ids(self.pool.get_new_blocks(count))
        first = got[: len(anonymous)]
        assert set(first) <= anonymous, self.say(f"blocks without a name {anonymous} go first, it gave {got}")
        rest = self.named_free[: count - len(first)]
        assert got[len(first) :] == rest, self.say(f"then content unused for longest, {rest}; it gave {got}")
        for block_id in got:
            self.refs[block_id] = 1
            if self.names.pop(block_id, None):
                self.named_free.remove(block_id)

    @precondition(lambda self: any(self.refs.values()))
    @rule(data=st.data())
    def free(self, data):
        held = [i for i, refs in self.refs.items() if refs]
        order = data.draw(st.lists(st.sampled_from(held), unique=True, min_size=1), label="free_blocks")
        self.done.append(f"free_blocks({order})")
        self.pool.free_blocks([self.block(i) for i in order])
        for block_id in order:
            self.refs[block_id] -= 1
            if not self.refs[block_id] and block_id in self.names:
                self.named_free.append(block_id)

    @precondition(lambda self: self.names)
    @rule(data=st.data())
    def hit(self, data):
        block_id = data.draw(st.sampled_from(sorted(self.names)), label="touch")
        self.done.append(f"touch([{block_id}])")
        self.pool.touch([self.block(block_id), self.pool.null_block])
        if not self.refs[block_id]:
            self.named_free.remove(block_id)
        self.refs[block_id] += 1

    @rule(group=st.integers(0, 1), content=st.integers(0, 3), data=st.data())
    def name(self, group, content, data):
        choice = [i for i, refs in self.refs.items() if refs and i not in self.names]
        if not choice:
            return
        block_id = data.draw(st.sampled_from(choice), label="block")
        self.done.append(f"cache_full_blocks([{block_id}], [{content}], group_id={group})")
        self.pool.cache_full_blocks([self.block(block_id)], [name_of(content)], group)
        if (group, content) not in self.names.values():
            self.names[block_id] = (group, content)

    @rule()
    def reset(self):
        idle = not any(self.refs.values())
        self.done.append("reset_prefix_cache()")
        assert self.pool.reset_prefix_cache() is idle
        if idle:
            self.names, self.named_free = {}, []

    @invariant()
    def agrees(self):
        queue = ids(self.pool.free_block_queue)
        for block_id, refs in self.refs.items():
            block = self.block(block_id)
            assert block.ref_count == refs, self.say(
                f"block {block_id} has {refs} holders, not {block.ref_count}"
            )
            assert (block_id in queue) == (refs == 0), self.say(
                f"block {block_id} has {refs} holders and is {'' if block_id in queue else 'not '}in the "
                "free queue"
            )
            named = block_id in self.names
            assert (block.block_hash is not None) == named, self.say(f"block {block_id}: {block}")
        for group in (0, 1):
            for content in range(4):
                found = self.pool.get_cached_block(name_of(content), group)
                owner = [i for i, name in self.names.items() if name == (group, content)]
                assert ([] if found is None else [found.block_id]) == owner, self.say(
                    f"content {content} of group {group} is in block {owner or 'none'}, the pool finds "
                    f"{found}"
                )
        assert [i for i in queue if i in self.names] == self.named_free, self.say(
            f"content must be evicted in the order {self.named_free}, the queue is {queue}"
        )

    def say(self, what):
        return (
            f"After {'; '.join(self.done[-8:])}: {what}. Invariants: in the queue exactly when nobody holds "
            "it; a name leads to a block exactly when the block has it; least recently used goes first. "
            f"{READ}"
        )


@pytest.mark.points(3)
def test_any_life_of_a_pool_keeps_blocks_queue_and_names_in_agreement():
    run_state_machine_as_test(PoolMachine, settings=settings(max_examples=60, stateful_step_count=25))


@pytest.mark.points(1)
def test_the_whole_manager_runs_on_it(monkeypatch):
    monkeypatch.setattr("learnvllm.kv_cache.coordinator.BlockPool", BlockPool)
    manager = make_manager(num_blocks=8)
    assert isinstance(manager.block_pool, BlockPool)
    prompt = list(range(17))
    assert serve(manager, "a", prompt) == 0
    assert serve(manager, "b", prompt) == 16, (
        "Four full blocks of 4 are found again, the last token is computed."
    )
    serve(manager, "c", range(100, 120))
    found = serve(manager, "d", prompt)
    assert found == 8, (
        "7 usable blocks: another prompt of 5 takes the 3 without a name, then the *end* of the old prefix; "
        f"the first 2 of its 4 blocks (8 tokens) are still found, not {found} tokens."
    )
    manager.check_invariants([])
