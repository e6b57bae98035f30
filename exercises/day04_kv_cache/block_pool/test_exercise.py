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
from support.refusal import refuses

from learnvllm.kv_cache.block_pool import BlockPoolLog
from learnvllm.kv_cache.eviction import SegmentedFreeQueue
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
BlockPool = subject.BlockPool

READ = f"Read {CONCEPTS}#the-mental-model."


def ids(blocks):
    return [block.block_id for block in blocks]


def shown(block):
    """A block without its 32 bytes of name."""
    return "no block" if block is None else f"block {getattr(block, 'block_id', block)}"


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
    got = (pool.usage, pool.get_num_free_blocks())
    assert got == (1.0, 0), (
        f"With all blocks handed out (usage, get_num_free_blocks()) must be (1.0, 0), it is {got}."
    )


@pytest.mark.points(1)
def test_too_many_wanted_is_refused_and_nothing_is_taken():
    pool = BlockPool(4, True)
    held = pool.get_new_blocks(1)
    refuses(
        RuntimeError, lambda: pool.get_new_blocks(3), "get_new_blocks(3) with 2 free must raise RuntimeError."
    )
    assert pool.get_num_free_blocks() == 2, (
        f"3 blocks wanted, 2 free: refused, and 2 must still be free, not {pool.get_num_free_blocks()}. A "
        "request that is refused waits and asks again; blocks taken on the way would be lost for good."
    )
    assert len(pool.get_new_blocks(2)) == 2, "Exactly as many as are free must be possible."
    assert held[0].ref_count == 1, (
        "What others were given or refused leaves a block that is held alone: its ref_count must be 1, not "
        f"{held[0].ref_count}."
    )


@pytest.mark.points(2)
def test_a_free_block_is_found_until_it_is_handed_out_and_then_never_again():
    """Fault 20 (nano-vllm #163): a stale name gives one user the KV of another."""
    pool, (block,) = pool_with_names("a")
    assert pool.get_cached_block(name_of("a")) is block, (
        "A block that nobody holds keeps its content and its name: the free memory *is* the prefix cache. "
        f"Expected block {block.block_id} under its name, got {shown(pool.get_cached_block(name_of('a')))}. "
        f"{READ}"
    )
    (again,) = pool.get_new_blocks(1)
    assert again is block, (
        f"A pool with one free block, {block.block_id}, must hand out that one; it gave {again.block_id}."
    )
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
    found = pool.get_cached_block(name_of("b"))
    assert found is block, (
        f"Block {block.block_id} has new content and its name: it must be found under it, got {shown(found)}."
    )


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
    assert block not in pool.free_block_queue, (
        f"One of two holders has left, and block {block.block_id} is in the free queue: the other still "
        "reads it."
    )
    assert pool.get_num_free_blocks() == 2, (
        "One of two holders has left, the other still reads the block: 2 free, not "
        f"{pool.get_num_free_blocks()}."
    )
    pool.free_blocks([block])
    assert pool.get_num_free_blocks() == 3, (
        f"The last holder has left: all 3 usable blocks are free, not {pool.get_num_free_blocks()}."
    )
    refuses(
        RuntimeError,
        lambda: pool.free_blocks([block]),
        f"free_blocks([{block.block_id}]), which nobody holds any more, must raise RuntimeError.",
    )
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
    found = pool.get_cached_block(name_of("a"))
    assert found is first, (
        f"Two blocks, one content: the first, {first.block_id}, keeps the name, which leads to "
        f"{shown(found)}."
    )
    assert second.block_hash is None, (
        f"Block {second.block_id} offered a name that block {first.block_id} already has, so it stays "
        "anonymous. With the name on both, evicting one would delete the name of the other."
    )
    assert pool.get_cached_block(name_of("c")) is third, (
        "Two requests began alike and part in the third block's content: that it comes behind a block whose "
        "name was taken is no reason to leave it anonymous."
    )
    pool.free_blocks([second])
    got = ids(pool.get_new_blocks(1))
    assert got == [second.block_id], (
        f"Block {second.block_id} is the only free one and must be handed out, got {got}."
    )
    found = pool.get_cached_block(name_of("a"))
    assert found is first, (
        f"Block {second.block_id}, which has no name, was handed out; the name of block {first.block_id} "
        f"must still lead to it, it leads to {shown(found)}."
    )
    refuses(
        RuntimeError,
        lambda: pool.cache_full_blocks([first], [name_of("b")]),
        f"cache_full_blocks([{first.block_id}], ...), a block that has a name already, must raise "
        "RuntimeError.",
    )


