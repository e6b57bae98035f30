"""Every engine flag once: `EngineArgs` is what Python callers pass and what the command line is derived from.

Flat, with vLLM's names; `learnvllm.assembly.create_engine_config` turns it into the checked tree of parts.
Upstream namesake: vllm/engine/arg_utils.py (EngineArgs).
"""

# ruff: noqa: RUF009 - a flag is a dataclass field with its help text, made by `_flag`

from __future__ import annotations

import argparse
import difflib
import types
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from learnvllm.architecture.config import (
    CacheConfig,
    DeviceConfig,
    Dtype,
    ExecutorBackend,
    ModelConfig,
    MoEBackendName,
    ParallelConfig,
    Policy,
    PrefixCacheEviction,
    SchedulerConfig,
)
from learnvllm.architecture.errors import ConfigError


def _flag(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class EngineArgs:
    """The flags of the engine. A default of None means that the model or the machine decides."""

    model: str | None = _flag(
        None, "Directory, .gguf file, known name or hub id. Left out: the embedded SmolLM2-135M-Instruct."
    )
    served_model_name: str | None = _flag(None, "Name of the model in the API. Left out: the model's own.")
    dtype: Dtype = _flag(
        ModelConfig.dtype,
        "auto: fp16 weights and fp32 arithmetic on a CPU, the checkpoint's 16 bits on a GPU. float32: exact.",
    )
    max_model_len: int | None = _flag(
        None, "Longest prompt + output in tokens. Left out: the model's own limit."
    )
    seed: int = _flag(ModelConfig.seed, "Seed of requests that bring none of their own.")
    max_logprobs: int = _flag(
        ModelConfig.max_logprobs, "Most log-probabilities per token a request may ask for."
    )
    load_format: Literal["auto", "dummy"] = _flag(
        ModelConfig.load_format, "dummy: random weights, for benchmarks without a checkpoint."
    )
    enforce_eager: bool = _flag(
        ModelConfig.enforce_eager, "On a GPU: launch every kernel by itself, no CUDA graphs."
    )

    block_size: int = _flag(CacheConfig.block_size, "Tokens in a block of the KV cache.")
    gpu_memory_utilization: float = _flag(
        CacheConfig.gpu_memory_utilization,
        "Share of the device's memory (on a CPU: of the machine's free memory) the engine may use, 0 to 1.",
    )
    num_gpu_blocks_override: int | None = _flag(
        None, "Use exactly this many KV cache blocks, whatever memory allows."
    )
    kv_cache_memory_bytes: int | None = _flag(None, "Use exactly this many bytes for the KV cache.")
    enable_prefix_caching: bool = _flag(
        CacheConfig.enable_prefix_caching, "Keep the KV of finished prompts for requests that begin alike."
    )
    prefix_caching_hash_seed: str | None = _flag(
        None, "Isolates this engine's block hashes; random: at every start anew. Left out: processes agree."
    )
    prefix_cache_eviction: PrefixCacheEviction = _flag(
        CacheConfig.prefix_cache_eviction,
        "lru: content unused for longest goes first. segmented: before it, what was never asked for again.",
    )
    watermark: float = _flag(
        CacheConfig.watermark, "Share of blocks that must stay free when a waiting request is admitted."
    )

    max_num_batched_tokens: int = _flag(
        SchedulerConfig.max_num_batched_tokens, "Tokens computed in one step, prompts and decodes together."
    )
    prefill_tokens_per_decode: int | None = _flag(
        None,
        "Beside n decodes a step computes up to n times this of prompts (or 16). 0: no limit. Left out: 2 on "
        "a CPU.",
    )
    max_num_seqs: int = _flag(SchedulerConfig.max_num_seqs, "Requests that may run at once.")
    scheduling_policy: Policy = _flag(
        SchedulerConfig.policy,
        "fcfs: in order of arrival. priority: a request's priority first. shortest: short prompts first.",
    )
    enable_chunked_prefill: bool = _flag(
        SchedulerConfig.enable_chunked_prefill, "Compute long prompts in pieces, beside running decodes."
    )
    long_prefill_token_threshold: int = _flag(
        SchedulerConfig.long_prefill_token_threshold,
        "Most prompt tokens of one request in a step. 0: the whole budget.",
    )
    async_scheduling: bool | None = _flag(
        None, "Schedule the next step while this one runs. Left out: where it pays."
    )
    max_num_queued_reqs: int | None = _flag(None, "Refuse (503) while this many requests wait.")
    max_num_queued_tokens: int | None = _flag(None, "Refuse (503) while this many prompt tokens wait.")

    tensor_parallel_size: int = _flag(
        ParallelConfig.tensor_parallel_size, "Devices that share each layer. Only 1 so far."
    )
    pipeline_parallel_size: int = _flag(
        ParallelConfig.pipeline_parallel_size, "Devices that share the stack of layers. Only 1 so far."
    )
    data_parallel_size: int = _flag(ParallelConfig.data_parallel_size, "Copies of the engine. Only 1 so far.")
    distributed_executor_backend: ExecutorBackend = _flag(
        ParallelConfig.distributed_executor_backend,
        "uni: the worker lives in the engine process. mp: in a process of its own.",
    )

    device: Literal["auto", "cpu", "cuda"] = _flag(
        DeviceConfig.device, "Where to compute. auto: a GPU where there is one, else the CPU."
    )
    num_threads: int | None = _flag(None, "Compute threads on a CPU. Left out: the physical cores.")
    cpu_kernels: Literal["numba", "torch"] | None = _flag(
        None, "CPU operators: compiled numba kernels, or their readable torch twins. Left out: numba."
    )
    moe_backend: MoEBackendName = _flag(
        DeviceConfig.moe_backend, "What computes a mixture of experts. auto: the fastest that can here."
    )

    disable_log_stats: bool = _flag(False, "Keep no statistics: no metrics and no periodic log line.")
    trace_file: Path | None = _flag(
        None, "Write a Chrome/Perfetto trace of every step to this file at shutdown."
    )

    @classmethod
    def from_kwargs(cls, kwargs: dict[str, Any]) -> EngineArgs:
        """EngineArgs(**kwargs), but an unknown name is refused with the nearest known ones."""
        known = [f.name for f in fields(cls)]
        for name in kwargs:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=3)
                hint = f" Did you mean {', '.join(close)}?" if close else f" Known: {', '.join(known)}."
                raise ConfigError(
                    f"{name!r} is not an engine argument.{hint}", parameter=name, value=kwargs[name]
                )
        return cls(**kwargs)

    @classmethod
    def add_cli_args(cls, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        """Add one --flag per field, grouped under "engine"."""
        group = parser.add_argument_group("engine")
        types_of = get_type_hints(cls)
        for f in fields(cls):
            flag, help = "--" + f.name.replace("_", "-"), f.metadata["help"].replace("%", "%%")
            kind, choices = _plain_type(types_of[f.name])
            if kind is bool:
                shown = f" (default: {'on' if f.default else 'off'})"
                group.add_argument(flag, action=_bool_action(f), default=f.default, help=help + shown)
                continue
            shown = "" if f.default is None else " (default: %(default)s)"
            metavar = None if choices else kind.__name__.upper()
            group.add_argument(
                flag, type=kind, choices=choices, default=f.default, metavar=metavar, help=help + shown
            )
        return parser

    @classmethod
    def from_cli_args(cls, namespace: argparse.Namespace) -> EngineArgs:
        """Pick the fields out of a parsed command line (which may hold others)."""
        return cls(**{f.name: getattr(namespace, f.name) for f in fields(cls)})


def _bool_action(f: Any) -> Any:
    """On or off both ways where a default may need to be turned off; a bare --disable-x needs no --no-."""
    return "store_true" if f.name.startswith("disable_") else argparse.BooleanOptionalAction


def _plain_type(annotation: Any) -> tuple[type, tuple[str, ...] | None]:
    """`int | None` -> int; Literal[...] -> str and its choices."""
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(arg for arg in get_args(annotation) if arg is not type(None))
    if get_origin(annotation) is Literal:
        return str, get_args(annotation)
    return annotation, None
