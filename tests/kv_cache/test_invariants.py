"""The checker finds every kind of damage, also where all counts are right."""

from collections.abc import Callable

import pytest

from learnvllm.architecture.request import Request
from learnvllm.kv_cache.manager import KVCacheManager
from tests.kv_cache.helpers import admit, make_manager, make_request

Damage = Callable[[KVCacheManager, Request, Request], None]


def table(manager: KVCacheManager, request: Request, group: int = 0):
    return manager.coordinator.managers[group].req_to_blocks[request.request_id]


def two_owners_of_one_block(manager, a, b) -> None:
    """All counts stay right: the block a loses is held once more nowhere, the one it takes once too often."""
    mine, theirs = table(manager, a)[-1], table(manager, b)[-1]
    table(manager, a)[-1] = theirs
    manager.block_pool.free_blocks([mine])


def used_and_free(manager, a, b) -> None:
    manager.block_pool.free_block_queue.append(table(manager, a)[-1])


def neither_used_nor_free(manager, a, b) -> None:
    manager.block_pool.free_block_queue.popleft()


def leaked_table(manager, a, b) -> None:
    manager.coordinator.managers[0].req_to_blocks["gone"] = []


def lost_table(manager, a, b) -> None:
    manager.free(a)


def same_block_twice(manager, a, b) -> None:
    table(manager, a)[1] = table(manager, a)[0]


def block_given_back_too_early(manager, a, b) -> None:
    pool = manager.block_pool
    block, table(manager, a)[-1] = table(manager, a)[-1], pool.null_block
    pool.free_blocks([block])


def too_short_a_table(manager, a, b) -> None:
    manager.block_pool.free_blocks([table(manager, a).pop()])


def hash_of_other_content(manager, a, b) -> None:
    pool = manager.block_pool
    pool.cache_full_blocks([table(manager, a)[2]], [b"\0" * 32])


def hash_without_block(manager, a, b) -> None:
    pool = manager.block_pool
    pool.cached_blocks[0][b"\1" * 32] = pool.blocks[-1]


def block_with_a_forgotten_hash(manager, a, b) -> None:
    pool = manager.block_pool
    del pool.cached_blocks[0][table(manager, a)[0].block_hash]


def null_block_free(manager, a, b) -> None:
    manager.block_pool.free_block_queue.append(manager.block_pool.null_block)


def null_block_owned(manager, a, b) -> None:
    manager.block_pool.null_block.ref_count = 1


def broken_link(manager, a, b) -> None:
    first = next(iter(manager.block_pool.free_block_queue))
    first.next_free = first.next_free.next_free


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (two_owners_of_one_block, "held by 2 tables"),
        (used_and_free, "in the free queue: True"),
        (neither_used_nor_free, "in the free queue: False"),
        (leaked_table, "does not run but holds blocks"),
        (lost_table, "has no table"),
        (same_block_twice, "holds a block twice"),
        (block_given_back_too_early, "was given back too early"),
        (too_short_a_table, "block 2 of group 0 is missing"),
        (hash_of_other_content, "before its tokens are known"),
        (hash_without_block, "holds other content"),
        (block_with_a_forgotten_hash, "hashes have a block"),
        (null_block_free, "null block is in the free queue"),
        (null_block_owned, "null block was used"),
        (broken_link, "broken link"),
    ],
)
def test_damage_is_found(damage: Damage, message: str) -> None:
    manager = make_manager(num_blocks=20)
    a, b = make_request("a", range(10)), make_request("b", range(50, 60))
    admit(manager, a)
    admit(manager, b)
    manager.check_invariants([a, b])
    damage(manager, a, b)
    with pytest.raises(AssertionError, match=message):
        manager.check_invariants([a, b])


def test_a_block_in_tables_of_two_groups_is_found() -> None:
    manager = make_manager(num_blocks=20, windows=(None, 8))
    a, b = make_request("a", range(10)), make_request("b", range(50, 60))
    admit(manager, a)
    admit(manager, b)
    stolen = table(manager, b, 1)[-1]
    manager.block_pool.free_blocks([table(manager, a, 0)[-1]])
    manager.block_pool.touch([stolen])
    table(manager, a, 0)[-1] = stolen
    with pytest.raises(AssertionError, match="is in tables of groups"):
        manager.check_invariants([a, b])
