"""A sliding-window group: keeps exactly the blocks that are read, and hits exactly what it can go on from."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.day04 import (
    CONCEPTS,
    CheckedMemory,
    admit,
    make_manager,
    make_request,
    name_of,
    table,
)
from support.work import lines_executed

from learnvllm.kv_cache.block_pool import BlockPool
from learnvllm.scheduling.toy import make_spec
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
SlidingWindowManager = subject.SlidingWindowManager

READ = f"Read {CONCEPTS}#windows."


@pytest.fixture(autouse=True)
def _in_the_engine(monkeypatch):
    """KVCacheManager builds its window groups from the class under grading."""
    monkeypatch.setattr("learnvllm.kv_cache.single_type_manager.SlidingWindowManager", SlidingWindowManager)


def window_manager(window, block_size=4, num_blocks=40, group_id=0):
    pool = BlockPool(num_blocks, True, num_groups=group_id + 1)
    return SlidingWindowManager(make_spec(block_size, window), pool, group_id, 16), pool


def blocks_of(first, end, block_size):
    """Indices of the blocks in which positions first to end - 1 lie."""
    return list(range(first // block_size, -(-end // block_size)))


def kept(manager, request, group=0):
    return [index for index, block_id in enumerate(table(manager, request, group)) if block_id]


@pytest.mark.points(2)
@pytest.mark.parametrize(
    ("window", "computed", "skipped"), [(4, 0, 0), (4, 3, 0), (4, 4, 1), (6, 16, 11), (1, 5, 5), (1, 0, 0)]
)
def test_the_next_token_reads_itself_and_the_window_before_it(window, computed, skipped):
    manager, _ = window_manager(window)
    got = manager.get_num_skipped_tokens(computed)
    assert got == skipped, (
        f"Window {window}, {computed} tokens computed: the next token, at position {computed}, reads "
        f"positions {max(computed - window + 1, 0)} to {computed}. So {skipped} leading tokens are skipped, "
        f"not {got}. {READ}"
    )


@pytest.mark.points(1)
def test_a_block_with_one_token_still_read_stays():
    manager = make_manager(40, windows=(6,))
    request = make_request("a", range(16))
    admit(manager, request)
    for token, expected in ((16, [2, 3, 4]), (17, [3, 4])):
        request.append_output_token_ids([token])
        manager.allocate_slots(request, 1)
        computed = request.num_computed_tokens
        request.num_computed_tokens += 1
        assert kept(manager, request) == expected, (
            f"Window 6, blocks of 4, {computed} tokens computed: positions {computed - 5} to {computed} are "
            f"read, so entries {expected} of the table must hold blocks and the rest the null block; they "
            f"are {kept(manager, request)}. The window need not begin at a block boundary."
        )


@pytest.mark.points(2)
@given(
    window=st.integers(1, 12),
    block_size=st.integers(1, 5),
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=10),
)
def test_exactly_the_blocks_that_are_read_are_kept(window, block_size, chunks):
    manager = make_manager(200, block_size, (window,), max_step_tokens=9)
    request = make_request("a", range(sum(chunks)), block_size)
    for chunk in chunks:
        computed = request.num_computed_tokens
        assert manager.allocate_slots(request, chunk) is not None, (
            f"Window {window}, blocks of {block_size}, {computed} tokens computed: room for {chunk} more was "
            f"refused, with {manager.block_pool.get_num_free_blocks()} blocks free."
        )
        expected = blocks_of(max(computed - window + 1, 0), computed + chunk, block_size)
        assert kept(manager, request) == expected, (
            f"Window {window}, blocks of {block_size}, {computed} tokens computed, {chunk} to come: entries "
            f"{expected} are read or written, {kept(manager, request)} hold blocks. One too many wastes "
            f"memory, one too few is read as garbage. {READ}"
        )
        request.num_computed_tokens += chunk
        manager.check_invariants([request])
    manager.free(request)
    assert manager.usage == 0, (
        "After the request every block is free again, and none was freed twice: usage 0, not "
        f"{manager.usage:.2f}."
    )


@pytest.mark.points(1)
def test_a_long_generation_lives_in_three_blocks():
    manager = make_manager(num_blocks=4, windows=(8,), max_step_tokens=1)
    request = make_request("a", [0])
    admit(manager, request)
    for token in range(100):
        request.append_output_token_ids([token])
        assert manager.allocate_slots(request, 1) is not None, (
            f"Window 8, blocks of 4: 3 blocks suffice for ever, but token {request.num_tokens} found none. "
            "What left the window must be freed, not only forgotten."
        )
        request.num_computed_tokens += 1


@pytest.mark.points(1)
def test_a_step_does_not_look_again_at_what_left_long_ago():
    manager, _ = window_manager(window=8, block_size=2, num_blocks=12)
    manager.allocate_new_computed_blocks("a", [])
    tokens = 1000

    def generate():
        for computed in range(tokens):
            manager.remove_skipped_blocks("a", computed)
            manager.allocate_new_blocks("a", computed + 1)

    lines = lines_executed(subject.__file__, generate)
    allowed = 60 * tokens
    assert lines <= allowed, (
        f"{tokens:,} tokens, one a step, with a window of 8 and blocks of 2: {lines:,} lines of your file "
        f"were executed, {lines // tokens} a step; {allowed // tokens} a step are allowed. Entries that hold "
        "the null block already need no second look: walk from the newest skipped entry towards the front "
        f"and stop at the first null block, or each step costs more than the one before. {READ}"
    )


@pytest.mark.points(1)
def test_what_left_the_window_is_still_found_and_its_end_is_evicted_first():
    manager = make_manager(num_blocks=20, windows=(4,))
    request = make_request("a", range(20))
    admit(manager, request)
    before = table(manager, request)
    request.append_output_token_ids([20])
    manager.allocate_slots(request, 1)
    freed = [b.block_id for b in manager.block_pool.free_block_queue if b.block_hash is not None]
    expected = before[:4][::-1]
    assert freed == expected, (
        f"Blocks {before[:4]} left the window at once. They keep their content, and stand in the free queue "
        f"with the newest first, {expected}: the beginning of a prompt is more likely to be asked for again. "
        f"The queue has {freed}."
    )
    manager.coordinator.managers[0].remove_skipped_blocks("nobody", 100)


@pytest.mark.points(2)
def test_a_hit_needs_only_the_blocks_that_the_window_reads():
    """Fault 26: vLLM #55766, #57610, #48435."""
    manager, pool = window_manager(6)
    blocks = pool.get_new_blocks(2)
    names = [name_of(i) for i in range(5)]
    pool.cache_full_blocks(blocks, names[2:4])
    got = manager.find_longest_cache_hit(names, 5)
    assert [b.block_id for b in got] == [0, 0, *[b.block_id for b in blocks]], (
        "Window 6, blocks of 4; only blocks 2 and 3 of 5 are cached. After them the next token, at position "
        "16, reads 11 to 16: blocks 2 and 3. So the hit is 4 blocks, null blocks first: [0, 0, "
        f"{blocks[0].block_id}, {blocks[1].block_id}]; got {[b.block_id for b in got]}. {READ}"
    )
    short = manager.find_longest_cache_hit(names, 3)
    assert short == [], (
        "At most 3 blocks may be taken: after 3 the next token, at position 12, reads from 7 on, which is in "
        f"block 1, and that is not cached. Nothing can be taken, got {[b.block_id for b in short]}."
    )


