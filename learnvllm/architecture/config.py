"""The configuration tree: one frozen object says everything about an engine, cross-checked when built.

Each part is a pydantic dataclass, so a wrong type is refused with the field's name; `EngineConfig` checks
what no part can see alone. Upstream namesake: vllm/config/ (VllmConfig and its parts).
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import field
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, dataclass_transform

import pydantic
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from learnvllm.architecture.envs import MAX_THREADS
from learnvllm.architecture.errors import ConfigError
from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.architecture.text import is_utf8

_STRICT = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)

Dtype = Literal["auto", "float32", "float16", "bfloat16"]
Policy = Literal["fcfs", "priority", "shortest"]
PrefixCacheEviction = Literal["lru", "segmented"]
ExecutorBackend = Literal["uni", "mp"]
MoEBackendName = Literal["auto", "cpu", "grouped_mm", "naive", "batched"]

MAX_NUM_SEQS = 16384
"""Every request that may run has rows of its own in several tables, made when the engine starts."""

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def _config(cls: type[T]) -> type[T]:
    """A frozen pydantic dataclass whose constructor raises our ConfigError, whatever was wrong."""
    made = dataclass(frozen=True, config=_STRICT)(cls)
    init = made.__init__

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except pydantic.ValidationError as error:
            raise _to_config_error(error) from None
        for name, value in vars(self).items():
            is_text = not isinstance(value, str | Path) or is_utf8(str(value))
            _check(is_text, name, value, "must be valid Unicode, without lone surrogates")

    made.__init__ = __init__  # type: ignore[method-assign]
    return cast(type[T], made)


def _to_config_error(error: pydantic.ValidationError) -> ConfigError:
    """The first complaint: our own from __post_init__ as it is, pydantic's with the field's name."""
    first = error.errors()[0]
    own = first.get("ctx", {}).get("error")
    if isinstance(own, ConfigError):
        return own
    name, value = ".".join(str(part) for part in first["loc"]), first["input"]
    return ConfigError(f"{name}={value!r}: {first['msg']}.", parameter=name, value=value)


@_config
class ModelConfig:
    """Which model, in which precision, how long."""

    model: str
    """The name clients use unless served_model_name says otherwise."""
    path: Path
    """Directory with config.json, tokenizer.json and *.safetensors."""
    arch: ModelArchitecture
    dtype: Dtype = "auto"
    """auto: on a CPU fp16-packed weights and fp32 activations, on a GPU what the checkpoint is stored in (16
    bits at most). float32: the exact path, which the oracle tests use."""
    max_model_len: int = 0
    """Longest prompt + output in tokens; 0 takes the model's own limit."""
    seed: int = 0
    """Seeds requests that bring none of their own."""
    served_model_name: str | None = None
    max_logprobs: int = 20
    load_format: Literal["auto", "dummy"] = "auto"
    """dummy: random weights (seeded), for benchmarks without a checkpoint."""
    enforce_eager: bool = False
    """On a GPU: launch every kernel by itself, never a recorded graph of them."""

    def __post_init__(self) -> None:
        limit = self.arch.max_position_embeddings
        if self.max_model_len == 0:
            object.__setattr__(self, "max_model_len", limit)
        _check(
            2 <= self.max_model_len <= limit,
            "max_model_len",
            self.max_model_len,
            f"must be between 2 (a token in, a token out) and the model's max_position_embeddings, {limit}",
        )
        _check(self.max_logprobs >= 0, "max_logprobs", self.max_logprobs, "must be 0 or above")


@_config
class CacheConfig:
    """The paged KV cache."""

    block_size: int = 16
    """Tokens a block holds."""
    gpu_memory_utilization: float = 0.9
    """Share of the device's memory (on a CPU: of the machine's free memory) the engine may use."""
    enable_prefix_caching: bool = True
    num_gpu_blocks_override: int | None = None
    """Use exactly this many blocks instead of what memory allows."""
    kv_cache_memory_bytes: int | None = None
    """Use exactly this many bytes for the KV cache."""
    prefix_caching_hash_seed: str | None = None
    """None: block hashes start from a constant, so separate processes agree. A string isolates caches;
    "random" gives every start one of its own."""
    prefix_cache_eviction: PrefixCacheEviction = "lru"
    """Whose content goes first. lru: what was unused for longest. segmented: first what was never asked for
    again."""
    watermark: float = 0.01
    """Share of blocks that must stay free when a waiting request is admitted."""

    def __post_init__(self) -> None:
        _check(
            1 <= self.block_size <= 4096, "block_size", self.block_size, "must be between 1 and 4096 tokens"
        )
        _check(
            0 < self.gpu_memory_utilization <= 1,
            "gpu_memory_utilization",
            self.gpu_memory_utilization,
            "must be above 0 and at most 1",
        )
        _check(0 <= self.watermark < 1, "watermark", self.watermark, "must be at least 0 and below 1")
        for name in ("num_gpu_blocks_override", "kv_cache_memory_bytes"):
            value = getattr(self, name)
            _check(value is None or value >= 1, name, value, "must be at least 1")


