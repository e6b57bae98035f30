"""A report from a client: the answer came, and never ended (break-and-fix, 5 minutes, 6 points).

A client that speaks to the engine in token ids hangs, so the report says. It gets all tokens of its answer
and then waits for ever; but only where the model itself ends the answer. Requests that reach max_tokens end
as they should, and so do those that are aborted. Nothing crashes, and the engine says that it is idle. A
warm-up of five minutes: these messages have one line of logic, so the question is why it works for everybody
else.

Not asked: The scheduler, which decides that a request has ended, and FinishReason, whose numbers other
programs read off the wire: both are right.

This file has a mistake in it. Find it and repair it.

Read: docs/topics/architecture/concepts.md
Check: learnvllm check architecture.never_finished
"""

from __future__ import annotations

from typing import Any

import msgspec

from learnvllm.architecture.messages import EngineCoreEvent, FinishReason, LogprobsLists
from learnvllm.architecture.sampling_params import SamplingParams


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
        return bool(self.finish_reason)


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