@pytest.mark.points(1)
def test_a_short_row_counts_only_at_the_very_beginning():
    manager, pool = window_manager(13)
    names = [name_of(i) for i in range(4)]
    (first,) = pool.get_new_blocks(1)
    pool.cache_full_blocks([first], names[:1])
    got = manager.find_longest_cache_hit(names, 4)
    assert got == [first], (
        "A window of 13 reads 3 blocks back, but after 1 block there is only that one: a row that begins at "
        f"block 0 is whole. Expected block {first.block_id}, got {[b.block_id for b in got]}."
    )
    one, _ = window_manager(1)
    all_null = one.find_longest_cache_hit(names, 4)
    assert [b.block_id for b in all_null] == [0] * 4, (
        "A window of 1 reads only the token itself: it can go on from any 4 blocks without having one of "
        f"them: expected the null block four times, [0, 0, 0, 0], got {[b.block_id for b in all_null]}."
    )


@pytest.mark.points(2)
@settings(max_examples=200)
@given(
    window=st.integers(1, 12),
    block_size=st.integers(1, 4),
    cached=st.sets(st.integers(0, 7)),
    limit=st.integers(0, 10),
)
def test_a_hit_is_the_longest_table_from_which_one_can_go_on(window, block_size, cached, limit):
    manager, pool = window_manager(window, block_size, group_id=1)
    names = [name_of(i) for i in range(8)]
    for index in sorted(cached):
        pool.cache_full_blocks(pool.get_new_blocks(1), [names[index]], 1)
    got = manager.find_longest_cache_hit(names, limit)

    def needed(count):
        end = count * block_size
        return set(blocks_of(max(end - window + 1, 0), end, block_size))

    best = next(n for n in range(min(limit, 8), -1, -1) if needed(n) <= cached)
    assert len(got) == best, (
        f"Window {window}, blocks of {block_size}, blocks {sorted(cached)} of 8 cached, at most {limit}: one "
        f"can go on from {best} blocks (which needs {sorted(needed(best))}), the hit has {len(got)}. {READ}"
    )
    for index, block in enumerate(got):
        expected = pool.get_cached_block(names[index], 1) if index in needed(best) else pool.null_block
        assert block is expected, (
            f"Window {window}, blocks of {block_size}, cached {sorted(cached)}: entry {index} of the hit "
            f"must be {'block ' + str(expected.block_id) if index in needed(best) else 'the null block'}, it "
            f"is {block.block_id}."
        )


