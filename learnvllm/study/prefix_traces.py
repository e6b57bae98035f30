"""Traces of prompts that are kind or unkind to a prefix cache, and a meter for the share that it saves.

No model runs: a hit is decided by names of blocks alone, so a trace of hundreds of requests takes a fraction
of a second. The notebooks, the graders and the pages of Day 4 measure eviction orders with it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from learnvllm.architecture.config import PrefixCacheEviction
from learnvllm.architecture.request import Request
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.kv_cache.hashing import make_block_hasher
from learnvllm.kv_cache.manager import KVCacheManager
from learnvllm.scheduling.toy import make_kv_cache

Prompt = list[int]

BLOCK_SIZE = 4


def assistants_and_documents(count: int = 400, seed: int = 0) -> list[Prompt]:
    """Three requests of ten ask one of 4 assistants (system prompt of 32 tokens), the rest bring a document.

    A question has 8 tokens, a document 64, and neither comes again.
    """
    rng = random.Random(seed)
    fresh = _FreshTokens(1_000_000 * (seed + 1))
    prompts = []
    for _ in range(count):
        if rng.random() < 0.3:
            assistant = 1_000 * (rng.randrange(4) + 4 * seed)
            prompts.append([*range(assistant, assistant + 32), *fresh.take(8)])
        else:
            prompts.append(fresh.take(64))
    return prompts


def conversations(count: int = 400, seed: int = 0) -> list[Prompt]:
    """Six conversations at a time, each turn the whole conversation and 12 tokens more, six turns each."""
    rng = random.Random(seed)
    fresh = _FreshTokens(1_000_000)
    talks: list[Prompt] = []
    prompts = []
    for _ in range(count):
        if len(talks) < 6:
            talks.append([])
        talk = rng.choice(talks)
        talk += fresh.take(12)
        prompts.append(list(talk))
        if len(talk) == 72:
            talks.remove(talk)
    return prompts


class _FreshTokens:
    """Tokens that nobody else has."""

    def __init__(self, first: int) -> None:
        self._next = first

    def take(self, count: int) -> Prompt:
        self._next += count
        return list(range(self._next - count, self._next))


def make_manager(
    num_blocks: int, eviction: PrefixCacheEviction = "lru", block_size: int = BLOCK_SIZE
) -> KVCacheManager:
    """A KV cache of `num_blocks` blocks (the null block included) for one layer."""
    return KVCacheManager(make_kv_cache(num_blocks, block_size), eviction=eviction)


def hit_rate(prompts: Iterable[Prompt], manager: KVCacheManager) -> float:
    """Serve prompts one after the other; the share of their tokens that was found in the cache.

    A prompt that the pool cannot hold is an error.
    """
    hasher = make_block_hasher(manager.block_size)
    num_found = num_asked = 0
    for number, prompt in enumerate(prompts):
        request = Request(str(number), prompt, SamplingParams(max_tokens=1), block_hasher=hasher)
        blocks, num_hit = manager.get_computed_blocks(request)
        if manager.allocate_slots(request, len(prompt) - num_hit, blocks, num_hit) is None:
            raise ValueError(f"prompt {number} has {len(prompt)} tokens: more than the whole pool holds")
        request.num_computed_tokens = len(prompt)
        manager.free(request)
        num_found += num_hit
        num_asked += len(prompt)
    return num_found / num_asked if num_asked else 0.0
