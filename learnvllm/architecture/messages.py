"""What crosses the process boundary between a front end and the engine core: token ids, never text.

msgspec Structs encoded as arrays, so a message is a few bytes plus its tokens.
Upstream namesake: vllm/v1/engine/__init__.py (EngineCoreRequest, EngineCoreOutputs).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import msgspec
import numpy as np

from learnvllm.architecture.sampling_params import SamplingParams


class FinishReason(IntEnum):
    """Why a request ended. `str()` gives the OpenAI spelling."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3

    def __str__(self) -> str:
        return self.name.lower()


class EngineCoreEventType(IntEnum):
    QUEUED = 1
    SCHEDULED = 2
    PREEMPTED = 3


class EngineCoreEvent(msgspec.Struct, array_like=True):
    """A moment in a request's life. `timestamp`: time.monotonic() seconds of the engine process."""

    type: EngineCoreEventType
    timestamp: float


class LogprobsLists(NamedTuple):
    """Log-probabilities of one request, one row per token.

    token_ids: int32 [rows, k+1], column 0 is the token itself, then the k most likely, best first.
    logprobs: float32 [rows, k+1], natural log, of the raw model distribution (before temperature).
    ranks: int32 [rows], 1 = the most likely.
    """

    token_ids: np.ndarray
    logprobs: np.ndarray
    ranks: np.ndarray


class EngineCoreRequest(msgspec.Struct, array_like=True, omit_defaults=True):
    """A request at the engine's door. `sampling_params.max_tokens` is always set; n is 1."""

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    eos_token_ids: list[int] = []
    arrival_time: float = 0.0
    """time.time() seconds."""
    priority: int = 0
    cache_salt: str | None = None
    client_index: int = 0


class RemoteError(msgspec.Struct, array_like=True, omit_defaults=True):
    """An exception on its way to another process: the name of its class in `errors`, and what it said."""

    kind: str
    message: str
    parameter: str | None = None
    value: Any = None


class EngineCoreOutput(msgspec.Struct, array_like=True, omit_defaults=True):
    """What a step produced for one request."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: LogprobsLists | None = None
    new_prompt_logprobs: LogprobsLists | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    """The stop token id that ended it, if one did (None for end-of-sequence)."""
    events: list[EngineCoreEvent] | None = None
    num_cached_tokens: int = 0
    error: RemoteError | None = None
    """Why the core refused the request (finish_reason is ERROR)."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


class SchedulerStats(msgspec.Struct, array_like=True, omit_defaults=True):
    """A step's figures for metrics; counters are increments since the last message."""

    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
    """Share of blocks in use, 0 to 1."""
    prefix_cache_queries: int = 0
    """Prompt tokens looked up."""
    prefix_cache_hits: int = 0
    num_preemptions: int = 0
    num_scheduled_tokens: int = 0


class UtilityOutput(msgspec.Struct, array_like=True, omit_defaults=True):
    """The answer to an out-of-band call (EngineCoreClient.call_utility)."""

    call_id: int
    result: Any = None
    error: RemoteError | None = None


class EngineCoreOutputs(msgspec.Struct, array_like=True, omit_defaults=True):
    """Everything one step sends to one client."""

    outputs: list[EngineCoreOutput] = []
    scheduler_stats: SchedulerStats | None = None
    utility_output: UtilityOutput | None = None
    timestamp: float = 0.0
    """time.monotonic() seconds of the engine process."""
