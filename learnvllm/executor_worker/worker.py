"""A worker owns one device: it loads the model, measures memory, allocates the cache and runs the steps it is
sent.

Its public methods are what `Executor.collective_rpc` may call. Upstream namesakes:
vllm/v1/worker/worker_base.py, vllm/v1/worker/gpu_worker.py, vllm/v1/worker/cpu_worker.py.
"""

from __future__ import annotations

import gc
import logging
import os
from functools import partial

import torch

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.errors import ConfigError
from learnvllm.architecture.math_utils import cdiv
from learnvllm.architecture.platforms import CpuPlatform, Platform, current_platform
from learnvllm.architecture.step import ModelRunnerOutput, SchedulerOutput
from learnvllm.executor_worker.device.compile_watch import CompileWatch
from learnvllm.executor_worker.device.cuda_graphs import CudaBackend, GraphSupport
from learnvllm.executor_worker.device.runner import DeviceModelRunner
from learnvllm.executor_worker.executor import ModelLoader
from learnvllm.executor_worker.kv_cache import allocate_kv_caches
from learnvllm.executor_worker.memory import PeakMemory, kv_cache_budget, release_freed_memory
from learnvllm.executor_worker.model_runner import KVCaches, ModelRunner
from learnvllm.executor_worker.pending import PendingOutput
from learnvllm.executor_worker.runner_selector import select_runner
from learnvllm.kv_cache.interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec, KVCacheTensor
from learnvllm.model_layers import ops
from learnvllm.model_layers.model import DecoderModel

logger = logging.getLogger(__name__)

# Activations grow linearly with the tokens of a step, so on a slow device a small step tells what a large one
# takes.
CPU_PROFILE_TOKENS = 64