@_config
class SchedulerConfig:
    """What one step may do, and who goes first."""

    max_num_batched_tokens: int = 512
    """Token budget of a step, prompts and decodes together."""
    prefill_tokens_per_decode: int | None = None
    """Beside n decodes a step computes at most n times this of prompts (or 16, as far as the decodes leave
    them), so that a long prompt slows those who decode by a bounded factor. 0, or chunked prefill off: no
    such limit. None: the platform decides."""
    max_num_seqs: int = 64
    """Requests that may run at once."""
    policy: Policy = "fcfs"
    """Who is admitted next. priority: the lowest value. shortest: the earliest arrival, put off by 10 ms for
    each token of its prompt."""
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    """Most prompt tokens of one request in a step; 0: the whole budget."""
    async_scheduling: bool | None = None
    """Schedule step N+1 while N runs. None: the platform decides."""
    max_num_queued_reqs: int | None = None
    """Refuse (503) when this many requests wait. None: no limit."""
    max_num_queued_tokens: int | None = None
    """Refuse (503) when this many prompt tokens wait. None: no limit."""

    def __post_init__(self) -> None:
        tokens, seqs = self.max_num_batched_tokens, self.max_num_seqs
        _check(tokens >= 1, "max_num_batched_tokens", tokens, "must be at least 1")
        _check(1 <= seqs <= MAX_NUM_SEQS, "max_num_seqs", seqs, f"must be between 1 and {MAX_NUM_SEQS}")
        _check(
            self.long_prefill_token_threshold >= 0,
            "long_prefill_token_threshold",
            self.long_prefill_token_threshold,
            "must be 0 (off) or above",
        )
        per_decode = self.prefill_tokens_per_decode
        _check(
            per_decode is None or per_decode >= 0,
            "prefill_tokens_per_decode",
            per_decode,
            "must be 0 (no limit) or above; leave it out for what suits the platform",
        )
        _check(
            not per_decode or self.enable_chunked_prefill,
            "prefill_tokens_per_decode",
            per_decode,
            "limits the pieces of prompts, so it has no meaning without chunked prefill; leave it out",
        )
        for name in ("max_num_queued_reqs", "max_num_queued_tokens"):
            value = getattr(self, name)
            _check(value is None or value >= 1, name, value, "must be at least 1")


@_config
class ParallelConfig:
    """How many processes compute. One, until Day 10."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    distributed_executor_backend: ExecutorBackend = "uni"

    def __post_init__(self) -> None:
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
            value = getattr(self, name)
            _check(value == 1, name, value, "above 1 is not implemented yet (Day 10); use 1")


@_config
class DeviceConfig:
    """Where it computes."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: a GPU where there is one, else the CPU."""
    num_threads: int | None = None
    """Compute threads on a CPU, at most MAX_THREADS; None: physical cores."""
    cpu_kernels: Literal["numba", "torch"] | None = None
    """The operators: compiled kernels, or their readable torch twins; None: LEARNVLLM_CPU_KERNELS."""
    moe_backend: MoEBackendName = "auto"
    """What computes a mixture of experts. auto: the fastest that can here."""

    def __post_init__(self) -> None:
        _check(
            self.num_threads is None or 1 <= self.num_threads <= MAX_THREADS,
            "num_threads",
            self.num_threads,
            f"must be between 1 and {MAX_THREADS}; leave it out for one a physical core",
        )


@_config
class ObservabilityConfig:
    """What the engine tells about itself. All of it is free when off."""

    log_stats: bool = True
    """Collect the statistics behind /metrics and the periodic log line."""
    trace_file: Path | None = None
    """Record a StepEvent per step and write a Chrome/Perfetto trace here at shutdown."""


@_config
class EngineConfig:
    """The whole tree. Immutable; `config_hash` is what client and engine compare when they shake hands.

    Raises:
        ConfigError: parts contradict each other.
    """

    model_config: ModelConfig
    cache_config: CacheConfig = field(default_factory=CacheConfig)
    scheduler_config: SchedulerConfig = field(default_factory=SchedulerConfig)
    parallel_config: ParallelConfig = field(default_factory=ParallelConfig)
    device_config: DeviceConfig = field(default_factory=DeviceConfig)
    observability_config: ObservabilityConfig = field(default_factory=ObservabilityConfig)

    def __post_init__(self) -> None:
        scheduler, max_len = self.scheduler_config, self.model_config.max_model_len
        if not scheduler.enable_chunked_prefill:
            _check(
                scheduler.max_num_batched_tokens >= max_len,
                "max_num_batched_tokens",
                scheduler.max_num_batched_tokens,
                f"must be at least max_model_len ({max_len}) when chunked prefill is off, "
                "or the longest prompts could never be scheduled",
            )
        _check(
            scheduler.max_num_batched_tokens >= scheduler.max_num_seqs or scheduler.enable_chunked_prefill,
            "max_num_seqs",
            scheduler.max_num_seqs,
            f"must not exceed max_num_batched_tokens ({scheduler.max_num_batched_tokens})",
        )
        backend = self.device_config.moe_backend
        _check(
            backend == "auto" or self.model_config.arch.moe is not None,
            "moe_backend",
            backend,
            "is for mixtures of experts, which this model is not; leave it out",
        )
        blocks = self.cache_config.num_gpu_blocks_override
        if blocks is not None:
            _check(
                blocks >= 2,
                "num_gpu_blocks_override",
                blocks,
                "must be at least 2: block 0 is the null block",
            )

    @property
    def max_model_len(self) -> int:
        return self.model_config.max_model_len

    @property
    def served_model_name(self) -> str:
        return self.model_config.served_model_name or self.model_config.model

    def config_hash(self) -> str:
        """Hex digest over every field: two processes with the same hash run the same engine."""
        return hashlib.sha256(repr(self).encode()).hexdigest()


def _check(condition: bool, parameter: str, value: Any, rule: str) -> None:
    if not condition:
        raise ConfigError(f"{parameter}={value!r}: {parameter} {rule}.", parameter=parameter, value=value)
