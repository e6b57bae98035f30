"""The prefix hit and the room behind it, over the reference's pool and tables."""

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
from support.day04 import CONCEPTS, CheckedMemory, admit, make_request, table
from support.day04 import make_manager as make
from support.refusal import refuses

from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
KVCacheManager = subject.KVCacheManager

READ = f"Read {CONCEPTS}#what-a-request-finds."


def make_manager(num_blocks=11, block_size=4, windows=(None,), **options):
    return make(num_blocks, block_size, windows, manager_class=KVCacheManager, **options)


def hit(manager, request):
    """The length of the hit, which must come with as many whole blocks."""
    blocks, num_tokens = manager.get_computed_blocks(request)
    assert all(len(group) * manager.block_size == num_tokens for group in blocks.blocks), (
        f"A hit of {num_tokens} tokens must come with {num_tokens // manager.block_size} blocks per group, "
        f"got {[len(group) for group in blocks.blocks]}."
    )
    return num_tokens


def snapshot(manager):
    """Everything that a refusal must leave alone: by the words for it, its value."""
    pool = manager.block_pool
    found = {}
    for block in pool.blocks:
        found[f"holders of block {block.block_id}"] = block.ref_count
        found[f"name of block {block.block_id}"] = block.block_hash
    found["free queue"] = [block.block_id for block in pool.free_block_queue]
    for request_id, blocks in manager.coordinator.managers[0].req_to_blocks.items():
        found[f"table of {request_id!r}"] = [block.block_id for block in blocks]
    return found


def difference(before, after):
    """What is not the same in two snapshots, and nothing else."""
    keys = [key for key in before | after if before.get(key) != after.get(key)]
    return "; ".join(f"{key}: {short(before.get(key))} became {short(after.get(key))}" for key in keys)


def short(value):
    """A block's name is 32 bytes; the first three tell it from others."""
    return f"{value[:3].hex()}…" if isinstance(value, bytes) else "none" if value is None else value


@pytest.mark.points(1)
def test_the_longest_run_of_whole_blocks_is_found():
    manager = make_manager()
    admit(manager, make_request("a", range(10)))
    seven_equal = make_request("b", [*range(7), 99, 98, 97])
    assert hit(manager, seven_equal) == 4, (
        "7 equal tokens and blocks of 4: one block, 4 tokens, is shared; the rest of the second would be "
        f"another request's. Got {hit(manager, seven_equal)}. {READ}"
    )
    shifted = hit(manager, make_request("c", [9, *range(10)]))
    assert shifted == 0, f"A shifted prompt has no block in common: expected 0 tokens, found {shifted}."


@pytest.mark.points(2)
@pytest.mark.parametrize("block_size", [1, 4])
def test_at_least_one_token_is_left_to_compute(block_size):
    """Fault 9 (nano-vllm #144)."""
    manager = make_manager(40, block_size)
    prompt = range(2 * block_size)
    admit(manager, make_request("a", prompt, block_size))
    again = make_request("b", prompt, block_size)
    found = hit(manager, again)
    assert found == block_size, (
        f"A prompt of {2 * block_size} tokens in blocks of {block_size}, all of it cached: its last token "
        f"must be computed, for its logits choose the next one. So the hit is {block_size} tokens, not "
        f"{found}. {READ}"
    )
    taken = admit(manager, again)
    assert taken == block_size, (
        f"When it is admitted, the same hit of {block_size} tokens is found again, not {taken}."
    )


@pytest.mark.points(1)
def test_who_needs_all_logits_takes_nothing_from_the_cache():
    manager = make_manager()
    admit(manager, make_request("a", range(9)))
    found = hit(manager, make_request("b", range(9), prompt_logprobs=0))
    assert found == 0, (
        "prompt_logprobs needs the logits of every prompt token, so none may be skipped; the hit was "
        f"{found} tokens."
    )
    off = make_manager(enable_caching=False)
    admit(off, make_request("a", range(9)))
    found = hit(off, make_request("b", range(9)))
    assert found == 0, f"With prefix caching off nothing is found: expected 0 tokens, found {found}."


@pytest.mark.points(1)
def test_looking_reserves_nothing():
    manager = make_manager()
    first = make_request("a", range(9))
    admit(manager, first)
    manager.free(first)
    before = snapshot(manager)
    hit(manager, make_request("b", range(9)))
    assert snapshot(manager) == before, (
        "get_computed_blocks only looks. References are taken by allocate_slots. What changed: "
        f"{difference(before, snapshot(manager))}."
    )


