"""The free queue: a list with O(1) everywhere, whose nodes are the blocks themselves."""

import pytest

from learnvllm.kv_cache.block_pool import KVCacheBlock
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
FreeKVCacheBlockQueue = subject.FreeKVCacheBlockQueue

READ = "Read: docs/topics/kv_cache/walkthrough.md, the free queue."


def blocks(count: int) -> list[KVCacheBlock]:
    return [KVCacheBlock(i) for i in range(count)]


def ids(queue) -> list[int]:
    """Ids from next out to last out; a chain that bites its own tail is cut."""
    found = []
    for block in queue:
        found.append(block.block_id)
        assert len(found) <= 100, (
            "Walking along next_free never reaches the tail: some block points back to one before it. "
            f"The first ids met: {found[:12]}. {READ}"
        )
    return found


@pytest.mark.points(2)
def test_first_in_first_out():
    queue = FreeKVCacheBlockQueue(blocks(3))
    assert ids(queue) == [0, 1, 2], f"A queue of blocks 0, 1, 2 hands out 0 first; yours holds {ids(queue)}."
    assert [queue.popleft().block_id for _ in range(3)] == [0, 1, 2]
