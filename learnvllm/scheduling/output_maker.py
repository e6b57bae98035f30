"""What a step produced for one request, as the message its client gets.

Upstream does this inside Scheduler.update_from_output (vllm/v1/core/sched/scheduler.py).
"""

from __future__ import annotations

from learnvllm.architecture.messages import EngineCoreOutput, LogprobsLists
from learnvllm.architecture.request import Request, RequestStatus
from learnvllm.architecture.step import ModelRunnerOutput, SchedulerOutput


class OutputMaker:
    """Remembers only how many prompt log-probabilities were sent: nobody is to get them twice."""

    def __init__(self) -> None:
        self._prompt_logprobs_sent: dict[str, int] = {}

    def make(
        self,
        request: Request,
        token_ids: list[int],
        final_status: RequestStatus | None,
        scheduler_output: SchedulerOutput,
        model_runner_output: ModelRunnerOutput,
    ) -> EngineCoreOutput | None:
        """None when there is nothing to tell: a prompt is still being computed.

        Args:
            token_ids: what the request keeps of the tokens it was given.
            final_status: how it ended with them, if it did.
        """
        prompt_logprobs = None
        if model_runner_output.prompt_logprobs:
            prompt_logprobs = self._take_prompt_logprobs(request, scheduler_output, model_runner_output)
        if not token_ids and prompt_logprobs is None and final_status is None:
            return None
        return EngineCoreOutput(
            request.request_id,
            token_ids,
            new_logprobs=model_runner_output.logprobs.get(request.request_id) if token_ids else None,
            new_prompt_logprobs=prompt_logprobs,
            finish_reason=None if final_status is None else final_status.finish_reason,
            stop_reason=request.stop_reason,
            events=request.take_events(),
            num_cached_tokens=max(request.num_cached_tokens, 0),
        )

    def forget(self, request: Request) -> None:
        """Call when a request has ended."""
        self._prompt_logprobs_sent.pop(request.request_id, None)

    def _take_prompt_logprobs(
        self, request: Request, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> LogprobsLists | None:
        """Rows not sent yet: a prompt that is computed again after a preemption yields some a second time."""
        rows = model_runner_output.prompt_logprobs.get(request.request_id)
        if rows is None:
            return None
        start = _num_computed_tokens(scheduler_output, request.request_id)
        end = start + len(rows.ranks)
        num_sent = self._prompt_logprobs_sent.get(request.request_id, 0)
        if end <= num_sent:
            return None
        self._prompt_logprobs_sent[request.request_id] = end
        skip = max(num_sent - start, 0)
        return LogprobsLists(rows.token_ids[skip:], rows.logprobs[skip:], rows.ranks[skip:])


def _num_computed_tokens(output: SchedulerOutput, req_id: str) -> int:
    """Tokens computed before the step. A search, but only for who wants prompt log-probabilities."""
    for new in output.scheduled_new_reqs:
        if new.req_id == req_id:
            return new.num_computed_tokens
    cached = output.scheduled_cached_reqs
    return cached.num_computed_tokens[cached.req_ids.index(req_id)]
