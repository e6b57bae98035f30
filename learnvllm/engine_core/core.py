"""The engine's inner loop: schedule, execute, update, give out. One call of `step` is one forward pass.

Everything else in this package gets requests to this loop or results away from it. The loop itself knows no
process, no socket and no text. Upstream namesake: vllm/v1/engine/core.py (EngineCore).
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.errors import LearnVLLMError, ValidationError
from learnvllm.architecture.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
)
from learnvllm.architecture.platforms import uses_async_scheduling
from learnvllm.architecture.request import Request, RequestStatus
from learnvllm.architecture.step import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput, SchedulerOutput
from learnvllm.architecture.tracing import RecordingTracer, StepTracer, check_trace_file, write_chrome_trace
from learnvllm.engine_core.protocol import EngineReady, to_remote_error
from learnvllm.executor_worker.executor import Executor
from learnvllm.kv_cache.config_builder import get_kv_cache_config, max_step_tokens
from learnvllm.kv_cache.interface import KVCacheConfig
from learnvllm.scheduling.interface import SchedulerInterface

logger = logging.getLogger(__name__)

ExecutorFactory = Callable[[EngineConfig], Executor]
CoreFactory = Callable[[EngineConfig], "EngineCore"]
"""A module-level function, so that it can be pickled for another process."""
SchedulerFactory = Callable[[EngineConfig, KVCacheConfig, StepTracer | None], SchedulerInterface]

ASYNC_STEPS_IN_FLIGHT = 2
"""With async scheduling: the step that runs and the one scheduled behind it."""


class StepInFlight(NamedTuple):
    scheduler_output: SchedulerOutput
    future: Future[ModelRunnerOutput]


class EngineCore:
    """One model, one scheduler, one executor.

    Args:
        executor_class: makes the executor from the configuration.
        scheduler_class: makes the scheduler; an AsyncScheduler where async scheduling is on.
        tracer: receives a StepEvent per step, as does the trace file where the configuration names one.

    Raises:
        ConfigError: the machine cannot serve this configuration (memory, mostly), or write the trace file.
        ModelLoadError: the model cannot be loaded.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor_class: ExecutorFactory,
        scheduler_class: SchedulerFactory,
        tracer: StepTracer | None = None,
    ) -> None:
        self.config = config
        self.async_scheduling = uses_async_scheduling(config)
        self._trace_file = config.observability_config.trace_file
        if tracer is None and self._trace_file is not None:
            check_trace_file(self._trace_file)
            tracer = RecordingTracer()
        self._tracer = tracer

        started = time.perf_counter()
        self.executor = executor_class(config)
        try:
            self.kv_cache_config = self._initialize_kv_cache()
            self.scheduler = scheduler_class(config, self.kv_cache_config, tracer)
        except BaseException:
            self.executor.shutdown()
            raise
        logger.info("Engine core initialised in %.2f s.", time.perf_counter() - started)

        self.take_aborts: Callable[[], list[str]] | None = None
        """Asked while a step is being worked on: requests aborted meanwhile must not get its tokens."""
        self._in_flight: deque[StepInFlight] = deque()

    def _initialize_kv_cache(self) -> KVCacheConfig:
        """Layers' needs and the memory at hand give the plan of the pool; the workers allocate it."""
        specs = self.executor.get_kv_cache_specs()
        given = self.config.cache_config.num_gpu_blocks_override is not None
        available = 0 if given else self.executor.determine_available_memory()  # measuring takes a dummy step
        kv_cache_config = get_kv_cache_config(specs, available, self.config)
        self.executor.initialize_from_config(kv_cache_config)
        return kv_cache_config

    def ready_message(self) -> EngineReady:
        return EngineReady(
            config_hash=self.config.config_hash(),
            num_gpu_blocks=self.kv_cache_config.num_blocks,
            block_size=self.kv_cache_config.block_size,
            kv_cache_tokens=self.kv_cache_config.max_tokens_that_fit(
                max_step_tokens(self.config), self.config.max_model_len
            ),
        )

    # ---------------------------------------------------------------------------------- requests in and out

    def preprocess_request(self, request: EngineCoreRequest) -> Request:
        """The scheduler's form of a request. Hashes its prompt, so it may run on another thread.

        Only values that would break a step, and so hurt every other request, are looked at here; the
        scheduler refuses what it could never run.

        Raises:
            ValidationError: a token id is outside the vocabulary, or a sampling parameter cannot be served.
        """
        vocab_size = self.config.model_config.arch.vocab_size
        request.sampling_params.verify().verify_token_ids(vocab_size)
        for token_ids in (request.prompt_token_ids, request.eos_token_ids):
            if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocab_size:
                raise ValidationError(
                    f"Request {request.request_id!r} has token ids outside 0 to {vocab_size - 1}.",
                    parameter="prompt_token_ids",
                )
        return Request.from_engine_core_request(request, self.scheduler.block_hasher)

    def add_request(self, request: EngineCoreRequest | Request) -> None:
        """Queue a request.

        Raises:
            ValidationError: it can never be served.
            QueueFullError: admission limits are reached.
        """
        if isinstance(request, EngineCoreRequest):
            request = self.preprocess_request(request)
        self.scheduler.add_request(request)

    def abort_requests(self, request_ids: list[str]) -> None:
        """Forget requests at whatever stage; unknown ids (finished meanwhile) are passed over."""
        self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)

    def has_work(self) -> bool:
        """Whether a step has something to do: requests, news for the workers, steps in flight."""
        return self.scheduler.has_requests() or bool(self._in_flight)

    # ------------------------------------------------------------------------------------------------ steps

    def step(self) -> tuple[dict[int, EngineCoreOutputs], bool]:
        """Schedule one step and see it through; with async scheduling, see `step_with_batch_queue`.

        Returns:
            Outputs by client index, and whether the model ran.
        """
        if self.async_scheduling:
            return self.step_with_batch_queue()
        if not self.scheduler.has_requests():
            return {}, False
        step = self._start_step(non_block=False)
        outputs = self._finish_step(step)
        return outputs, step.scheduler_output.total_num_scheduled_tokens > 0

    def step_with_batch_queue(self) -> tuple[dict[int, EngineCoreOutputs], bool]:
        """Keep the executor busy: schedule the next step before waiting for the one that runs.

        At most two steps are in flight: one that runs and one behind it. So of a series of calls the first
        schedules step 1 and returns {} at once; every later one schedules step n + 1, then waits for step n
        and returns its outputs. Once nothing is left to schedule, calls only wait.
        """
        executed = False
        if self.scheduler.has_requests():
            step = self._start_step(non_block=True)
            self._in_flight.append(step)
            executed = step.scheduler_output.total_num_scheduled_tokens > 0
            oldest = self._in_flight[0].future
            if executed and len(self._in_flight) < ASYNC_STEPS_IN_FLIGHT and not oldest.done():
                return {}, True
        if not self._in_flight:
            return {}, False
        return self._finish_step(self._in_flight.popleft()), executed

    def _start_step(self, non_block: bool) -> StepInFlight:
        scheduler_output = self.scheduler.schedule()
        if not (
            scheduler_output.total_num_scheduled_tokens
            or scheduler_output.finished_req_ids
            or scheduler_output.preempted_req_ids
        ):
            return StepInFlight(scheduler_output, _done(EMPTY_MODEL_RUNNER_OUTPUT))  # nothing for the workers
        output = self.executor.execute_model(scheduler_output, non_block=non_block)
        return StepInFlight(scheduler_output, output if isinstance(output, Future) else _done(output))

    def _finish_step(self, step: StepInFlight) -> dict[int, EngineCoreOutputs]:
        model_output = step.future.result()
        if self.take_aborts is not None and (aborted := self.take_aborts()):
            self.abort_requests(aborted)
        return self.scheduler.update_from_output(step.scheduler_output, model_output)

    # ------------------------------------------------------------------------------------------- utilities

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False while running requests hold blocks."""
        return self.scheduler.reset_prefix_cache()

    def collective_rpc(self, method: str, args: list[Any] | None = None, timeout: float | None = None) -> Any:
        """Call a method of every worker; the results by rank. A worker's exception is raised here."""
        return self.executor.collective_rpc(method, tuple(args or ()), timeout)

    def check_health(self) -> None:
        """Raises EngineDeadError when a worker is gone."""
        self.executor.check_health()

    def get_request_counts(self) -> tuple[int, int]:
        """Requests running and waiting."""
        return self.scheduler.get_request_counts()

    def call_utility(self, method: str, args: list[Any]) -> Any:
        """Call one of UTILITIES by name."""
        if method not in UTILITIES:
            raise ValidationError(
                f"utility method {method!r} does not exist; there are {', '.join(UTILITIES)}.",
                parameter="method",
                value=method,
            )
        return getattr(self, method)(*args)

    def shutdown(self) -> None:
        """Stop the workers and write the trace file. May be called twice."""
        for step in self._in_flight:
            step.future.cancel()
        self._in_flight.clear()
        self.executor.shutdown()
        self.scheduler.shutdown()
        if self._trace_file is not None and isinstance(self._tracer, RecordingTracer):
            try:
                write_chrome_trace(self._tracer.events, self._trace_file)
            except OSError as error:  # the disk is full, the directory is gone: no reason to end in disorder
                logger.error("The trace is lost: %s cannot be written (%s).", self._trace_file, error)


def _done(output: ModelRunnerOutput) -> Future[ModelRunnerOutput]:
    future: Future[ModelRunnerOutput] = Future()
    future.set_result(output)
    return future


UTILITIES = ("reset_prefix_cache", "collective_rpc", "check_health", "get_request_counts")


def refused_output(request_id: str, error: LearnVLLMError) -> EngineCoreOutput:
    """What a client gets for a request the core did not take."""
    return EngineCoreOutput(request_id, [], finish_reason=FinishReason.ERROR, error=to_remote_error(error))
