"""Blocks come one by one as tokens need them, are shared by content, and all come back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kv_cache.helpers import admit, decode, make_manager, make_request


@pytest.mark.parametrize("block_size", [1, 4, 8, 16])
def test_fault_24_block_taken_at_the_right_token(block_size: int) -> None:
    """The prompt fills its block exactly: the first output token, not the one after, needs the next one."""
    manager = make_manager(40, block_size)
    request = make_request("a", range(block_size), block_size)
    _, blocks = admit(manager, request)
    assert len(blocks.blocks[0]) == 1
    for token in range(2 * block_size):
        new = decode(manager, request, token)
        assert new is not None
        first_of_a_block = (request.num_computed_tokens - 1) % block_size == 0
        assert new.is_empty != first_of_a_block
        assert len(manager.get_block_ids("a")[0]) == -(-request.num_computed_tokens // block_size)


@given(
    block_size=st.sampled_from([1, 2, 3, 8]),
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=8),
)
def test_a_table_always_has_exactly_the_blocks_its_tokens_need(block_size: int, chunks: list[int]) -> None:
    manager = make_manager(200, block_size)
    request = make_request("a", range(sum(chunks)), block_size)
    for chunk in chunks:
        assert manager.allocate_slots(request, chunk) is not None
        request.num_computed_tokens += chunk
        assert len(manager.get_block_ids("a")[0]) == -(-request.num_computed_tokens // block_size)
        manager.check_invariants([request])
    manager.free(request)
    assert manager.usage == 0


def test_too_few_blocks_changes_nothing() -> None:
    manager = make_manager(num_blocks=4)
    first, second = make_request("a", range(8)), make_request("b", range(50, 58))
    admit(manager, first)
    assert manager.allocate_slots(second, 8) is None
    assert not manager.has_blocks("b")
    assert manager.block_pool.get_num_free_blocks() == 1
    manager.check_invariants([first])


def test_a_failed_admission_leaves_no_reference_and_no_name() -> None:
    """Fault 18: nothing may be findable that nobody is going to compute."""
    manager = make_manager(num_blocks=5)
    first = make_request("a", range(8))
    admit(manager, first)
    longer = make_request("b", range(20))
    hits, num_hit = manager.get_computed_blocks(longer)
    assert num_hit == 8
    assert manager.allocate_slots(longer, 12, hits, num_hit) is None
    manager.check_invariants([first])
    manager.free(first)
    assert manager.block_pool.get_num_free_blocks() == 4
    assert manager.get_computed_blocks(longer)[1] == 8


def test_reserved_blocks_are_left_alone() -> None:
    manager = make_manager(num_blocks=5)
    request = make_request("a", range(8))
    assert manager.allocate_slots(request, 8, num_reserved_blocks=3) is None
    assert manager.allocate_slots(request, 8, num_reserved_blocks=2) is not None


def test_a_first_chunk_may_be_refused_because_the_rest_would_not_fit() -> None:
    manager = make_manager(num_blocks=4)
    request = make_request("a", range(16))
    assert manager.allocate_slots(request, 4, full_sequence_must_fit=True) is None
    assert manager.allocate_slots(request, 4, full_sequence_must_fit=False) is not None


def test_fault_c_two_equal_prompts_share_within_a_step() -> None:
    manager = make_manager()
    first, second = make_request("a", range(9)), make_request("b", range(9))
    assert admit(manager, first)[0] == 0
    assert admit(manager, second)[0] == 8
    (a,), (b,) = manager.get_block_ids("a"), manager.get_block_ids("b")
    assert a[:2] == b[:2]
    assert a[2] != b[2]
    manager.check_invariants([first, second])


@pytest.mark.parametrize("block_size", [1, 4, 8])
def test_fault_9_a_fully_cached_prompt_of_whole_blocks_recomputes_its_last_block(block_size: int) -> None:
    manager = make_manager(40, block_size)
    first = make_request("a", range(2 * block_size), block_size)
    admit(manager, first)
    second = make_request("b", range(2 * block_size), block_size)
    num_hit, _ = admit(manager, second)
    assert num_hit == block_size
    assert num_hit < second.num_tokens
    a, b = manager.get_block_ids("a")[0], manager.get_block_ids("b")[0]
    assert a[0] == b[0]
    assert a[1] != b[1]
    manager.check_invariants([first, second])


def test_a_freed_prefix_is_found_until_its_blocks_are_given_away() -> None:
    manager = make_manager(num_blocks=4)
    first = make_request("a", range(9))
    admit(manager, first)
    manager.free(first)
    again = make_request("b", range(9))
    assert manager.get_computed_blocks(again)[1] == 8
    other = make_request(
        "c", range(50, 58)
    )  # 2 of 3 blocks: the anonymous one, then the tail of the old prefix
    admit(manager, other)
    assert manager.get_computed_blocks(again)[1] == 4


def test_hits_count_as_blocks_taken_when_nobody_else_holds_them() -> None:
    """A hit in the free queue is free to be used, but only once."""
    manager = make_manager(num_blocks=4)
    first = make_request("a", range(12))
    admit(manager, first)
    manager.free(first)
    longer = make_request("b", range(16))
    hits, num_hit = manager.get_computed_blocks(longer)
    assert num_hit == 12
    assert manager.allocate_slots(longer, 4, hits, num_hit) is None  # 3 hits and 1 more, of 3
    assert manager.block_pool.get_num_free_blocks() == 3


def test_a_request_for_prompt_logprobs_computes_its_whole_prompt() -> None:
    manager = make_manager()
    admit(manager, make_request("a", range(9)))
    assert manager.get_computed_blocks(make_request("b", range(9), prompt_logprobs=0))[1] == 0


def test_prefix_caching_off_finds_and_names_nothing() -> None:
    manager = make_manager(enable_caching=False)
    first = make_request("a", range(9))
    admit(manager, first)
    assert manager.get_computed_blocks(make_request("b", range(9)))[1] == 0
    manager.check_invariants([first])


def test_salted_requests_do_not_share() -> None:
    manager = make_manager()
    admit(manager, make_request("a", range(9), cache_salt="x"))
    assert manager.get_computed_blocks(make_request("b", range(9)))[1] == 0
    assert manager.get_computed_blocks(make_request("c", range(9), cache_salt="x"))[1] == 8


def test_output_is_found_as_well_as_prompt() -> None:
    manager = make_manager()
    request = make_request("a", [0, 1, 2])
    admit(manager, request)
    for token in range(3, 9):
        decode(manager, request, token)
    assert manager.get_computed_blocks(make_request("b", range(12)))[1] == 8


def test_tokens_not_known_yet_are_not_named() -> None:
    """Async scheduling: a token in flight fills the block, but its id is not known."""
    manager = make_manager()
    request = make_request("a", [0, 1, 2])
    admit(manager, request)
    manager.allocate_slots(request, 1)  # position 3 will be computed, its token is in flight
    request.num_computed_tokens += 1
    assert not manager.block_pool.cached_blocks[0]
    request.append_output_token_ids([3])
    manager.cache_blocks(request, request.num_computed_tokens)
    assert len(manager.block_pool.cached_blocks[0]) == 1


def test_reset_is_refused_while_a_request_holds_blocks() -> None:
    manager = make_manager()
    request = make_request("a", range(9))
    admit(manager, request)
    assert not manager.reset_prefix_cache()
    manager.free(request)
    assert manager.reset_prefix_cache()
    assert manager.get_computed_blocks(make_request("b", range(9)))[1] == 0


def test_freeing_twice_is_harmless() -> None:
    manager = make_manager()
    request = make_request("a", range(9))
    admit(manager, request)
    manager.free(request)
    manager.free(request)
    assert manager.usage == 0
    assert manager.get_block_ids("a") == ([],)


def test_allocating_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="num_new_tokens=0"):
        make_manager().allocate_slots(make_request("a", [1]), 0)