class Worker:
    """Rank `rank` of the engine. Methods are called one at a time, always on the same thread."""

    def __init__(self, config: EngineConfig, rank: int = 0, load_model: ModelLoader | None = None) -> None:
        self.config, self.rank = config, rank
        self._load_model = load_model
        self.compile_watch = CompileWatch()
        self.platform: Platform
        self.device: torch.device
        self.model: DecoderModel
        self.runner: ModelRunner | DeviceModelRunner

    def init_device(self) -> None:
        """Pick the device; on a CPU also the number of compute threads, and kernels or their torch twins."""
        self.platform = current_platform(self.config.device_config.device)
        self.device = self.platform.device(self.rank)
        if isinstance(self.platform, CpuPlatform):
            threads = self.platform.num_threads(self.config.device_config.num_threads)
            torch.set_num_threads(threads)
            ops.select_kernels(self.config.device_config.cpu_kernels)
        else:
            torch.cuda.set_device(self.device)
        self.choice = select_runner(self.config, self.platform)
        logger.info("Model runner: %s.", self.choice)
        logger.info(
            "Worker %d computes on %s with %d thread(s).", self.rank, self.device, torch.get_num_threads()
        )

    def load_model(self) -> None:
        if self._load_model is None:
            from learnvllm.model_layers.registry import load_model

            self._load_model = partial(load_model, device=self.device)
        with torch.inference_mode():
            self.model = self._load_model(self.config)
        release_freed_memory()

    def get_kv_cache_specs(self) -> dict[str, KVCacheSpec]:
        return self.model.kv_cache_specs(self.config.cache_config.block_size)

    def determine_available_memory(self) -> int:
        """Bytes the KV cache may take. Runs a dummy step to learn what the model needs besides."""
        specs = self.get_kv_cache_specs()
        is_given = self.config.cache_config.kv_cache_memory_bytes is not None
        peak = 0 if is_given else self._profile_peak(specs)
        budget = kv_cache_budget(self.config, self.platform, specs, peak)
        logger.info("KV cache: %.2f GiB; a step needs up to %.2f GiB besides.", budget / 2**30, peak / 2**30)
        return budget

    def _profile_peak(self, specs: dict[str, KVCacheSpec]) -> int:
        """Bytes of activations in the largest step max_num_batched_tokens and max_num_seqs allow."""
        scheduler = self.config.scheduler_config
        tokens = min(scheduler.max_num_batched_tokens, scheduler.max_num_seqs * self.config.max_model_len)
        runner = self._make_runner(_one_block_config(specs))
        if self.platform.supports("memory_statistics"):
            torch.cuda.reset_peak_memory_stats(self.device)
            before = torch.cuda.memory_allocated(self.device)
            runner.dummy_run(tokens, scheduler.max_num_seqs)
            peak = torch.cuda.max_memory_allocated(self.device) - before
            torch.cuda.empty_cache()  # or what the run has freed would count as in use
            return peak
        profiled = min(tokens, CPU_PROFILE_TOKENS)
        with PeakMemory() as memory:
            runner.dummy_run(profiled, cdiv(scheduler.max_num_seqs * profiled, tokens))
        return memory.peak * tokens // profiled

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the caches and the rows.

        Raises:
            ConfigError: the system does not give that much memory.
        """
        self.runner = self._make_runner(kv_cache_config)

    def _make_runner(self, kv_cache_config: KVCacheConfig) -> ModelRunner | DeviceModelRunner:
        try:
            caches = allocate_kv_caches(kv_cache_config, self.device)
        except (MemoryError, RuntimeError, ValueError, OverflowError) as error:  # beyond what a size can be
            raise ConfigError(
                f"No memory for {kv_cache_config.num_blocks} KV cache blocks: {error}. Lower "
                "--kv-cache-memory-bytes, --gpu-memory-utilization or --max-num-seqs.",
                parameter="num_gpu_blocks",
                value=kv_cache_config.num_blocks,
            ) from error
        try:
            if self.choice.name == "device":
                return self._make_device_runner(kv_cache_config, caches)
            return ModelRunner(self.config, self.model, kv_cache_config, caches, self.device)
        except MemoryError as error:
            rows = self.config.scheduler_config.max_num_seqs
            message = f"No memory for the tables of {rows} requests: {error}. Lower --max-num-seqs."
            raise ConfigError(message, parameter="max_num_seqs", value=rows) from error

    def _make_device_runner(self, kv_cache_config: KVCacheConfig, caches: KVCaches) -> DeviceModelRunner:
        uses_triton = _uses_triton(self.device)
        if uses_triton:
            self.compile_watch.start()
        has_graphs = self.platform.supports("cuda_graphs") and not self.config.model_config.enforce_eager
        return DeviceModelRunner(
            self.config,
            self.model,
            kv_cache_config,
            caches,
            self.device,
            use_triton=uses_triton,
            graphs=CudaBackend() if has_graphs else None,
            attention_support=attention_support(uses_triton),
        )

    def compile_or_warm_up_model(self) -> None:
        """Run every path once, so that kernels are loaded (the very first time: compiled) before requests
        come."""
        if self.platform.supports("host_kernels"):
            ops.warm_up_kernels(self.model.arch.head_dim)
        max_seqs = self.config.scheduler_config.max_num_seqs
        budget = self.config.scheduler_config.max_num_batched_tokens
        for tokens, reqs in ((1, 1), (min(4, budget, max_seqs), 4), (min(16, budget), 1)):
            self.runner.dummy_run(min(tokens, self.config.max_model_len), reqs)
        self.runner.warm_up()
        if self.choice.name == "device":  # a step takes milliseconds: a whole collection as long as many
            self.compile_watch.warmed_up()
            gc.collect()
            gc.freeze()

    def late_compilations(self) -> list[str]:
        """Kernels that were compiled after warm-up, and what about them was not foreseen."""
        return self.compile_watch.late

    def execute_model(self, scheduler_output: SchedulerOutput) -> ModelRunnerOutput:
        return self.runner.execute_model(scheduler_output)

    def start_step(self, scheduler_output: SchedulerOutput) -> PendingOutput:
        """execute_model without waiting: only for the device-resident runner."""
        assert isinstance(self.runner, DeviceModelRunner)
        return self.runner.start_step(scheduler_output)

    def shutdown(self) -> None:
        """Give the device's memory back: of what was frozen, and of graphs, nothing ends by itself."""
        if isinstance(getattr(self, "runner", None), DeviceModelRunner):
            self.runner.graphs.release()  # type: ignore[union-attr]
            del self.runner, self.model
            gc.unfreeze()
            gc.collect()

    def memory_report(self) -> dict[str, int]:
        """Bytes held: `weight_bytes` as packed, `kv_cache_bytes` of the pool."""
        caches = {t.data_ptr(): t.nbytes for pair in self.runner.kv_caches.values() for t in pair}
        return {"weight_bytes": self.model.weight_bytes(), "kv_cache_bytes": sum(caches.values())}

    def check_health(self) -> int:
        """Answers with the process id: a worker that answers is alive."""
        return os.getpid()


def attention_support(uses_triton: bool) -> GraphSupport:
    """What a graph can hold of attention: its kernels read lengths on the device, its torch twin asks for
    them."""
    return GraphSupport.ALWAYS if uses_triton else GraphSupport.NEVER


def _uses_triton(device: torch.device) -> bool:
    return ops.gpu_kernels(torch.empty(1, device=device)) is not None


def _one_block_config(specs: dict[str, KVCacheSpec]) -> KVCacheConfig:
    """A cache of one block, every layer a group of its own: enough for a step that stores nothing."""
    return KVCacheConfig(
        num_blocks=1,
        block_size=next(iter(specs.values())).block_size,
        groups=tuple(KVCacheGroupSpec((name,), spec) for name, spec in specs.items()),
        tensors=tuple(KVCacheTensor((name,)) for name in specs),
    )
