"""An engine core from a configuration: which scheduler, which executor.

A module of its own, so that the engine process, which finds this function by name, loads nothing of the front
end. Upstream does this in EngineCore.__init__ and VllmConfig (vllm/v1/engine/core.py).
"""

from __future__ import annotations

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.platforms import uses_async_scheduling
from learnvllm.architecture.tracing import StepTracer
from learnvllm.engine_core.core import EngineCore
from learnvllm.executor_worker.executor import Executor
from learnvllm.scheduling.async_scheduler import AsyncScheduler
from learnvllm.scheduling.scheduler import Scheduler


def build_engine_core(config: EngineConfig, tracer: StepTracer | None = None) -> EngineCore:
    """Scheduler, executor and loop, in this process.

    Raises:
        ConfigError, ModelLoadError: as EngineCore.
    """
    scheduler_class = AsyncScheduler if uses_async_scheduling(config) else Scheduler
    return EngineCore(config, Executor.get_class(config), scheduler_class, tracer)
