"""Small makers for the block pool's tests."""

from __future__ import annotations

from collections.abc import Sequence

from learnvllm.architecture.request import Request
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.kv_cache.hashing import make_block_hasher
from learnvllm.kv_cache.interface import FullAttentionSpec, SlidingWindowSpec
from learnvllm.kv_cache.manager import KVCacheBlocks, KVCacheManager
from learnvllm.scheduling.toy import make_kv_cache


def full_spec(block_size: int = 4, num_kv_heads: int = 1) -> FullAttentionSpec:
    return FullAttentionSpec(block_size, num_kv_heads, head_dim=8, dtype="float32")


def window_spec(window: int, block_size: int = 4) -> SlidingWindowSpec:
    return SlidingWindowSpec(block_size, num_kv_heads=1, head_dim=8, dtype="float32", sliding_window=window)


def make_request(
    request_id: str,
    tokens: Sequence[int],
    block_size: int = 4,
    *,
    cache_salt: str | None = None,
    seed: str | None = None,
    **params: int,
) -> Request:
    return Request(
        request_id,
        list(tokens),
        SamplingParams(max_tokens=100, **params),
        cache_salt=cache_salt,
        block_hasher=make_block_hasher(block_size, seed),
    )


def make_manager(
    num_blocks: int = 11,
    block_size: int = 4,
    windows: Sequence[int | None] = (None,),
    *,
    enable_caching: bool = True,
    max_step_tokens: int | None = None,
) -> KVCacheManager:
    return KVCacheManager(
        make_kv_cache(num_blocks, block_size, windows),
        enable_caching=enable_caching,
        max_step_tokens=max_step_tokens,
    )


def admit(
    manager: KVCacheManager, request: Request, num_tokens: int | None = None
) -> tuple[int, KVCacheBlocks]:
    """Take the prefix hit, compute up to `num_tokens` tokens; return the hit's length and new blocks."""
    hits, num_hit = manager.get_computed_blocks(request)
    num_tokens = request.num_tokens if num_tokens is None else num_tokens
    blocks = manager.allocate_slots(request, num_tokens - num_hit, hits, num_hit)
    assert blocks is not None
    request.num_computed_tokens = num_tokens
    return num_hit, blocks


def decode(manager: KVCacheManager, request: Request, token: int) -> KVCacheBlocks | None:
    """Append a token and make room for it, as the step that computes it would."""
    request.append_output_token_ids([token])
    blocks = manager.allocate_slots(request, 1)
    if blocks is not None:
        request.num_computed_tokens += 1
    return blocks