@pytest.mark.points(1)
def test_groups_have_names_of_their_own_and_the_null_block_has_none():
    pool = BlockPool(4, True, num_groups=2)
    full, window = pool.get_new_blocks(2)
    pool.cache_full_blocks([full], [name_of("a")], 0)
    pool.cache_full_blocks([pool.null_block, window], [name_of("x"), name_of("a")], 1)
    found = [pool.get_cached_block(name_of("a"), group) for group in (0, 1)]
    assert found == [full, window], (
        "The same tokens have different KV in each cache group, so each group has names of its own: expected "
        f"blocks {ids([full, window])} for groups 0 and 1, got {list(map(shown, found))}."
    )
    assert pool.get_cached_block(name_of("x"), 1) is None, (
        "The null block holds nothing, so nothing may lead to it."
    )
    assert pool.null_block.block_hash is None, "The null block holds nothing, so it gets no name."
    pool.touch([pool.null_block])
    pool.free_blocks([pool.null_block])
    count = pool.null_block.ref_count
    assert count == 0, f"Nobody counts who uses the null block: its ref_count must stay 0, it is {count}."
    pool.free_blocks([full])
    pool.get_new_blocks(2)
    assert pool.get_cached_block(name_of("a"), 1) is window, "Evicting in group 0 must leave group 1 alone."
    pool.free_blocks([window])
    pool.get_new_blocks(1)
    found = pool.get_cached_block(name_of("a"), 1)
    assert found is None, (
        f"Block {window.block_id}, named in group 1, has been handed out: its name must be forgotten in the "
        f"map of its own group, and still leads to {shown(found)}."
    )


@pytest.mark.points(1)
def test_reset_forgets_everything_but_only_while_nothing_is_held():
    pool, (a, b) = pool_with_names("a", "b")
    pool.touch([a])
    refused = pool.reset_prefix_cache()
    assert refused is False, (
        f"While a request holds a block, reset_prefix_cache() must return False; got {refused!r}."
    )
    found = pool.get_cached_block(name_of("b"))
    assert found is b, (
        f"A reset that was refused forgets nothing: block {b.block_id} must be found under its "
        f"name, got {shown(found)}."
    )
    pool.free_blocks([a])
    done = pool.reset_prefix_cache()
    assert done is True, f"When nothing is held, reset_prefix_cache() must return True; got {done!r}."
    found = [pool.get_cached_block(name_of(x)) for x in "ab"]
    assert found == [None, None], (
        f"After a reset no name leads anywhere: expected [None, None], got {list(map(shown, found))}."
    )
    assert not any(block.reused for block in pool.blocks), "Reuse is forgotten with the content."
    blocks = pool.get_new_blocks(2)
    pool.cache_full_blocks(blocks, [name_of("c"), name_of("d")])
    assert pool.get_cached_block(name_of("c")) is blocks[0], "After a reset the pool works as a new one."
    two = BlockPool(3, True, num_groups=2)
    held = two.get_new_blocks(2)
    for group, block in enumerate(held):
        two.cache_full_blocks([block], [name_of("a")], group)
    two.free_blocks(held)
    done = two.reset_prefix_cache()
    assert done is True, f"Nothing is held: reset_prefix_cache() must return True; got {done!r}."
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
        "touch() is a prefix hit: it marks the block as reused, for eviction orders that favour such "
        "content. Expected reused True for the block that was touched and False for the other, got "
        f"{a.reused} and {b.reused}."
    )
    pool.touch([a])
    pool.free_blocks([a])  # somebody still holds it: not freed yet
    pool.free_blocks([a])
    got, expected = ids(pool.get_new_blocks(2)), ids([b, a])
    assert got == expected, (
        f"With the segmented queue the block found again goes last: expected {expected}, got {got}."
    )
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
            rule = f"get_new_blocks({count}) with {len(free)} free must raise RuntimeError."
            refuses(RuntimeError, lambda: self.pool.get_new_blocks(count), self.say(rule))
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
        done = self.pool.reset_prefix_cache()
        assert done is idle, self.say(f"reset_prefix_cache() must return {idle}, it returned {done!r}")
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
            assert (block.block_hash is not None) == named, self.say(
                f"block {block_id} must have {'its' if named else 'no'} name, and has "
                f"{'none' if named else 'one'}"
            )
        for group in (0, 1):
            for content in range(4):
                found = self.pool.get_cached_block(name_of(content), group)
                owner = [i for i, name in self.names.items() if name == (group, content)]
                assert ([] if found is None else [found.block_id]) == owner, self.say(
                    f"content {content} of group {group} is in block {owner or 'none'}, the pool finds "
                    f"{shown(found)}"
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
    assert isinstance(manager.block_pool, BlockPool), (
        f"The manager must run on your BlockPool, it has a {type(manager.block_pool).__module__} one."
    )
    prompt = list(range(17))
    found = [serve(manager, name, prompt) for name in "ab"]
    assert found == [0, 16], (
        "A prompt of 17 tokens twice: at first nothing is found, then four full blocks of 4, and the last "
        f"token is computed: expected [0, 16] tokens, found were {found}."
    )
    serve(manager, "c", range(100, 120))
    found = serve(manager, "d", prompt)
    assert found == 8, (
        "7 usable blocks: another prompt of 5 takes the 3 without a name, then the *end* of the old prefix; "
        f"the first 2 of its 4 blocks (8 tokens) are still found, not {found} tokens."
    )
    manager.check_invariants([])
