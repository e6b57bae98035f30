"""Repetition, frequency and presence penalties: how often each row's request has used each token.

Counts are kept from step to step (one increment a token), so a penalised row costs one pass over its logits.
Upstream namesake: vllm/v1/worker/gpu/sample/penalties.py (PenaltiesState).
"""

from __future__ import annotations

import numpy as np
import torch

from learnvllm.architecture.step import NewRequestData
from learnvllm.executor_worker.sample import torch_ref

IN_PROMPT = 1 << 30


class Penalties:
    """Per row: three penalties and, for rows that use any, a counter for every token of the vocabulary."""

    def __init__(self, max_rows: int, vocab_size: int) -> None:
        self.repetition = np.ones(max_rows, dtype=np.float32)
        self.frequency = np.zeros(max_rows, dtype=np.float32)
        self.presence = np.zeros(max_rows, dtype=np.float32)
        # Occurrences in the output, plus IN_PROMPT if the prompt has the token. Only rows in use take real
        # memory.
        self.occurrences = np.zeros((max_rows, vocab_size), dtype=np.int32)

    def add_request(self, row: int, request: NewRequestData) -> bool:
        """Take over a request's penalties; whether it has any."""
        params = request.sampling_params
        self.repetition[row] = params.repetition_penalty
        self.frequency[row] = params.frequency_penalty
        self.presence[row] = params.presence_penalty
        used = params.repetition_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0
        if used:
            counts = self.occurrences[row]
            counts.fill(0)
            counts[request.token_ids[: request.num_prompt_tokens]] = IN_PROMPT
            np.add.at(counts, request.token_ids[request.num_prompt_tokens :], 1)
        return used

    def count(self, rows: np.ndarray, token_ids: np.ndarray) -> None:
        """Note one more output token for each row. rows, token_ids: [n], each row once."""
        self.occurrences[rows, token_ids] += 1

    def apply(self, logits: torch.Tensor, indices: np.ndarray, rows: np.ndarray, use_kernels: bool) -> None:
        """Penalise, in place, the rows `indices` [n] of logits [S, V], which belong to the requests in `rows`
        [n]."""
        repetition, frequency, presence = self.repetition[rows], self.frequency[rows], self.presence[rows]
        if use_kernels:
            from learnvllm.executor_worker.sample import logit_kernels

            logit_kernels.penalize(
                logits.numpy(), indices, rows, self.occurrences, repetition, frequency, presence
            )
            return
        device = logits.device
        seen = torch.from_numpy(self.occurrences[rows]).to(device)
        selected = torch.from_numpy(indices).to(device)
        values = (torch.from_numpy(p).to(device) for p in (repetition, frequency, presence))
        logits[selected] = torch_ref.penalize(
            logits[selected], seen & (IN_PROMPT - 1), (seen & IN_PROMPT) > 0, *values
        )
