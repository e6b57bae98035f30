"""Assembled engines for tests: a configuration by its interesting parts, a driver that checks each step."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from learnvllm.architecture.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
)
from learnvllm.architecture.messages import EngineCoreRequest
from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.engine_core.core import EngineCore

MAX_MODEL_LEN = 160


def make_config(
    directory: Path,
    *,
    budget: int = 64,
    block_size: int = 16,
    max_num_seqs: int = 16,
    prefix_caching: bool = True,
    num_blocks: int | None = None,
    async_scheduling: bool = False,
    executor: str = "uni",
    max_model_len: int = MAX_MODEL_LEN,
    dtype: str = "float32",
    device: str = "cpu",
    log_stats: bool = True,
    **scheduler: Any,
) -> EngineConfig:
    """fp32, a pool for everybody unless `num_blocks` says otherwise."""
    if num_blocks is None:
        num_blocks = 1 + 4 * max_num_seqs * -(-max_model_len // block_size)
    return EngineConfig(
        ModelConfig(
            model=directory.name,
            path=directory,
            arch=ModelArchitecture.from_directory(directory),
            dtype=dtype,  # type: ignore[arg-type]
            max_model_len=max_model_len,
        ),
        cache_config=CacheConfig(
            block_size=block_size, enable_prefix_caching=prefix_caching, num_gpu_blocks_override=num_blocks
        ),
        scheduler_config=SchedulerConfig(
            max_num_batched_tokens=budget,
            max_num_seqs=max_num_seqs,
            async_scheduling=async_scheduling,
            **scheduler,
        ),
        parallel_config=ParallelConfig(distributed_executor_backend=executor),  # type: ignore[arg-type]
        device_config=DeviceConfig(device=device, num_threads=1),  # type: ignore[arg-type] # more only loses
        observability_config=ObservabilityConfig(log_stats=log_stats),
    )


def make_request(
    core: EngineCore, request_id: str, prompt: list[int], params: SamplingParams, **more: Any
) -> EngineCoreRequest:
    eos = list(core.config.model_config.arch.eos_token_ids)
    return EngineCoreRequest(request_id, prompt, params, eos, **more)


def run_core(core: EngineCore, prompts: Sequence[list[int]], params: SamplingParams) -> list[list[int]]:
    """All prompts at once through a bare core, ownership of every block checked after every step."""
    tokens: dict[str, list[int]] = {}
    for i, prompt in enumerate(prompts):
        tokens[str(i)] = []
        core.add_request(make_request(core, str(i), prompt, params))
    while core.has_work():
        outputs, _ = core.step()
        core.scheduler.check_invariants()
        for output in outputs[0].outputs if outputs else []:
            tokens[output.request_id].extend(output.new_token_ids)
    assert core.scheduler.kv_cache_manager.usage == 0
    return list(tokens.values())


def random_prompts(lengths: Iterable[int], vocab_size: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, vocab_size) for _ in range(length)] for length in lengths]


def pairwise(factors: dict[str, Sequence[Any]], seed: int = 0) -> list[dict[str, Any]]:
    """Few combinations in which every pair of values of every two factors occurs at least once (greedy)."""
    names = list(factors)
    missing = {
        ((a, x), (b, y)) for a, b in itertools.combinations(names, 2) for x in factors[a] for y in factors[b]
    }
    everything = [dict(zip(names, values)) for values in itertools.product(*factors.values())]
    random.Random(seed).shuffle(everything)
    chosen = []
    while missing:
        best = max(everything, key=lambda row: len(missing & _pairs(row, names)))
        missing -= _pairs(best, names)
        chosen.append(best)
    return chosen


def _pairs(row: dict[str, Any], names: list[str]) -> set[Any]:
    return {((a, row[a]), (b, row[b])) for a, b in itertools.combinations(names, 2)}
