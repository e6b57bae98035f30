"""What a worker remembers of every running request: one row each, from its first step to its last.

The scheduler sends a request's tokens once; what the model samples is appended here at once, so the next step
can start before the host has seen it. Upstream namesake: vllm/v1/worker/gpu/states.py (RequestState).
"""

from __future__ import annotations

import numpy as np

from learnvllm.architecture.step import NewRequestData


class RequestState:
    """Rows of all requests. A row is taken when a request arrives and given back when it ends or is
    preempted.

    Args:
        max_rows: requests that may run at once (max_num_seqs).
        max_tokens: longest request, the last sampled token included.
    """

    def __init__(self, max_rows: int, max_tokens: int) -> None:
        self.max_rows, self.max_tokens = max_rows, max_tokens
        self.row_of: dict[str, int] = {}
        self._free_rows = list(range(max_rows - 1, -1, -1))  # the lowest is taken first
        self.token_ids = np.zeros((max_rows, max_tokens), dtype=np.int32)
        self.num_tokens = np.zeros(max_rows, dtype=np.int64)
        """Known tokens: prompt and output."""
        self.num_prompt_tokens = np.zeros(max_rows, dtype=np.int64)
        self.num_computed_tokens = np.zeros(max_rows, dtype=np.int64)
        """Tokens whose KV is in the cache before the step at hand."""

    def add(self, request: NewRequestData) -> int:
        """Give a request a row. Every value the row holds is written, so nothing of its last owner is left.

        Raises:
            RuntimeError: the scheduler runs more requests than max_num_seqs, or sends one twice (a bug
            there).
        """
        if request.req_id in self.row_of:
            raise RuntimeError(f"Request {request.req_id!r} came as new but already has a row.")
        if not self._free_rows:
            raise RuntimeError(
                f"Request {request.req_id!r} came as new but all {self.max_rows} rows (max_num_seqs) are "
                "taken."
            )
        row = self._free_rows.pop()
        self.row_of[request.req_id] = row
        count = len(request.token_ids)
        self.token_ids[row, :count] = request.token_ids
        self.num_tokens[row] = count
        self.num_prompt_tokens[row] = request.num_prompt_tokens
        self.num_computed_tokens[row] = request.num_computed_tokens
        return row

    def remove(self, req_id: str) -> int | None:
        """Forget a request; its former row, or None if it had none (aborted while it waited)."""
        row = self.row_of.pop(req_id, None)
        if row is not None:
            self._free_rows.append(row)
        return row

    def append_sampled(self, rows: np.ndarray, token_ids: np.ndarray) -> None:
        """Add one sampled token to each row. rows, token_ids: [S], each row once."""
        self.token_ids[rows, self.num_tokens[rows]] = token_ids
        self.num_tokens[rows] += 1
