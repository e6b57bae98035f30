"""Log-probabilities of the prompt's own tokens, for each chunk of a prompt as it is computed.

Logits over the vocabulary are large (200 KB a row of SmolLM2), so a chunk's are made a few rows at a time and
never kept. Upstream namesake: vllm/v1/worker/gpu/sample/prompt_logprob.py (PromptLogprobsWorker).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from learnvllm.architecture.messages import LogprobsLists
from learnvllm.architecture.step import NewRequestData
from learnvllm.executor_worker.input_batch import BatchShape
from learnvllm.executor_worker.request_state import RequestState
from learnvllm.executor_worker.sample.logprob import ROWS_AT_ONCE, compute_logprobs, concatenate


class PromptLogprobs:
    """Which rows asked, and for how many most likely tokens besides the prompt's own."""

    def __init__(self, requests: RequestState, use_kernels: bool) -> None:
        self._requests, self._use_kernels = requests, use_kernels
        self._num_top: dict[int, int] = {}

    def add_request(self, row: int, request: NewRequestData) -> None:
        """Note what a request asks for. One that has output already got everything before it was
        preempted."""
        self._num_top.pop(row, None)
        num_top = request.sampling_params.prompt_logprobs
        if num_top is not None and len(request.token_ids) == request.num_prompt_tokens:
            self._num_top[row] = num_top

    def asked_by(self, rows: np.ndarray) -> bool:
        """Whether any of these rows still waits for some."""
        return bool(self._num_top) and not self._num_top.keys().isdisjoint(rows.tolist())

    def compute(
        self, batch: BatchShape, hidden: Tensor, compute_logits: Callable[[Tensor], Tensor]
    ) -> dict[str, LogprobsLists]:
        """Rows for the prompt positions of this step, by request id. hidden: [T, H]."""
        if not self._num_top:
            return {}
        result = {}
        for index, row in enumerate(batch.rows.tolist()):
            num_top = self._num_top.get(row)
            if num_top is None:
                continue
            end = int(batch.seq_lens[index])
            start = end - int(batch.num_scheduled[index])
            # The token at position p predicts the one at p + 1; the last one's logits are the sampler's.
            last = int(self._requests.num_prompt_tokens[row]) - 1
            parts = [_no_rows(num_top)]
            for p in range(start, min(end, last), ROWS_AT_ONCE):
                stop = min(p + ROWS_AT_ONCE, end, last)
                first = int(batch.query_start_loc[index]) - start
                targets = self._requests.token_ids[row, p + 1 : stop + 1].astype(np.int64)
                logits = compute_logits(hidden[first + p : first + stop]).float()
                parts.append(compute_logprobs(logits, targets, num_top, self._use_kernels))
            result[batch.req_ids[index]] = concatenate(parts)
            if end > last:
                del self._num_top[row]  # its prompt is complete
        return result


def _no_rows(num_top: int) -> LogprobsLists:
    """So that a prompt of one token, which has none, still gets arrays of the right width."""
    return LogprobsLists(
        np.zeros((0, num_top + 1), np.int32), np.zeros((0, num_top + 1), np.float32), np.zeros(0, np.int32)
    )
