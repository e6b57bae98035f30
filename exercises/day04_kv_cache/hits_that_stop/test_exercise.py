"""Tables of one group: whatever is full and known can be found, however it came to be computed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.day04 import CONCEPTS, make_manager, make_request, table
from support.refusal import refuses

from learnvllm.kv_cache.block_pool import BlockPool
from learnvllm.kv_cache.single_type_manager import FullAttentionManager
from learnvllm.scheduling.toy import make_spec
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
SingleTypeKVCacheManager = subject.SingleTypeKVCacheManager

READ = f"Read {CONCEPTS}#names."


class Manager(SingleTypeKVCacheManager):
    """Full attention over the class under grading."""

    def get_num_skipped_tokens(self, num_computed_tokens):
        return 0

    find_longest_cache_hit = FullAttentionManager.find_longest_cache_hit


def make(num_blocks=20, block_size=4):
    pool = BlockPool(num_blocks, True)
    return Manager(make_spec(block_size), pool, 0, 16), pool


@pytest.fixture
def engine(monkeypatch):
    """Makes KVCacheManagers whose full-attention group is the class under grading."""
    monkeypatch.setattr("learnvllm.kv_cache.single_type_manager.FullAttentionManager", Manager)
    return make_manager


def compute(manager, request, chunks):
    """Compute a request by chunks, from its hit on."""
    blocks, num_hit = manager.get_computed_blocks(request)
    request.num_computed_tokens = 0
    for number, chunk in enumerate(chunks):
        first = (blocks, num_hit) if number == 0 else (None, 0)
        blocks_added = manager.allocate_slots(request, chunk, *first)
        assert blocks_added is not None, (
            f"Request {request.request_id!r} was refused room for {chunk} tokens (chunks {chunks}), with "
            f"{manager.block_pool.get_num_free_blocks()} blocks free."
        )
        request.num_computed_tokens += chunk + first[1]


@pytest.mark.points(2)
@pytest.mark.parametrize("chunks", [(17,), (4, 4, 9), (6, 11), (5, 5, 7), (1,) * 17], ids=str)
def test_the_hit_does_not_depend_on_how_the_prompt_was_cut(engine, chunks):
    manager = engine(20)
    request = make_request("a", range(17))
    compute(manager, request, chunks)
    found = manager.get_computed_blocks(make_request("b", range(17)))[1]
    assert found == 16, (
        f"A prompt of 17 tokens in blocks of 4 was computed in chunks of {chunks}. The same prompt must then "
        f"find its 4 full blocks, 16 tokens; it finds {found}. Invariant: every full block whose tokens are "
        f"known has been offered to the cache, whichever step filled it. {READ}"
    )


@pytest.mark.points(2)
def test_the_next_turn_of_a_conversation_finds_the_answer_too(engine):
    manager = engine(20)
    request = make_request("turn 1", range(6))
    compute(manager, request, (6,))
    for token in range(6, 14):
        request.append_output_token_ids([token])
        manager.allocate_slots(request, 1)
        request.num_computed_tokens += 1
    manager.free(request)
    found = manager.get_computed_blocks(make_request("turn 2", range(20)))[1]
    assert found == 12, (
        "Turn 1 had 6 prompt tokens and 8 of output: 3 full blocks of 4. Turn 2 begins with all of them and "
        f"must find 12 tokens; it finds {found}. {READ}"
    )
    manager.check_invariants([])


@pytest.mark.points(1)
@given(chunks=st.lists(st.integers(1, 9), min_size=1, max_size=7), block_size=st.integers(1, 5))
def test_after_every_step_exactly_the_full_blocks_can_be_found(chunks, block_size):
    manager, pool = make(80, block_size)
    request = make_request("a", range(sum(chunks)), block_size)
    manager.allocate_new_computed_blocks("a", [])
    end = 0
    for chunk in chunks:
        end += chunk
        manager.allocate_new_blocks("a", end)
        manager.cache_blocks(request, end)
        named = [pool.get_cached_block(name) is not None for name in request.block_hashes]
        full = end // block_size
        assert named == [i < full for i in range(len(named))], (
            f"Chunks {chunks} in blocks of {block_size}, {end} tokens so far: blocks 0 to {full - 1} are "
            "full and must be findable, no other. Findable are "
            f"{[i for i, found in enumerate(named) if found]}. {READ}"
        )
        for index, block in enumerate(manager.req_to_blocks["a"][:full]):
            assert block.block_hash == request.block_hashes[index], (
                f"Entry {index} of the table goes by the name of another block's content: who finds it reads "
                "that."
            )


@pytest.mark.points(1)
def test_admission_counts_hits_that_nobody_holds():
    manager, pool = make(6)
    request = make_request("a", range(12))
    manager.allocate_new_computed_blocks("a", [])
    manager.allocate_new_blocks("a", 12)
    manager.cache_blocks(request, 12)
    hits = list(manager.req_to_blocks["a"])
    in_use = manager.get_num_blocks_to_allocate("b", 17, hits)
    assert in_use == 2, (
        f"17 tokens need 5 blocks, 3 are hits that another request holds: 2 to take, not {in_use}."
    )
    manager.free("a")
    idle = manager.get_num_blocks_to_allocate("b", 17, hits)
    assert idle == 5, (
        "The same hits, now in the free queue: using them takes 3 from what is free, and 2 more. 5, not "
        f"{idle}."
    )
    outstanding = manager.get_num_blocks_outstanding("b", 17, hits)
    assert outstanding == 5, f"Asked for what is still to take, it is the same 5, not {outstanding}."
    free = pool.get_num_free_blocks()
    assert free == 5, f"Counting takes nothing: 5 blocks must still be free, not {free}."


@pytest.mark.points(1)
def test_tables_belong_to_one_request_each():
    manager, pool = make()
    nothing = []
    for name in "ab":
        manager.allocate_new_computed_blocks(name, nothing)
        manager.allocate_new_blocks(name, 5)
    a, b = ([block.block_id for block in manager.req_to_blocks[name]] for name in "ab")
    assert len(a) == len(b) == 2, f"5 tokens in blocks of 4 are 2 blocks each; the tables are {a} and {b}."
    assert not set(a) & set(b), f"Two requests with nothing in common got the tables {a} and {b}."
    assert nothing == [], (
        "The list of hits belongs to the caller, and a table is a list of its own: the list must still be "
        f"empty, it has {len(nothing)} blocks."
    )
    refuses(
        RuntimeError,
        lambda: manager.allocate_new_computed_blocks("a", []),
        "allocate_new_computed_blocks('a', []), when 'a' has a table already, must raise RuntimeError.",
    )
    free = pool.get_num_free_blocks()
    assert free == 15, f"Two tables of 2 blocks out of 19: 15 are free, not {free}."


@pytest.mark.points(2)
def test_sharing_and_freeing_leave_the_pool_whole(engine):
    manager = engine(8)
    requests = [make_request(name, [*range(8), last]) for name, last in (("a", 50), ("b", 60))]
    for request in requests:
        compute(manager, request, (request.num_tokens - manager.get_computed_blocks(request)[1],))
    a, b = (table(manager, request) for request in requests)
    assert a[:2] == b[:2], f"Equal beginnings share blocks: the tables are {a} and {b}."
    manager.check_invariants(requests)
    for request in (*requests, *requests):
        manager.free(request)
    manager.check_invariants([])
    assert manager.usage == 0, (
        f"Freeing a request twice is harmless; afterwards every block is free: usage 0, not "
        f"{manager.usage:.2f}."
    )
    queue = [block.block_id for block in manager.block_pool.free_block_queue if block.block_hash]
    assert queue == [a[1], a[0]], (
        f"The end of a prompt is freed first and so evicted first: the queue must end with {[a[1], a[0]]}, "
        f"it has {queue}. The beginning is what the next prompt has in common. Read {CONCEPTS}#eviction."
    )


@pytest.mark.points(1)
def test_a_growing_request_takes_a_block_exactly_when_it_needs_one():
    manager, _ = make()
    manager.allocate_new_computed_blocks("a", [])
    got = [len(manager.allocate_new_blocks("a", n)) for n in range(1, 10)]
    assert got == [1, 0, 0, 0, 1, 0, 0, 0, 1], (
        f"Growing from 1 to 9 tokens, blocks of 4: a block is added at tokens 1, 5 and 9; added were {got}."
    )