@pytest.mark.points(1)
def test_equal_prompts_of_one_step_share():
    manager = make_manager()
    first, second = make_request("a", range(9)), make_request("b", range(9))
    admit(manager, first)
    found = admit(manager, second)
    assert found == 8, (
        "Two equal prompts are admitted in one step, before anything is computed: the second must find 8 "
        f"tokens, not {found}. Blocks get their names when they are allocated; that is safe because in every "
        f"layer all writes of a step come before its reads. Read {CONCEPTS}#names."
    )
    one, other = table(manager, first), table(manager, second)
    assert one[:2] == other[:2], f"Both begin with the same two blocks; the tables are {one} and {other}."
    manager.check_invariants([first, second])


@pytest.mark.points(2)
def test_a_refusal_changes_nothing():
    manager = make_manager(num_blocks=6)
    first, gone = make_request("a", range(8)), make_request("gone", range(50, 58))
    admit(manager, gone)
    manager.free(gone)
    admit(manager, first)
    longer = make_request("b", [*range(50, 58), *range(12)])
    blocks, num_hit = manager.get_computed_blocks(longer)
    assert num_hit == 8, f"Its first 8 tokens, 2 blocks of 4, are cached; the hit is {num_hit} tokens."
    before = snapshot(manager)
    assert manager.allocate_slots(longer, 12, blocks, num_hit) is None, (
        "5 blocks, 2 in use; a request with a hit of 2 (which stand in the free queue) and 3 to add needs 5."
    )
    assert snapshot(manager) == before, (
        "allocate_slots returned None but left something behind (references of the hit, a table, or names of "
        "blocks that nobody will compute). Whoever finds such a name reads memory nobody wrote. What "
        f"changed: {difference(before, snapshot(manager))}. {READ}"
    )
    assert not manager.has_blocks("b"), "'b' was refused, and still has a table of blocks."
    manager.check_invariants([first])


@pytest.mark.points(1)
def test_who_gave_way_finds_its_own_output_again():
    manager = make_manager()
    request = make_request("a", range(6))
    admit(manager, request)
    for token in range(6, 12):
        request.append_output_token_ids([token])
        assert manager.allocate_slots(request, 1) is not None, (
            f"Token {request.num_tokens} of a request needs a block at most, and was refused with "
            f"{manager.block_pool.get_num_free_blocks()} blocks free."
        )
        request.num_computed_tokens += 1
    manager.free(request)
    request.num_computed_tokens, request.num_preemptions = 0, 1
    found = hit(manager, request)
    assert found == 8, (
        "A request with a prompt of 6 tokens and 6 of output gave way and comes back. All of its 12 tokens "
        "are known and its 3 blocks of 4 have names; the last token is left to compute, so the hit is 8 "
        f"tokens, not {found}. To the cache output is text like the prompt: whoever counts the prompt alone "
        f"computes long answers anew after every preemption. {READ}"
    )


@pytest.mark.points(1)
def test_a_hit_in_the_free_queue_is_not_free_for_others():
    manager = make_manager(num_blocks=4)
    first = make_request("a", range(12))
    admit(manager, first)
    manager.free(first)
    longer = make_request("b", range(16))
    blocks, num_hit = manager.get_computed_blocks(longer)
    assert manager.allocate_slots(longer, 4, blocks, num_hit) is None, (
        "3 blocks, all free, all of them the hit: the request needs them and one more, 4 in all. The free "
        "count includes the hit, so the need must include it too: pass the hits on when you count."
    )
    free = manager.block_pool.get_num_free_blocks()
    assert free == 3, f"It was refused, so all 3 blocks must still be free, not {free}."


@pytest.mark.points(2)
def test_reserved_blocks_bind_only_who_takes_blocks():
    manager = make_manager(num_blocks=5)
    request = make_request("a", range(7))
    assert manager.allocate_slots(request, 7, num_reserved_blocks=3) is None, (
        "4 free, 3 reserved for others: a request that needs 2 must wait."
    )
    assert manager.allocate_slots(request, 7, num_reserved_blocks=2) is not None, (
        "4 free, 2 reserved for others: a request that needs 2 can have them, and was refused."
    )
    request.num_computed_tokens = 7
    request.append_output_token_ids([7])
    got = manager.allocate_slots(request, 1, num_reserved_blocks=4)
    assert got is not None, (
        "The 8th token goes into the last slot of a block the request already has. It takes nothing from the "
        "pool, so no reservation may stop it: otherwise it would be preempted for nothing."
    )
    assert got.is_empty, f"No block was added, so none is returned; got {got.get_block_ids()}."
    found = hit(manager, make_request("b", range(9)))
    assert found == 8, (
        "The 8th token was to fill the second block, so from now on whoever begins with these 8 tokens finds "
        f"them all; found were {found}. Blocks get their names whether or not one was added."
    )


