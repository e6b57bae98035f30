"""An executor carries calls to the workers that hold the model, and their answers back.

The engine core knows this interface only; whether a worker is an object in its own process (uniproc.py) or a
process of its own (multiproc.py) makes no difference to it. Upstream namesake: vllm/v1/executor/abstract.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.step import ModelRunnerOutput, SchedulerOutput
from learnvllm.kv_cache.interface import KVCacheConfig, KVCacheSpec

if TYPE_CHECKING:
    from learnvllm.model_layers.model import DecoderModel

# Builds the model on a worker; must be picklable (a module-level function) for workers in other processes.
ModelLoader = Callable[[EngineConfig], "DecoderModel"]


class Executor(ABC):
    """Starts the workers and speaks for all of them.

    Construction returns once every worker has its device and its weights.

    Args:
        config: the engine's configuration.
        load_model: how a worker gets its model; None: learnvllm.model_layers.registry.load_model.

    Raises:
        EngineDeadError: from any method once a worker has died or after `shutdown`.
    """

    def __init__(self, config: EngineConfig, load_model: ModelLoader | None = None) -> None:
        self.config = config
        self._start(load_model)
        try:
            self.collective_rpc("init_device")
            self.collective_rpc("load_model")
        except BaseException:
            self.shutdown()
            raise

    @staticmethod
    def get_class(config: EngineConfig) -> type[Executor]:
        """The executor that parallel_config.distributed_executor_backend names."""
        if config.parallel_config.distributed_executor_backend == "mp":
            from learnvllm.executor_worker.multiproc import MultiprocExecutor

            return MultiprocExecutor
        from learnvllm.executor_worker.uniproc import UniProcExecutor

        return UniProcExecutor

    @abstractmethod
    def _start(self, load_model: ModelLoader | None) -> None:
        """Create the workers."""

    @abstractmethod
    def collective_rpc(
        self, method: str, args: tuple[Any, ...] = (), timeout: float | None = None
    ) -> list[Any]:
        """Call `method(*args)` on every worker; the results, by rank. Waits for steps in flight first.

        Raises:
            EngineTimeoutError: not every worker has answered within `timeout` seconds.
            ValidationError: there is a `timeout`, but the calling thread itself is the worker.
            Exception: whatever a worker raised, with the worker's traceback in its notes.
        """

    @abstractmethod
    def _execute(self, scheduler_output: SchedulerOutput) -> Future[ModelRunnerOutput]:
        """Start a step behind those already started."""

    @abstractmethod
    def check_health(self) -> None:
        """Raise EngineDeadError if a worker is gone."""

    @abstractmethod
    def register_failure_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback`, from another thread, when a worker dies: an idle engine is to notice, too."""

    @abstractmethod
    def shutdown(self) -> None:
        """Stop the workers and wait for them. May be called twice."""

    def execute_model(
        self, scheduler_output: SchedulerOutput, non_block: bool = False
    ) -> ModelRunnerOutput | Future[ModelRunnerOutput]:
        """Run one step; with non_block return its Future at once. Steps run in the order of the calls."""
        future = self._execute(scheduler_output)
        return future if non_block else future.result()

    def get_kv_cache_specs(self) -> dict[str, KVCacheSpec]:
        """What each layer needs of the KV cache, by layer name."""
        return self.collective_rpc("get_kv_cache_specs")[0]

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache on the worker that has least."""
        return min(self.collective_rpc("determine_available_memory"))

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the caches, then warm up, so that the first request waits for nothing."""
        self.collective_rpc("initialize_from_config", (kv_cache_config,))
        self.collective_rpc("compile_or_warm_up_model")