class WindowMachine(RuleBasedStateMachine):
    """Requests over a full and a sliding group: whatever they read must have been written for them."""

    windows = (None, 5)

    def __init__(self):
        super().__init__()
        self.manager = make_manager(13, 2, self.windows, max_step_tokens=6)
        self.memory = CheckedMemory(self.manager, self.windows)
        self.running, self.count = [], 0

    @rule(kind=st.integers(0, 1), length=st.integers(1, 14))
    def admit(self, kind, length):
        self.count += 1
        request = make_request(f"r{self.count}", [kind, *range(length - 1)], 2)
        blocks, num_hit = self.manager.get_computed_blocks(request)
        chunk = min(6, length - num_hit)
        if self.manager.allocate_slots(request, chunk, blocks, num_hit) is not None:
            request.num_computed_tokens = num_hit
            self.running.append(request)
            self.compute(request, chunk)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), chunk=st.integers(1, 6))
    def go_on(self, data, chunk):
        request = data.draw(st.sampled_from(self.running), label="request")
        if request.num_computed_tokens == request.num_tokens:
            request.append_output_token_ids([request.num_tokens % 3])
        chunk = min(chunk, request.num_tokens - request.num_computed_tokens)
        if self.manager.allocate_slots(request, chunk) is not None:
            self.compute(request, chunk)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data):
        request = data.draw(st.sampled_from(self.running), label="request")
        self.running.remove(request)
        self.manager.free(request)

    def compute(self, request, count):
        start = request.num_computed_tokens
        self.memory.compute(request, start, start + count)
        request.num_computed_tokens = start + count

    @invariant()
    def owners_agree(self):
        self.manager.check_invariants(self.running)


@pytest.mark.points(2)
def test_window_and_prefix_hits_together_read_only_what_was_written():
    run_state_machine_as_test(WindowMachine, settings=settings(max_examples=30, stateful_step_count=20))
