"""What the engine core asks of a scheduler, and nothing else.

A step is decided by `schedule`, executed by the workers, and taken in by `update_from_output`. With
asynchronous scheduling `schedule` is one step ahead: step n + 1 is decided before step n is taken in.
Upstream namesake: vllm/v1/core/sched/interface.py (SchedulerInterface).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from learnvllm.architecture.messages import EngineCoreOutputs, SchedulerStats
from learnvllm.architecture.request import BlockHasher, Request, RequestStatus
from learnvllm.architecture.step import ModelRunnerOutput, SchedulerOutput


class SchedulerInterface(ABC):
    """Owns every request from `add_request` until it ends, and decides step by step who computes what.

    The core calls it from one thread.
    """

    @property
    @abstractmethod
    def block_hasher(self) -> BlockHasher | None:
        """With this a Request must be made for this scheduler. None when prefix caching is off."""

    @abstractmethod
    def add_request(self, request: Request) -> None:
        """Queue a new request.

        Raises:
            ValidationError: it can never run (empty or too long a prompt, an id in use, no max_tokens).
            QueueFullError: too many wait; try again later.
        """

    @abstractmethod
    def schedule(self) -> SchedulerOutput:
        """Decide the next step.

        Every step must be executed, and in order. One without tokens computes nothing, but may tell the
        workers whom to forget (`finished_req_ids`, `preempted_req_ids`); it may also be all there is while
        every running request waits for a step in flight.
        """

    @abstractmethod
    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """Take in what a step produced; return what each client (by index) is to be told.

        Steps must come back in the order they were scheduled.
        """

    @abstractmethod
    def finish_requests(
        self, request_ids: str | Iterable[str], finished_status: RequestStatus
    ) -> list[tuple[str, int]]:
        """End requests from outside (abort, stop string, error), whatever state they are in. Unknown ids are
        ignored.

        Returns:
            (request id, client index) of those that were ended.
        """

    @abstractmethod
    def get_request_counts(self) -> tuple[int, int]:
        """(running, waiting)."""

    @abstractmethod
    def has_finished_requests(self) -> bool:
        """Whether workers still have to be told of requests that finished."""

    @abstractmethod
    def make_stats(self) -> SchedulerStats:
        """Figures for metrics. Counters start again from 0 with each call."""

    @abstractmethod
    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes. False, and nothing happens, while a request holds blocks."""

    @abstractmethod
    def shutdown(self) -> None:
        """Release what the scheduler holds outside the process' memory."""

    def get_num_unfinished_requests(self) -> int:
        running, waiting = self.get_request_counts()
        return running + waiting

    def has_unfinished_requests(self) -> bool:
        return self.get_num_unfinished_requests() > 0

    def has_requests(self) -> bool:
        """Whether there is a reason to call `schedule`."""
        return self.has_unfinished_requests() or self.has_finished_requests()
