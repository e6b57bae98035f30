"""The hit of several groups: the longest prefix from which every one of them can go on."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.day04 import CONCEPTS, name_of

from learnvllm.scheduling.toy import make_kv_cache
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
KVCacheCoordinator = subject.KVCacheCoordinator

READ = f"Read {CONCEPTS}#groups."
NAMES = [name_of(i) for i in range(8)]


def make(windows, cached, block_size=4):
    """A coordinator in whose groups exactly the blocks `cached` can be found."""
    coordinator = KVCacheCoordinator(make_kv_cache(100, block_size, windows), True, 16)
    pool = coordinator.block_pool
    for group, indices in enumerate(cached):
        for index in sorted(indices):
            pool.cache_full_blocks(pool.get_new_blocks(1), [NAMES[index]], group)
    return coordinator


def needed(count, window, block_size):
    """Blocks that the token after `count` blocks reads."""
    end = count * block_size
    first = 0 if window is None else max(end - window + 1, 0)
    return set(range(first // block_size, -(-end // block_size)))


def check(windows, cached, block_size, max_num_tokens):
    coordinator = make(windows, cached, block_size)
    hits, num_tokens = coordinator.find_longest_cache_hit(NAMES, max_num_tokens)
    longest = min(max_num_tokens // block_size, len(NAMES))
    best = next(
        n
        for n in range(longest, -1, -1)
        if all(needed(n, window, block_size) <= indices for window, indices in zip(windows, cached))
    )
    setup = (
        f"Blocks of {block_size}, windows {windows} (None: full), cached per group "
        f"{[sorted(c) for c in cached]}, at most {max_num_tokens} tokens"
    )
    assert num_tokens == best * block_size, (
        f"{setup}: every group can go on from {best} blocks, {best * block_size} tokens, and from no more; "
        f"got {num_tokens} tokens. {READ}"
    )
    assert len(hits) == len(windows), f"One list per group: {len(windows)}, not {len(hits)}."
    for group, (window, blocks) in enumerate(zip(windows, hits)):
        assert len(blocks) == best, (
            f"{setup}: the tables of all groups begin with {best} blocks, group {group} got {len(blocks)}. "
            "Entry i of every table holds the same tokens."
        )
        for index in needed(best, window, block_size):
            expected = coordinator.block_pool.get_cached_block(NAMES[index], group)
            assert blocks[index] is expected, (
                f"{setup}: group {group} will read entry {index} after the hit, which must be block "
                f"{expected.block_id}, not {blocks[index].block_id}."
            )


@pytest.mark.points(1)
@pytest.mark.parametrize("max_num_tokens", [0, 3, 4, 11, 40])
def test_one_group_decides_alone(max_num_tokens):
    check((None,), [{0, 1, 2, 3, 5}], 4, max_num_tokens)


@pytest.mark.points(1)
def test_two_groups_take_what_both_have():
    check((None, None), [{0, 1, 2}, {0, 1, 2, 3, 4}], 4, 40)
    check((None, None), [{0, 1, 2, 3, 4}, {0, 1, 2}], 4, 40)


@pytest.mark.points(2)
def test_a_shorter_prefix_of_a_windows_hit_may_be_no_hit():
    """The window offers 8 blocks, full attention 6; at 6 the window lacks block 5, at 5 it can go on."""
    check((None, 5), [{0, 1, 2, 3, 4, 5}, {0, 1, 2, 4, 6, 7}], 4, 32)


@pytest.mark.points(2)
def test_agreement_may_take_several_rounds():
    check((5, 9), [{0, 1, 3, 5, 7}, {0, 1, 2, 3, 4, 6}], 4, 32)
    check((9, 5, 5), [{0, 1, 2, 3, 4, 5, 6, 7}, {0, 1, 2, 3, 5, 7}, {2, 3, 4, 6}], 4, 32)
    check((5, None, 9), [{1, 2, 5, 6}, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 4, 5}], 4, 32)


@pytest.mark.points(2)
@settings(max_examples=200)
@given(
    block_size=st.integers(1, 4),
    groups=st.lists(
        st.tuples(st.one_of(st.none(), st.integers(1, 10)), st.sets(st.integers(0, 7))),
        min_size=1,
        max_size=3,
    ),
    max_num_tokens=st.integers(0, 40),
)
def test_it_is_the_longest_on_which_all_agree(block_size, groups, max_num_tokens):
    check(tuple(w for w, _ in groups), [c for _, c in groups], block_size, max_num_tokens)
