"""A model that is none: its next token is a hash of all tokens before it.

So scheduler and KV cache run alone, in microseconds, and every output is known beforehand: what differs from
`predict` was lost, doubled or mixed up on the way. No upstream namesake.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from learnvllm.architecture.config import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    ObservabilityConfig,
    SchedulerConfig,
)
from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.architecture.rope_config import FULL_ATTENTION, RopeConfig
from learnvllm.architecture.step import ModelRunnerOutput, SchedulerOutput
from learnvllm.kv_cache.interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
    SlidingWindowSpec,
)

VOCAB_SIZE = 50
Choice = Callable[[list[int]], int]
"""All tokens so far -> the next one."""

_ARCHITECTURE = ModelArchitecture(
    model_type="llama",
    vocab_size=VOCAB_SIZE,
    hidden_size=8,
    intermediate_size=8,
    num_layers=1,
    num_attention_heads=1,
    num_kv_heads=1,
    head_dim=8,
    max_position_embeddings=4096,
    rms_norm_eps=1e-6,
    hidden_act="silu",
    tie_word_embeddings=True,
    attention_bias=False,
    attention_out_bias=False,
    mlp_bias=False,
    rope=RopeConfig(),
    rope_local=None,
    layer_types=(FULL_ATTENTION,),
    sliding_window=None,
    query_pre_attn_scalar=None,
    eos_token_ids=(),
    torch_dtype="float32",
)


def toy_architecture(**changes: Any) -> ModelArchitecture:
    """What a configuration must say of a model that is never computed, for the toy and other stand-ins.

    Args:
        changes: fields of ModelArchitecture that matter to this one.
    """
    return dataclasses.replace(_ARCHITECTURE, **changes)


def make_prompt(length: int, seed: int = 0) -> list[int]:
    """A prompt that differs from its first token on from those of the next 49 seeds."""
    return [(seed * 7919 + i * 31) % VOCAB_SIZE for i in range(length)]


def toy_config(
    *,
    num_blocks: int = 1000,
    block_size: int = 16,
    max_model_len: int = 4096,
    watermark: float = 0.0,
    enable_prefix_caching: bool = False,
    prefill_tokens_per_decode: int | None = 0,
    log_stats: bool = False,
    **scheduler_options: Any,
) -> EngineConfig:
    """An engine configuration for the toy model: a pool of `num_blocks`, of which block 0 is nobody's.

    Args:
        scheduler_options: any other field of SchedulerConfig, such as max_num_batched_tokens.
    """
    arch = toy_architecture(max_position_embeddings=max_model_len)
    return EngineConfig(
        model_config=ModelConfig(model="toy", path=Path("toy"), arch=arch),
        cache_config=CacheConfig(
            block_size=block_size,
            num_gpu_blocks_override=num_blocks,
            enable_prefix_caching=enable_prefix_caching,
            watermark=watermark,
        ),
        scheduler_config=SchedulerConfig(
            prefill_tokens_per_decode=prefill_tokens_per_decode, **scheduler_options
        ),
        observability_config=ObservabilityConfig(log_stats=log_stats),
    )


def toy_kv_cache(config: EngineConfig) -> KVCacheConfig:
    """The toy's cache: one layer with full attention."""
    cache = config.cache_config
    assert cache.num_gpu_blocks_override is not None
    return make_kv_cache(cache.num_gpu_blocks_override, cache.block_size)


def make_kv_cache(num_blocks: int, block_size: int, windows: Sequence[int | None] = (None,)) -> KVCacheConfig:
    """A cache of one small layer a group; a window of None is full attention."""
    names = [f"layers.{i}" for i in range(len(windows))]
    specs = [make_spec(block_size, window) for window in windows]
    groups = tuple(KVCacheGroupSpec((name,), spec) for name, spec in zip(names, specs))
    return KVCacheConfig(num_blocks, block_size, groups, (KVCacheTensor(tuple(names)),))


def make_spec(block_size: int, window: int | None = None) -> KVCacheSpec:
    """What a small layer needs."""
    if window is None:
        return FullAttentionSpec(block_size, num_kv_heads=1, head_dim=8, dtype="float32")
    return SlidingWindowSpec(block_size, num_kv_heads=1, head_dim=8, dtype="float32", sliding_window=window)


def next_token(tokens: Sequence[int]) -> int:
    """The toy model's choice after these tokens: any other history, most likely another choice."""
    digest = hashlib.blake2b(bytes(tokens), digest_size=8).digest()
    return int.from_bytes(digest, "little") % VOCAB_SIZE


class Device(Protocol):
    """Executes steps, in order."""

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput: ...


class ToyDevice:
    """Samples a token for every request whose known tokens are all computed. Holds no KV.

    Args:
        choose: the model, a function of all tokens before.
    """

    def __init__(self, choose: Choice = next_token) -> None:
        self._choose = choose
        self.rows: dict[str, list[int]] = {}
        """Request id -> tokens, as the workers know them."""

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        for req_id in output.finished_req_ids | output.preempted_req_ids:
            self.rows.pop(req_id, None)
        cached = output.scheduled_cached_reqs
        starts = dict(zip(cached.req_ids, cached.num_computed_tokens))
        for new in output.scheduled_new_reqs:
            self.rows[new.req_id] = list(new.token_ids)
            starts[new.req_id] = new.num_computed_tokens
        sampled = [
            self._sample(req_id, starts[req_id] + count)
            for req_id, count in output.num_scheduled_tokens.items()
        ]
        return ModelRunnerOutput(list(output.num_scheduled_tokens), sampled)

    def _sample(self, req_id: str, num_computed: int) -> list[int]:
        tokens = self.rows[req_id]
        assert num_computed <= len(tokens), f"{req_id} is scheduled to compute tokens that nobody knows yet"
        if num_computed < len(tokens):
            return []
        tokens.append(self._choose(tokens))
        return tokens[-1:]


def predict(prompt: Sequence[int], max_tokens: int, choose: Choice = next_token) -> list[int]:
    """What a request must produce, whatever else runs and however its tokens are cut into steps."""
    tokens = list(prompt)
    for _ in range(max_tokens):
        tokens.append(choose(tokens))
    return tokens[len(prompt) :]
