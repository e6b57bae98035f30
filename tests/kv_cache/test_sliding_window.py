"""Sliding-window groups keep exactly the blocks the window reads, and a prefix hit is what all groups can go
on from."""

from hypothesis import given
from hypothesis import strategies as st

from learnvllm.kv_cache.block_pool import BlockPool
from learnvllm.kv_cache.coordinator import KVCacheCoordinator
from learnvllm.kv_cache.single_type_manager import SlidingWindowManager
from learnvllm.scheduling.toy import make_kv_cache
from tests.kv_cache.helpers import admit, decode, make_manager, make_request, window_spec


def kept(manager, request_id: str, group: int = 0) -> list[int]:
    """Indices of the table's entries that are not the null block."""
    return [i for i, block_id in enumerate(manager.get_block_ids(request_id)[group]) if block_id != 0]


def blocks_of(first: int, end: int, block_size: int) -> list[int]:
    """Indices of the blocks that positions first to end - 1 lie in."""
    return list(range(first // block_size, -(-end // block_size)))


@given(
    window=st.integers(1, 12),
    block_size=st.integers(1, 6),
    chunks=st.lists(st.integers(1, 9), min_size=1, max_size=12),
)
def test_kept_blocks_are_exactly_those_the_window_reads(
    window: int, block_size: int, chunks: list[int]
) -> None:
    manager = make_manager(200, block_size, (window,), max_step_tokens=9)
    spec = window_spec(window, block_size)
    request = make_request("a", range(sum(chunks)), block_size)
    for chunk in chunks:
        assert manager.allocate_slots(request, chunk) is not None
        computed, end = request.num_computed_tokens, request.num_computed_tokens + chunk
        assert kept(manager, "a") == blocks_of(max(computed - window + 1, 0), end, block_size)
        assert len(kept(manager, "a")) <= spec.max_blocks(end, max_step_tokens=9)
        request.num_computed_tokens = end
        manager.check_invariants([request])
    manager.free(request)
    assert manager.usage == 0


def test_a_long_generation_lives_in_a_pool_of_its_window() -> None:
    """SCH-12: 200 tokens through 3 blocks of 4, because what leaves the window is given back first."""
    manager = make_manager(num_blocks=4, windows=(8,), max_step_tokens=1)
    request = make_request("a", [0])
    admit(manager, request)
    for token in range(200):
        assert decode(manager, request, token) is not None
        manager.check_invariants([request])


def test_admission_does_not_count_blocks_that_will_leave_the_window() -> None:
    manager = make_manager(num_blocks=6, windows=(4,), max_step_tokens=8)
    long = make_request("a", range(400))
    assert manager.allocate_slots(long, 8, full_sequence_must_fit=True) is not None


def test_blocks_that_left_the_window_are_still_found() -> None:
    manager = make_manager(num_blocks=40, windows=(4,))
    request = make_request("a", range(20))
    admit(manager, request)
    decode(manager, request, 20)
    assert kept(manager, "a") == [4, 5]
    assert manager.get_computed_blocks(make_request("b", range(9)))[1] == 8


def test_fault_26_a_window_hit_needs_only_the_last_blocks_and_has_null_blocks_before() -> None:
    manager = make_manager(num_blocks=40, windows=(6,))
    first = make_request("a", range(20))
    admit(manager, first)
    request = make_request("b", range(18))
    hits, num_hit = manager.get_computed_blocks(request)
    assert num_hit == 16
    assert [block.is_null for block in hits.blocks[0]] == [True, True, False, False]
    assert manager.allocate_slots(request, 2, hits, num_hit) is not None
    request.num_computed_tokens = 18
    manager.check_invariants([first, request])


def test_the_window_begins_between_blocks() -> None:
    """Window 6, blocks of 4, 16 computed: positions 11 to 16 are read, so block 2 stays for 11."""
    manager = make_manager(num_blocks=40, windows=(6,))
    request = make_request("a", range(16))
    admit(manager, request)
    decode(manager, request, 16)
    assert kept(manager, "a") == [2, 3, 4]
    decode(manager, request, 17)
    assert kept(manager, "a") == [3, 4]


def fill(pool: BlockPool, hashes: list[bytes], cached: list[set[int]]) -> None:
    for group, indices in enumerate(cached):
        for index in sorted(indices):
            pool.cache_full_blocks(pool.get_new_blocks(1), [hashes[index]], group)


def can_go_on(
    num_blocks: int, windows: tuple[int | None, ...], cached: list[set[int]], block_size: int
) -> bool:
    """Whether a request may skip its first `num_blocks` blocks: everything its next token reads is cached."""
    end = num_blocks * block_size
    for window, indices in zip(windows, cached):
        first = 0 if window is None else max(end - window + 1, 0)
        if not set(blocks_of(first, end, block_size)) <= indices:
            return False
    return True


NUM_BLOCKS = 8


@given(
    block_size=st.integers(1, 4),
    groups=st.lists(
        st.tuples(st.one_of(st.none(), st.integers(1, 10)), st.sets(st.integers(0, NUM_BLOCKS - 1))),
        min_size=1,
        max_size=3,
    ),
    num_tokens=st.integers(0, 40),
)
def test_a_hit_is_the_longest_prefix_that_every_group_can_go_on_from(
    block_size: int, groups: list[tuple[int | None, set[int]]], num_tokens: int
) -> None:
    windows = tuple(window for window, _ in groups)
    cached = [indices for _, indices in groups]
    coordinator = KVCacheCoordinator(make_kv_cache(100, block_size, windows), True, 16)
    hashes = [bytes([i]) * 32 for i in range(NUM_BLOCKS)]
    fill(coordinator.block_pool, hashes, cached)

    hits, num_hit = coordinator.find_longest_cache_hit(hashes, num_tokens)

    longest = min(num_tokens // block_size, NUM_BLOCKS)
    best = next(n for n in range(longest, -1, -1) if can_go_on(n, windows, cached, block_size))
    assert num_hit == best * block_size
    for group, (window, blocks) in enumerate(zip(windows, hits)):
        assert len(blocks) == best
        first = 0 if window is None else max(num_hit - window + 1, 0)
        for index, block in enumerate(blocks):
            if index in blocks_of(first, num_hit, block_size):
                assert block is coordinator.block_pool.get_cached_block(hashes[index], group)
            else:
                assert block.is_null


def test_groups_settle_on_a_prefix_that_none_of_them_offered_first() -> None:
    """Full attention has blocks 0 to 5; the window lacks 5 and 3. So 6 and 4 blocks fail, 5 hold."""
    coordinator = KVCacheCoordinator(make_kv_cache(100, 4, (None, 5)), True, 16)
    hashes = [bytes([i]) * 32 for i in range(8)]
    fill(coordinator.block_pool, hashes, [{0, 1, 2, 3, 4, 5}, {0, 1, 2, 4, 6, 7}])
    hits, num_hit = coordinator.find_longest_cache_hit(hashes, 32)
    assert num_hit == 20
    assert [block.is_null for block in hits[1]] == [True, True, True, True, False]


def test_a_window_of_one_token_needs_no_block_to_go_on() -> None:
    manager = SlidingWindowManager(window_spec(1), BlockPool(10, True), 0, 16)
    assert all(block.is_null for block in manager.find_longest_cache_hit([b"x", b"y"], 2))