@pytest.mark.points(1)
def test_a_first_chunk_waits_when_the_rest_would_not_fit():
    manager = make_manager(num_blocks=4)
    request = make_request("a", range(16))
    assert manager.allocate_slots(request, 4, full_sequence_must_fit=True) is None, (
        "3 blocks are free and the whole prompt of 16 tokens needs 4: with full_sequence_must_fit the first "
        "chunk must wait, or it is computed, preempted and computed again."
    )
    came_back = make_request("b", range(6))
    came_back.append_output_token_ids(range(6, 16))
    assert manager.allocate_slots(came_back, 4, full_sequence_must_fit=True) is None, (
        "A request with a prompt of 6 tokens and 10 of output gave way and comes back: 16 tokens are known "
        "and need 4 blocks, 3 are free. What must fit is all that is known, not the prompt: it would be "
        "preempted again before it has a new token."
    )
    added = manager.allocate_slots(request, 4)
    assert added is not None, "A chunk of 4 tokens needs 1 block, 3 are free, and it was refused."
    got = [len(group) for group in added.blocks]
    assert got == [1], (
        f"Only the chunk's own block is taken, not the whole prompt's: 1 block in the one group, not {got}."
    )
    refuses(
        ValueError,
        lambda: manager.allocate_slots(request, 0),
        "allocate_slots(request, 0) asks for room for no token and must raise ValueError.",
    )


@pytest.mark.points(1)
def test_a_full_pool_feeds_a_sliding_window_from_itself():
    manager = make_manager(num_blocks=4, windows=(8,), max_step_tokens=1)
    request = make_request("a", [0])
    admit(manager, request)
    for token in range(60):
        request.append_output_token_ids([token])
        assert manager.allocate_slots(request, 1) is not None, (
            "A window of 8 tokens in blocks of 4 never needs more than 3 blocks, but token "
            f"{request.num_tokens} was refused: give back what has left the window before you count."
        )
        request.num_computed_tokens += 1


class ManagerMachine(RuleBasedStateMachine):
    """Requests are admitted by chunks, decode, and leave; every read of KV is checked."""

    windows = (None,)

    def __init__(self):
        super().__init__()
        self.manager = make_manager(9, 2, self.windows, max_step_tokens=6)
        self.memory = CheckedMemory(self.manager, self.windows)
        self.running, self.count = [], 0

    @rule(kind=st.integers(0, 1), length=st.integers(1, 9), chunk=st.integers(1, 6), must_fit=st.booleans())
    def admit(self, kind, length, chunk, must_fit):
        self.count += 1
        request = make_request(f"r{self.count}", [kind, *range(length - 1)], 2)
        blocks, num_hit = self.manager.get_computed_blocks(request)
        pool, limit = self.manager.block_pool, (length - 1) // 2
        if self.windows == (None,):
            run = 0
            while run < limit and pool.get_cached_block(request.block_hashes[run]):
                run += 1
            assert num_hit == 2 * run, (
                f"Of {request.all_token_ids} (blocks of 2) the first {run} blocks are cached and may be "
                f"taken, {2 * run} tokens; get_computed_blocks says {num_hit}. {READ}"
            )
        free = pool.get_num_free_blocks()
        added = self.manager.allocate_slots(
            request, min(chunk, length - num_hit), blocks, num_hit, full_sequence_must_fit=must_fit
        )
        if added is None:
            left = pool.get_num_free_blocks()
            assert left == free, (
                f"allocate_slots refused, so {free} blocks must still be free, not {left}. {READ}"
            )
            return
        request.num_computed_tokens = num_hit
        self.running.append(request)
        self.compute(request, min(chunk, length - num_hit))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), chunk=st.integers(1, 6))
    def go_on(self, data, chunk):
        request = data.draw(st.sampled_from(self.running), label="request")
        if request.num_computed_tokens == request.num_tokens:
            request.append_output_token_ids([request.num_tokens % 3])
        chunk = min(chunk, request.num_tokens - request.num_computed_tokens)
        if self.manager.allocate_slots(request, chunk) is not None:
            self.compute(request, chunk)
        elif len(self.running) > 1:
            self.leave(request)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data):
        self.leave(data.draw(st.sampled_from(self.running), label="request"))

    def compute(self, request, count):
        start = request.num_computed_tokens
        self.memory.compute(request, start, start + count)
        request.num_computed_tokens = start + count

    def leave(self, request):
        self.running.remove(request)
        self.manager.free(request)

    @invariant()
    def owners_agree(self):
        self.manager.check_invariants(self.running)


class HybridMachine(ManagerMachine):
    windows = (None, 3)


@pytest.mark.points(2)
def test_any_life_of_requests_reads_only_what_was_written_for_them():
    run_state_machine_as_test(ManagerMachine, settings=settings(max_examples=40, stateful_step_count=20))


@pytest.mark.points(1)
def test_the_same_with_a_group_that_slides():
    run_state_machine_as_test(HybridMachine, settings=settings(max_examples=25, stateful_step_count=20))
