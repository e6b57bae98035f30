"""bad_words: forbid the token that would complete a forbidden sequence.

A sequence may only span output tokens: what the prompt contains does not count. Upstream namesakes:
vllm/v1/worker/gpu/sample/bad_words.py, vllm/v1/sample/ops/bad_words.py.
"""

from __future__ import annotations

import numpy as np
import torch

from learnvllm.architecture.step import NewRequestData


class BadWords:
    """The forbidden sequences of the rows that have any, as (all tokens but the last, the last)."""

    def __init__(self) -> None:
        self._sequences: dict[int, list[tuple[list[int], int]]] = {}

    def add_request(self, row: int, request: NewRequestData) -> bool:
        """Take over a request's bad words; whether it has any."""
        self._sequences.pop(row, None)
        words = request.sampling_params.bad_words_token_ids
        if not words:
            return False
        self._sequences[row] = [(word[:-1], word[-1]) for word in words if word]
        return True

    def apply(self, logits: torch.Tensor, index: int, row: int, output: np.ndarray) -> None:
        """Forbid tokens in logits[index] for the request in `row`. output: its output tokens so far."""
        for prefix, last in self._sequences.get(row, ()):
            if not prefix or output[-len(prefix) :].tolist() == prefix:
                logits[index, last] = float("-inf")
