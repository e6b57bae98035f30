"""Turns the scheduler's steps into StepEvents, for traces, tests and pictures.

The scheduler holds one only when there is a tracer: all else that a step pays is `if self._recorder`, a few
times.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from learnvllm.architecture.request import Request
from learnvllm.architecture.step import ModelRunnerOutput, SchedulerOutput
from learnvllm.architecture.tracing import (
    EngineState,
    RecordingTracer,
    ScheduledTokens,
    StepEvent,
    StepTracer,
)
from learnvllm.kv_cache.block_pool import BlockPool, BlockPoolLog

if TYPE_CHECKING:
    from learnvllm.scheduling.scheduler import Scheduler

NAME_DIGITS = 8
"""Of a content's hash, in states: enough to tell apart what a picture can show."""


class StepRecorder:
    """One event per step that computes something, recorded when its output has come back."""

    def __init__(self, tracer: StepTracer, block_pool: BlockPool) -> None:
        self.tracer = tracer
        self.block_pool = block_pool
        self.block_pool.log = BlockPoolLog()
        self.finished: list[str] = []
        """Requests that ended since the last event."""
        self._preempted: list[str] = []
        self._open: dict[int, StepEvent] = {}
        self._wants_states = isinstance(tracer, RecordingTracer) and tracer.states
        self._scheduler: Scheduler | None = None

    def scheduled(
        self, output: SchedulerOutput, batch: list[Request], started: float, scheduler: Scheduler
    ) -> None:
        """Call before the tokens of the step count as computed."""
        self._preempted += sorted(output.preempted_req_ids)
        if not batch:
            return
        num_running, num_waiting = scheduler.get_request_counts()
        self._open[output.step_id] = StepEvent(
            step=output.step_id,
            start=started,
            scheduled=self._describe(output, batch),
            preempted=self._preempted,
            num_running=num_running,
            num_waiting=num_waiting,
            free_blocks=self.block_pool.get_num_free_blocks(),
            total_blocks=self.block_pool.num_usable_blocks,
            phases={"schedule": time.monotonic() - started},
        )
        self._preempted = []
        if self._wants_states:
            self._scheduler = scheduler
            self._open[output.step_id].planned = describe_state(scheduler)

    def executed(self, step_id: int, output: ModelRunnerOutput, started: float) -> None:
        """Call at the end of the update that began at `started`."""
        event = self._open.pop(step_id, None)
        if event is None:
            return
        sampled = dict(zip(output.req_ids, output.sampled_token_ids))
        for entry in event.scheduled:
            entry.sampled = list(sampled.get(entry.req_id, ()))
        event.finished, self.finished = self.finished, []
        log, self.block_pool.log = self.block_pool.log, BlockPoolLog()
        if log is not None:
            event.blocks_freed, event.blocks_evicted = log.freed, log.evicted
        event.phases["execute"] = started - event.start - event.phases["schedule"]
        event.phases["forward"] = output.forward_seconds
        event.phases["update"] = time.monotonic() - started
        if self._scheduler is not None:
            event.taken_in = describe_state(self._scheduler)
        self.tracer.record(event)

    def _describe(self, output: SchedulerOutput, batch: list[Request]) -> list[ScheduledTokens]:
        blocks = {new.req_id: new.block_ids for new in output.scheduled_new_reqs}
        admitted = set(blocks)
        cached = output.scheduled_cached_reqs
        blocks |= {
            req_id: ids for req_id, ids in zip(cached.req_ids, cached.new_block_ids) if ids is not None
        }
        return [
            ScheduledTokens(
                req_id=request.request_id,
                num_tokens=output.num_scheduled_tokens[request.request_id],
                num_computed_before=request.num_computed_tokens,
                num_known=request.num_tokens,
                num_prompt=request.num_prompt_tokens,
                block_ids=[list(ids) for ids in blocks.get(request.request_id, ())],
                num_cached_tokens=request.num_computed_tokens if request.request_id in admitted else 0,
            )
            for request in batch
        ]


def describe_state(scheduler: Scheduler) -> EngineState:
    """Queues, tables and every block of the pool, as they are now."""
    manager = scheduler.kv_cache_manager
    pool = manager.block_pool
    tables = {r: [list(ids) for ids in manager.get_block_ids(r)] for r in scheduler.requests}
    return EngineState(
        running=[request.request_id for request in scheduler.running],
        waiting=[request.request_id for request in scheduler.waiting],
        ref_counts=[block.ref_count for block in pool.blocks],
        names=["" if b.block_hash is None else b.block_hash.hex()[:NAME_DIGITS] for b in pool.blocks],
        free_queue=[block.block_id for block in pool.free_block_queue],
        tables={req_id: groups for req_id, groups in tables.items() if any(groups)},
    )
