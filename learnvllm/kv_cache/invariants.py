"""What must hold of the pool after every step, checked from scratch: who owns what, not how many.

Counts can be right while two requests write into one block. So the checker rebuilds ownership from the block
tables and compares it, block by block, with what the pool believes. O(blocks): for tests and debugging.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from learnvllm.architecture.math_utils import cdiv
from learnvllm.architecture.request import Request
from learnvllm.kv_cache.block_pool import BlockPool
from learnvllm.kv_cache.coordinator import KVCacheCoordinator


def check_invariants(coordinator: KVCacheCoordinator, requests: Iterable[Request]) -> None:
    """Raise AssertionError with the offending block or request.

    Args:
        coordinator: pool and block tables.
        requests: the requests that may hold blocks. A table of anyone else is a leak.
    """
    holders = {request.request_id: request for request in requests}
    pool = coordinator.block_pool
    owners: Counter[int] = Counter()
    group_of: dict[int, int] = {}
    for manager in coordinator.managers:
        for request_id, table in manager.req_to_blocks.items():
            assert request_id in holders, f"request {request_id!r} does not run but holds blocks"
            held = [block.block_id for block in table if not block.is_null]
            assert len(held) == len(set(held)), f"request {request_id!r} holds a block twice: {held}"
            owners.update(held)
            for block_id in held:
                group = group_of.setdefault(block_id, manager.group_id)
                assert group == manager.group_id, (
                    f"block {block_id} is in tables of groups {group} and {manager.group_id}"
                )
        for request in holders.values():
            _check_table(coordinator, manager.group_id, request)
    _check_blocks(pool, owners)
    _check_free_queue(pool)
    _check_hashes(pool)


def _check_table(coordinator: KVCacheCoordinator, group_id: int, request: Request) -> None:
    """Every computed token still read has a block, and a findable block the name of its content."""
    manager = coordinator.managers[group_id]
    table = manager.req_to_blocks.get(request.request_id)
    assert table is not None, f"running request {request.request_id!r} has no table in group {group_id}"
    first_read = manager.get_num_skipped_tokens(request.num_computed_tokens) // manager.block_size
    for index in range(first_read, cdiv(request.num_computed_tokens, manager.block_size)):
        assert index < len(table), f"{request.request_id!r}: block {index} of group {group_id} is missing"
        assert not table[index].is_null, f"{request.request_id!r}: block {index} was given back too early"
    for index, block in enumerate(table):
        if block.block_hash is not None and not block.is_null:
            assert index < len(request.block_hashes), (
                f"{request.request_id!r}: block {index} is findable before its tokens are known"
            )
            assert block.block_hash == request.block_hashes[index], (
                f"{request.request_id!r}: block {index} goes by the name of other content"
            )
            assert block.group_id == group_id, f"block {block.block_id} is named in group {block.group_id}"


def _check_blocks(pool: BlockPool, owners: Counter[int]) -> None:
    """A block is either free or referenced, by exactly as many tables as it says."""
    for block in pool.blocks[1:]:
        assert block.ref_count == owners[block.block_id], (
            f"block {block.block_id}: ref_count {block.ref_count}, held by {owners[block.block_id]} tables"
        )
        queued = block in pool.free_block_queue
        assert queued == (block.ref_count == 0), (
            f"block {block.block_id}: ref_count {block.ref_count}, in the free queue: {queued}"
        )
    null = pool.null_block
    used = not null.is_null or null.ref_count > 0 or null.block_hash is not None
    assert not used, f"the null block was used: {null}"
    assert null not in pool.free_block_queue, "the null block is in the free queue"


def _check_free_queue(pool: BlockPool) -> None:
    """Walking forward visits as many distinct blocks as counted, and each knows its neighbours."""
    seen: set[int] = set()
    for block in pool.free_block_queue:
        assert block.block_id not in seen, f"the free queue visits block {block.block_id} twice"
        seen.add(block.block_id)
        before, after = block.prev_free, block.next_free
        sound = before is not None and before.next_free is block
        sound = sound and after is not None and after.prev_free is block
        assert sound, f"broken link at {block}"
    assert len(seen) == pool.free_block_queue.num_free_blocks, (
        f"{len(seen)} blocks in the free queue, {pool.free_block_queue.num_free_blocks} counted"
    )


def _check_hashes(pool: BlockPool) -> None:
    """Names and blocks belong together, both ways."""
    num_names = 0
    for group_id, names in enumerate(pool.cached_blocks):
        num_names += len(names)
        for block_hash, block in names.items():
            assert (block.block_hash, block.group_id) == (block_hash, group_id), (
                f"a hash of group {group_id} leads to block {block.block_id}, which holds other content"
            )
    num_named = sum(block.block_hash is not None for block in pool.blocks)
    assert num_named == num_names, f"{num_named} blocks have a hash, {num_names} hashes have a block"
    assert pool.enable_caching or not num_names, "contents are named although prefix caching is off"
