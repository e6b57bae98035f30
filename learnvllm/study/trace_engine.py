"""The real engine core on a clock that we turn ourselves: what the visualisers' traces are recorded with.

Scheduler, block pool and `EngineCore.step` are the ones that serve; only the model is played by a script, and
a step lasts as long as `Costs` says. So a recording is the same on every machine, to the last digit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learnvllm.architecture.config import (
    CacheConfig,
    EngineConfig,
    ModelConfig,
    PrefixCacheEviction,
    SchedulerConfig,
)
from learnvllm.architecture.messages import EngineCoreOutputs
from learnvllm.architecture.step import ModelRunnerOutput, SchedulerOutput
from learnvllm.architecture.tracing import RecordingTracer, StepEvent, StepTracer
from learnvllm.engine_core.core import EngineCore, SchedulerFactory
from learnvllm.executor_worker.executor import Executor, ModelLoader
from learnvllm.kv_cache.interface import FullAttentionSpec, KVCacheConfig
from learnvllm.scheduling.async_scheduler import AsyncScheduler
from learnvllm.scheduling.scheduler import Scheduler
from learnvllm.scheduling.toy import toy_architecture
from learnvllm.study.trace_clock import Clock, Costs, FrontEnd, Span

VOCAB_SIZE = 1 << 16


class ClockFuture(Future[ModelRunnerOutput]):
    """Done when the clock says so. Asking for the result earlier is waiting: it turns the clock."""

    def __init__(self, clock: Clock, step: int, done_at: int) -> None:
        super().__init__()
        self._clock, self._step, self._done_at = clock, step, done_at

    def done(self) -> bool:
        return self._clock.now >= self._done_at

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        clock = self._clock
        if clock.now < self._done_at:
            clock.spend("core", "wait", self._done_at - clock.now, step=self._step)
        return super().result(timeout)


class ScriptedExecutor(Executor):
    """A worker whose model knows its lines.

    Args:
        scripts: request id -> the tokens it is to produce, one after another.
    """

    def __init__(
        self, config: EngineConfig, clock: Clock, costs: Costs, scripts: Mapping[str, Sequence[int]]
    ) -> None:
        self._clock, self._costs, self._scripts = clock, costs, scripts
        self._rows: dict[str, tuple[int, int, int]] = {}
        """Request id -> tokens computed, tokens known, tokens of the prompt."""
        self._free_at = 0
        super().__init__(config)

    def _start(self, load_model: ModelLoader | None) -> None:
        """There is nothing to start."""

    def collective_rpc(
        self, method: str, args: tuple[Any, ...] = (), timeout: float | None = None
    ) -> list[Any]:
        if method == "get_kv_cache_specs":
            return [{"layer": FullAttentionSpec(self.config.cache_config.block_size, 1, 8, "float32")}]
        return [None]

    def _execute(self, scheduler_output: SchedulerOutput) -> Future[ModelRunnerOutput]:
        tokens, clock = scheduler_output.total_num_scheduled_tokens, self._clock
        begin = done = max(clock.now, self._free_at)
        if tokens:
            done += self._costs.forward + tokens // self._costs.tokens_per_unit
            about = tuple(scheduler_output.num_scheduled_tokens)
            clock.spans.append(
                Span("worker", "forward", begin, done, scheduler_output.step_id, about, tokens)
            )
        self._free_at = done
        future = ClockFuture(clock, scheduler_output.step_id, done)
        future.set_result(self._compute(scheduler_output))
        return future

    def _compute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        for req_id in output.finished_req_ids | output.preempted_req_ids:
            self._rows.pop(req_id, None)
        for new in output.scheduled_new_reqs:
            self._rows[new.req_id] = (new.num_computed_tokens, len(new.token_ids), new.num_prompt_tokens)
        sampled = []
        for req_id, count in output.num_scheduled_tokens.items():
            computed, known, num_prompt = self._rows[req_id]
            computed += count
            tokens = [self._line(req_id, known - num_prompt)] if computed == known else []
            self._rows[req_id] = (computed, known + len(tokens), num_prompt)
            sampled.append(tokens)
        return ModelRunnerOutput(list(output.num_scheduled_tokens), sampled)

    def _line(self, req_id: str, index: int) -> int:
        """Beyond its script (a step in flight when it ended) a request gets token 0, which nobody keeps."""
        script = self._scripts[req_id]
        return script[index] if index < len(script) else 0

    def check_health(self) -> None:
        """It never dies."""

    def register_failure_callback(self, callback: Callable[[], None]) -> None:
        """It never dies."""

    def shutdown(self) -> None:
        """Nothing is held."""


@dataclass
class Recorder:
    """An engine core under observation."""

    core: EngineCore
    clock: Clock
    front: FrontEnd
    tracer: RecordingTracer

    @property
    def events(self) -> list[StepEvent]:
        return list(self.tracer.events)


def make_recorder(config: EngineConfig, scripts: Mapping[str, Sequence[int]], costs: Costs) -> Recorder:
    """Put the engine core together as engine_core/build.py does, around the script and the clock."""
    clock = Clock()
    tracer = RecordingTracer(states=True)
    front = FrontEnd(clock, costs)
    core = EngineCore(
        config,
        lambda cfg: ScriptedExecutor(cfg, clock, costs, scripts),
        _make_scheduler_factory(clock, costs, bool(config.scheduler_config.async_scheduling)),
        tracer,
    )
    return Recorder(core, clock, front, tracer)


def _make_scheduler_factory(clock: Clock, costs: Costs, is_async: bool) -> SchedulerFactory:
    base: type[Scheduler] = AsyncScheduler if is_async else Scheduler

    class TimedScheduler(base):  # type: ignore[misc, valid-type]
        """Deciding and taking in cost time, too."""

        def schedule(self) -> SchedulerOutput:
            output: SchedulerOutput = super().schedule()
            about = tuple(output.num_scheduled_tokens)
            tokens = output.total_num_scheduled_tokens
            step = output.step_id
            clock.spend("core", "schedule", costs.schedule, step=step, requests=about, tokens=tokens)
            return output

        def update_from_output(
            self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
        ) -> dict[int, EngineCoreOutputs]:
            outputs = super().update_from_output(scheduler_output, model_runner_output)
            about = tuple(o.request_id for m in outputs.values() for o in m.outputs)
            if scheduler_output.total_num_scheduled_tokens:
                step = scheduler_output.step_id
                clock.spend("core", "update", costs.update, step=step, requests=about)
            return outputs

    def make(config: EngineConfig, kv_cache_config: KVCacheConfig, tracer: StepTracer | None) -> Scheduler:
        return TimedScheduler(config, kv_cache_config, tracer)

    return make


def make_config(
    *,
    num_blocks: int,
    block_size: int,
    budget: int,
    max_num_seqs: int = 8,
    eviction: PrefixCacheEviction = "lru",
    **scheduler: Any,
) -> EngineConfig:
    """A configuration for a model that is played. One block of `num_blocks` is the null block."""
    arch = toy_architecture(vocab_size=VOCAB_SIZE, max_position_embeddings=512, eos_token_ids=(0,))
    options: dict[str, Any] = {"prefill_tokens_per_decode": 0, "async_scheduling": False, **scheduler}
    return EngineConfig(
        model_config=ModelConfig(model="played", path=Path("played"), arch=arch),
        cache_config=CacheConfig(
            block_size=block_size,
            num_gpu_blocks_override=num_blocks,
            watermark=0.0,
            prefix_cache_eviction=eviction,
        ),
        scheduler_config=SchedulerConfig(max_num_batched_tokens=budget, max_num_seqs=max_num_seqs, **options),
    )
