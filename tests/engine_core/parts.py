"""Small real parts for tests of the engine core: configuration, scripted executor, tokenizers. No torch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from learnvllm.architecture.config import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    ObservabilityConfig,
    SchedulerConfig,
)
from learnvllm.architecture.errors import ConfigError, ModelLoadError
from learnvllm.architecture.messages import LogprobsLists
from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.architecture.step import ModelRunnerOutput, SchedulerOutput
from learnvllm.architecture.tracing import StepTracer
from learnvllm.engine_core.core import EngineCore
from learnvllm.engine_core.tokenizer import Tokenizer
from learnvllm.executor_worker.executor import Executor
from learnvllm.kv_cache.interface import FullAttentionSpec, KVCacheConfig
from learnvllm.scheduling.async_scheduler import AsyncScheduler
from learnvllm.scheduling.scheduler import Scheduler
from learnvllm.scheduling.toy import ToyDevice, predict, toy_architecture

VOCAB_SIZE = 300
EOS = 2


def make_arch(max_position_embeddings: int = 128) -> ModelArchitecture:
    return toy_architecture(
        vocab_size=VOCAB_SIZE, max_position_embeddings=max_position_embeddings, eos_token_ids=(EOS,)
    )


def make_config(
    *,
    max_model_len: int = 128,
    num_blocks: int = 64,
    block_size: int = 4,
    async_scheduling: bool = False,
    log_stats: bool = True,
    trace_file: Path | None = None,
    max_logprobs: int = 5,
    **scheduler: Any,
) -> EngineConfig:
    return EngineConfig(
        ModelConfig(
            model="scripted",
            path=Path("."),
            arch=make_arch(max_model_len),
            max_model_len=max_model_len,
            max_logprobs=max_logprobs,
        ),
        cache_config=CacheConfig(block_size=block_size, num_gpu_blocks_override=num_blocks),
        scheduler_config=SchedulerConfig(async_scheduling=async_scheduling, **scheduler),
        observability_config=ObservabilityConfig(log_stats=log_stats, trace_file=trace_file),
    )


def next_token(token_ids: list[int]) -> int:
    """The model: any fixed function of all tokens before. Never a special token."""
    return 3 + (7 * token_ids[-1] + 3 * len(token_ids) + sum(token_ids)) % (VOCAB_SIZE - 3)


expected_tokens = partial(predict, choose=next_token)
"""(prompt, count) -> what the scripted model makes of a prompt, computed one request at a time."""


class ScriptedExecutor(Executor):
    """An executor without a model: its model is `next_token`.

    `gate`: clear it and steps wait for it. `fail_with`: the next step raises this.
    """

    def _start(self, load_model: Any) -> None:
        self._device = ToyDevice(next_token)
        self.rows = self._device.rows
        self.wants_logprobs: dict[str, int] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.started = threading.Semaphore(0)
        self.fail_with: BaseException | None = None
        self.num_steps = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scripted-worker")

    def collective_rpc(
        self, method: str, args: tuple[Any, ...] = (), timeout: float | None = None
    ) -> list[Any]:
        return [getattr(self, "rpc_" + method)(*args)]

    def rpc_init_device(self) -> None: ...
    def rpc_load_model(self) -> None: ...
    def rpc_compile_or_warm_up_model(self) -> None: ...
    def rpc_initialize_from_config(self, config: KVCacheConfig) -> None: ...
    def rpc_determine_available_memory(self) -> int:
        return 1 << 20

    def rpc_get_kv_cache_specs(self) -> dict[str, FullAttentionSpec]:
        return {"layers.0": FullAttentionSpec(self.config.cache_config.block_size, 1, 8, "float32")}

    def rpc_echo(self, *args: Any) -> list[Any]:
        return list(args)

    def rpc_fail(self, message: str) -> None:
        raise ValueError(message)

    def rpc_fail_next_step(self, message: str, as_client_error: bool = False) -> None:
        self.fail_with = ConfigError(message) if as_client_error else RuntimeError(message)

    def rpc_exit_in_next_step(self) -> None:
        self.fail_with = SystemExit(3)

    def rpc_an_object(self) -> object:
        return object()

    def rpc_a_large_number(self) -> int:
        return 2**70

    def rpc_a_lone_surrogate(self) -> str:
        return "\ud800"

    def rpc_fail_with_a_lone_surrogate(self) -> None:
        raise ConfigError("\ud800", parameter="x", value=2**70)

    def _execute(self, scheduler_output: SchedulerOutput) -> Future[ModelRunnerOutput]:
        return self._thread.submit(self._run, scheduler_output)

    def _run(self, step: SchedulerOutput) -> ModelRunnerOutput:
        self.started.release()
        self.gate.wait()
        self.num_steps += 1
        if self.fail_with is not None:
            raise self.fail_with
        for new in step.scheduled_new_reqs:
            if new.sampling_params.logprobs is not None:
                self.wants_logprobs[new.req_id] = new.sampling_params.logprobs
        output = self._device.execute(step)
        logprobs = {
            r: fake_logprobs(ids, self.wants_logprobs[r])
            for r, ids in zip(output.req_ids, output.sampled_token_ids)
            if ids and r in self.wants_logprobs
        }
        return replace(output, logprobs=logprobs, forward_seconds=1e-6)

    def check_health(self) -> None: ...
    def register_failure_callback(self, callback: Callable[[], None]) -> None: ...

    def shutdown(self) -> None:
        self.gate.set()
        self._thread.shutdown(wait=True)


def fake_logprobs(token_ids: list[int], num: int) -> LogprobsLists:
    """Rows that can be foretold: the token at -0.5, rank 1, then tokens 10, 11, ... at -1, -2, ..."""
    rows = len(token_ids)
    ids = np.array([[t, *range(10, 10 + num)] for t in token_ids], dtype=np.int32).reshape(rows, num + 1)
    values = np.array([[-0.5, *range(-1, -1 - num, -1)]] * rows, dtype=np.float32).reshape(rows, num + 1)
    return LogprobsLists(ids, values, np.ones(rows, dtype=np.int32))


def build_scripted_core(config: EngineConfig, tracer: StepTracer | None = None) -> EngineCore:
    scheduler = AsyncScheduler if config.scheduler_config.async_scheduling else Scheduler
    return EngineCore(config, ScriptedExecutor, scheduler, tracer)


# Core factories for processes that do not come up. They must be importable by a spawned child.


def build_nothing_config_error(config: EngineConfig) -> EngineCore:
    raise ConfigError("block_size=5: five is right out.", parameter="block_size", value=5)


def build_nothing_model_error(config: EngineConfig) -> EngineCore:
    raise ModelLoadError("/no/model has no config.json.", parameter="model", value="/no/model")


def build_nothing_other_error(config: EngineConfig) -> EngineCore:
    raise OSError("the disk is full")


def build_nothing_dies(config: EngineConfig) -> EngineCore:
    import os

    os._exit(7)


def build_nothing_hangs(config: EngineConfig) -> EngineCore:
    threading.Event().wait()
    raise AssertionError


# ---------------------------------------------------------------------------------------------- tokenizers


def byte_level_tokenizer() -> Tokenizer:
    """Byte-level BPE, as Llama 3, Qwen and SmolLM have: ids 0-2 special, 3-258 bytes, a few merged words."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {text: i for i, text in enumerate([*specials, *alphabet])}
    merges = []
    for word in ("Ġthe", "Ġworld", "hello", "Ġstop", "éĢ"):
        piece = word[0]
        for letter in word[1:]:
            if piece + letter not in vocab:
                vocab[piece + letter] = len(vocab)
                merges.append((piece, letter))
            piece += letter
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(specials)
    return Tokenizer(backend, {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>"})


def byte_fallback_tokenizer() -> Tokenizer:
    """Words with a leading ▁ and bytes as <0xE2>, as Llama 2, Mistral and Gemma have."""
    pieces = ["<pad>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["▁", "▁the", "▁world", "▁hello", "a", "b", "é", "!", "\n"]
    vocab = [(piece, 0.0) for piece in pieces] + [(word, -float(len(word) == 1)) for word in words]
    backend = tokenizers.Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(["<pad>", "<s>", "</s>"])
    return Tokenizer(backend, {"eos_token": {"content": "</s>"}, "bos_token": "<s>"})
