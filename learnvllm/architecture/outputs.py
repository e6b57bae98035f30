"""What a caller of the engine gets back: completions of a request, with text, tokens and log-probabilities.

Upstream namesakes: vllm/outputs.py (RequestOutput, CompletionOutput), vllm/logprobs.py (Logprob).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from learnvllm.architecture.errors import ServerError


@dataclass(frozen=True)
class Logprob:
    """One token's log-probability (natural log), its rank (1 = most likely) and its text."""

    logprob: float
    rank: int
    decoded_token: str | None = None


# token id -> Logprob, the sampled (or prompt) token included.
TokenLogprobs = dict[int, Logprob]


@dataclass
class CompletionOutput:
    """One of a request's n completions."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    """stop, length, abort or error; None while it runs."""
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended it."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestMetrics:
    """Times in seconds. Intervals use one process's clock each, so they never mix clocks."""

    arrival_time: float = 0.0
    queued_time: float = 0.0
    time_to_first_token: float | None = None
    e2e_latency: float | None = None
    num_preemptions: int = 0


@dataclass
class RequestOutput:
    """The state of a request, or what is new of it (SamplingParams.output_kind)."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """One per prompt token; the first is None."""
    num_cached_tokens: int = 0
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    error: Exception | None = None
    """Why the engine refused it after it was accepted at the door; finish_reason is then "error"."""

    @property
    def failed(self) -> bool:
        """The engine accepted it and could not go on with one of its completions: its log says why."""
        return self.error is None and any(output.finish_reason == "error" for output in self.outputs)

    def raise_failure(self) -> None:
        """For callers to whom half an answer is none.

        Raises:
            Exception: `error`.
            ServerError: it `failed`.
        """
        if self.error is not None:
            raise self.error
        if self.failed:
            raise ServerError("The engine failed on this request; its log says why.")
