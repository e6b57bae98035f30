"""Log-probabilities of the prompt's own tokens, gathered chunk by chunk until the prompt is complete.

They are handed over whole, in the step that computes the prompt's last token: a request preempted in the
middle of its prompt starts anew, and nothing is ever reported twice. Upstream namesake:
vllm/v1/worker/gpu/sample/prompt_logprob.py (PromptLogprobsWorker).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from learnvllm.architecture.messages import LogprobsLists
from learnvllm.architecture.step import NewRequestData
from learnvllm.executor_worker.input_batch import InputBatch
from learnvllm.executor_worker.request_state import RequestState
from learnvllm.executor_worker.sample.logprob import ROWS_AT_ONCE, compute_logprobs, concatenate


class PromptLogprobs:
    """What the rows that asked have so far."""

    def __init__(self, requests: RequestState) -> None:
        self._requests = requests
        self._num_top: dict[int, int] = {}
        """Row -> how many most likely tokens; only rows whose prompt is not complete."""
        self._parts: dict[int, list[LogprobsLists]] = {}

    def add_request(self, row: int, request: NewRequestData) -> None:
        """Start gathering for a request, if it asked and was not served before a preemption.

        Raises:
            RuntimeError: part of its prompt was taken from the prefix cache, so its logits will never be
            computed
                (the scheduler must not look up requests that ask for prompt_logprobs).
        """
        self._num_top.pop(row, None)
        num_top = request.sampling_params.prompt_logprobs
        if num_top is None or len(request.token_ids) > request.num_prompt_tokens:
            return
        if request.num_computed_tokens > 0:
            raise RuntimeError(
                f"Request {request.req_id!r} wants prompt_logprobs but its first "
                f"{request.num_computed_tokens} tokens come from the prefix cache."
            )
        self._num_top[row] = num_top
        self._parts[row] = [_no_rows(num_top)]

    def collect(
        self, batch: InputBatch, hidden: Tensor, compute_logits: Callable[[Tensor], Tensor]
    ) -> dict[str, LogprobsLists]:
        """Gather this step's; the finished ones by request id. hidden: [T, H]."""
        if not self._num_top:
            return {}
        finished = {}
        for index, row in enumerate(batch.rows.tolist()):
            num_top = self._num_top.get(row)
            if num_top is None:
                continue
            num_prompt = int(self._requests.num_prompt_tokens[row])
            end = int(batch.seq_lens[index])
            start = end - int(batch.num_scheduled[index])
            first = int(batch.query_start_loc[index])
            # The token at position p predicts the one at p + 1; the last one's logits are the sampler's.
            for p in range(start, min(end, num_prompt - 1), ROWS_AT_ONCE):
                count = min(ROWS_AT_ONCE, min(end, num_prompt - 1) - p)
                logits = compute_logits(hidden[first + p - start : first + p - start + count])
                targets = self._requests.token_ids[row, p + 1 : p + 1 + count].astype(np.int64)
                self._parts[row].append(compute_logprobs(logits, targets, num_top))
            if end >= num_prompt:
                del self._num_top[row]
                finished[batch.req_ids[index]] = concatenate(self._parts.pop(row))
        return finished


def _no_rows(num_top: int) -> LogprobsLists:
    """So that a prompt of one token, which has none, still gets arrays of the right width."""
    return LogprobsLists(
        np.zeros((0, num_top + 1), np.int32), np.zeros((0, num_top + 1), np.float32), np.zeros(0, np.int32)
    )
