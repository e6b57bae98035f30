"""Refused at the door, in one sentence (fill-in, 35 minutes, 17 points).

An engine is slow to start and then runs for weeks. A setting that cannot work must be refused before anything
is loaded, by name, with its value and with what to do instead. You write the checks of one part, the checks
that no part can make alone, and the fingerprint by which two processes find out that they were not given the
same configuration.

Not asked: Wrong types and unknown fields: pydantic refuses them before your code runs, and _config turns its
complaint into a ConfigError.

Read: docs/topics/architecture/concepts.md
Check: learnvllm check architecture.config_checks
"""

from __future__ import annotations

import hashlib
from dataclasses import field
from typing import Any

from learnvllm.architecture.config import (
    MAX_NUM_SEQS,
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    Policy,
    _config,
)
from learnvllm.architecture.errors import ConfigError


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
        # TODO: Refuse every value that cannot work. At least 1: max_num_batched_tokens, max_num_seqs (and at
        # most MAX_NUM_SEQS), and max_num_queued_reqs, max_num_queued_tokens unless None. At least 0:
        # long_prefill_token_threshold, and prefill_tokens_per_decode unless None; above 0 it cuts prompts, so
        # refuse it where enable_chunked_prefill is off.
        raise NotImplementedError("TODO: SchedulerConfig.__post_init__")


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
        # TODO: What no part can see alone. Chunked prefill off: a step's budget must hold the longest prompt
        # (else refuse max_num_batched_tokens, name the limit) and a token of everybody who may run (else
        # refuse max_num_seqs). num_gpu_blocks_override, if given: block 0 is the null block, so at least 2.
        raise NotImplementedError("TODO: EngineConfig.__post_init__")

    @property
    def max_model_len(self) -> int:
        return self.model_config.max_model_len

    @property
    def served_model_name(self) -> str:
        return self.model_config.served_model_name or self.model_config.model

    def config_hash(self) -> str:
        """Hex digest over every field: two processes with the same hash run the same engine."""
        # TODO: A hex digest (SHA-256) over every field of every part, the same in every process.
        raise NotImplementedError("TODO: EngineConfig.config_hash")


def _check(condition: bool, parameter: str, value: Any, rule: str) -> None:
    # TODO: Unless the condition holds: ConfigError with parameter and value, whose one line reads
    # `name=value: name rule.`
    raise NotImplementedError("TODO: _check")
