"""Figures of a step and of a request, gathered where outputs are processed.

An interval is taken with one process's clock: queueing, prefill and decode with the engine's monotonic clock,
time to first token and end to end with the front end's. Upstream namesake: vllm/v1/metrics/stats.py.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from learnvllm.architecture.messages import EngineCoreEventType, EngineCoreOutput, FinishReason
from learnvllm.architecture.outputs import RequestMetrics


@dataclass
class RequestStateStats:
    """Moments of one request. `*_ts`: seconds of the engine's monotonic clock, 0 while unknown."""

    arrival_time: float
    """time.time() seconds of the front end."""
    queued_ts: float = 0.0
    scheduled_ts: float = 0.0
    first_token_ts: float = 0.0
    last_token_ts: float = 0.0
    num_generation_tokens: int = 0
    num_preemptions: int = 0
    time_to_first_token: float | None = None

    def to_metrics(self, now: float, finished: bool) -> RequestMetrics:
        return RequestMetrics(
            arrival_time=self.arrival_time,
            queued_time=_interval(self.queued_ts, self.scheduled_ts),
            time_to_first_token=self.time_to_first_token,
            e2e_latency=now - self.arrival_time if finished else None,
            num_preemptions=self.num_preemptions,
        )


@dataclass(frozen=True)
class FinishedRequestStats:
    """One finished request. Times in seconds."""

    finish_reason: FinishReason
    e2e_latency: float
    num_prompt_tokens: int
    num_generation_tokens: int
    queued_time: float
    prefill_time: float
    """First scheduled to first token."""
    decode_time: float
    """First token to last token."""
    inference_time: float
    """First scheduled to last token."""
    mean_time_per_output_token: float


@dataclass
class IterationStats:
    """What one message of the engine brought."""

    timestamp: float = field(default_factory=time.time)
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    time_to_first_tokens: list[float] = field(default_factory=list)
    inter_token_latencies: list[float] = field(default_factory=list)
    finished_requests: list[FinishedRequestStats] = field(default_factory=list)

    def update_from_output(
        self, output: EngineCoreOutput, engine_ts: float, num_prompt_tokens: int, stats: RequestStateStats
    ) -> None:
        """Take in one output; `engine_ts` is when the engine made it."""
        for event in output.events or ():
            if event.type is EngineCoreEventType.QUEUED:
                stats.queued_ts = event.timestamp
            elif event.type is EngineCoreEventType.SCHEDULED:
                stats.scheduled_ts = stats.scheduled_ts or event.timestamp  # the first, before preemptions
            else:
                stats.num_preemptions += 1
        if not output.new_token_ids:
            return
        self.num_generation_tokens += len(output.new_token_ids)
        if stats.num_generation_tokens == 0:
            self.num_prompt_tokens += num_prompt_tokens
            stats.first_token_ts = engine_ts
            stats.time_to_first_token = self.timestamp - stats.arrival_time
            self.time_to_first_tokens.append(stats.time_to_first_token)
        else:
            self.inter_token_latencies.append(engine_ts - stats.last_token_ts)
        stats.num_generation_tokens += len(output.new_token_ids)
        stats.last_token_ts = engine_ts

    def finish_request(self, reason: FinishReason, num_prompt_tokens: int, stats: RequestStateStats) -> None:
        decode_time = _interval(stats.first_token_ts, stats.last_token_ts)
        self.finished_requests.append(
            FinishedRequestStats(
                finish_reason=reason,
                e2e_latency=self.timestamp - stats.arrival_time,
                num_prompt_tokens=num_prompt_tokens,
                num_generation_tokens=stats.num_generation_tokens,
                queued_time=_interval(stats.queued_ts, stats.scheduled_ts),
                prefill_time=_interval(stats.scheduled_ts, stats.first_token_ts),
                decode_time=decode_time,
                inference_time=_interval(stats.scheduled_ts, stats.last_token_ts),
                mean_time_per_output_token=decode_time / max(1, stats.num_generation_tokens - 1),
            )
        )


def _interval(begin: float, end: float) -> float:
    """0 where either moment never came (an abort may come at any time)."""
    return end - begin if begin and end else 0.0
