"""A request as the scheduler sees it: tokens known so far, tokens computed so far, and a status.

The whole of scheduling is `num_computed_tokens` catching up with `num_tokens`; the rest is bookkeeping.
Upstream namesake: vllm/v1/request.py (Request, RequestStatus).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import IntEnum

from learnvllm.architecture.messages import (
    EngineCoreEvent,
    EngineCoreEventType,
    EngineCoreRequest,
    FinishReason,
)
from learnvllm.architecture.sampling_params import SamplingParams

# Given a request, returns the hashes of its full blocks that `block_hashes` does not hold yet.
BlockHasher = Callable[["Request"], list[bytes]]


class RequestStatus(IntEnum):
    """Everything after PREEMPTED is finished."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED_STOPPED = 3
    FINISHED_LENGTH_CAPPED = 4
    FINISHED_ABORTED = 5
    FINISHED_ERROR = 6

    @property
    def is_finished(self) -> bool:
        return self > RequestStatus.PREEMPTED

    @property
    def finish_reason(self) -> FinishReason | None:
        return _FINISH_REASONS.get(self)


_FINISH_REASONS = {
    RequestStatus.FINISHED_STOPPED: FinishReason.STOP,
    RequestStatus.FINISHED_LENGTH_CAPPED: FinishReason.LENGTH,
    RequestStatus.FINISHED_ABORTED: FinishReason.ABORT,
    RequestStatus.FINISHED_ERROR: FinishReason.ERROR,
}


class Request:
    """Mutable state of one request inside the engine core. Owned by the scheduler."""

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        sampling_params: SamplingParams,
        *,
        eos_token_ids: tuple[int, ...] = (),
        arrival_time: float | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        client_index: int = 0,
        block_hasher: BlockHasher | None = None,
    ) -> None:
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.sampling_params = sampling_params
        self.eos_token_ids = eos_token_ids
        self.arrival_time = time.time() if arrival_time is None else arrival_time
        self.priority = priority
        self.cache_salt = cache_salt
        self.client_index = client_index
        self.max_tokens: int = sampling_params.max_tokens or 0  # the input processor always sets it

        self.status = RequestStatus.WAITING
        self.stop_reason: int | str | None = None
        self.num_prompt_tokens = len(prompt_token_ids)
        self.all_token_ids: list[int] = list(prompt_token_ids)
        self.num_computed_tokens = 0
        self.num_output_placeholders = 0
        """Async scheduling: tokens that steps in flight will produce."""
        self.num_cached_tokens = -1
        """Prompt tokens found in the prefix cache when first scheduled; -1 before that."""
        self.num_preemptions = 0
        self.num_tokens_at_preemption = -1
        """`num_tokens` when last preempted; a second preemption at the same count made no progress."""
        self.events: list[EngineCoreEvent] = []

        self._block_hasher = block_hasher
        self.block_hashes: list[bytes] = []
        self._extend_block_hashes()

    @classmethod
    def from_engine_core_request(cls, r: EngineCoreRequest, block_hasher: BlockHasher | None) -> Request:
        return cls(
            r.request_id,
            r.prompt_token_ids,
            r.sampling_params,
            eos_token_ids=tuple(r.eos_token_ids),
            arrival_time=r.arrival_time,
            priority=r.priority,
            cache_salt=r.cache_salt,
            client_index=r.client_index,
            block_hasher=block_hasher,
        )

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens known."""
        return len(self.all_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.all_token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens known, or promised by a step in flight, that no step has computed. A decode has one."""
        return len(self.all_token_ids) + self.num_output_placeholders - self.num_computed_tokens

    @property
    def is_finished(self) -> bool:
        return self.status.is_finished

    def append_output_token_ids(self, token_ids: list[int]) -> None:
        self.all_token_ids.extend(token_ids)
        self._extend_block_hashes()

    def record_event(self, kind: EngineCoreEventType) -> None:
        self.events.append(EngineCoreEvent(kind, time.monotonic()))

    def take_events(self) -> list[EngineCoreEvent] | None:
        if not self.events:
            return None
        events, self.events = self.events, []
        return events

    def _extend_block_hashes(self) -> None:
        if self._block_hasher is not None:
            self.block_hashes.extend(self._block_hasher(self))

    def __lt__(self, other: Request) -> bool:
        """Priority order: lower value first, then earlier arrival, then id (a total order)."""
        return (self.priority, self.arrival_time, self.request_id) < (
            other.priority,
            other.arrival_time,
            other.request_id,
        )
