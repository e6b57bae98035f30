"""Rules that add to, or forbid, fixed tokens of a request: logit_bias and min_tokens.

Upstream namesake: vllm/v1/worker/gpu/sample/logit_bias.py (LogitBiasState).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from learnvllm.architecture.step import NewRequestData


@dataclass(frozen=True)
class _Rules:
    bias_ids: np.ndarray
    biases: np.ndarray
    min_tokens: int
    stop_ids: np.ndarray
    """Forbidden until the request has min_tokens of output: stop tokens, and EOS though it be ignored."""


class LogitBias:
    """The rules of the rows that have any."""

    def __init__(self) -> None:
        self._rules: dict[int, _Rules] = {}

    def add_request(self, row: int, request: NewRequestData) -> bool:
        """Take over a request's rules; whether it has any."""
        params = request.sampling_params
        self._rules.pop(row, None)
        if not params.logit_bias and not params.min_tokens:
            return False
        self._rules[row] = _Rules(
            bias_ids=np.fromiter(params.logit_bias.keys(), np.int64, len(params.logit_bias)),
            biases=np.fromiter(params.logit_bias.values(), np.float32, len(params.logit_bias)),
            min_tokens=params.min_tokens,
            stop_ids=np.array(sorted({*request.eos_token_ids, *params.stop_token_ids}), dtype=np.int64),
        )
        return True

    def apply(self, logits: torch.Tensor, index: int, row: int, num_output: int) -> None:
        """Change logits[index] in place for the request in `row`, which has `num_output` output tokens so
        far."""
        rules = self._rules.get(row)
        if rules is None:
            return
        if len(rules.bias_ids):
            logits[index, rules.bias_ids] += torch.from_numpy(rules.biases).to(logits.device)
        if num_output < rules.min_tokens:
            logits[index, rules.stop_ids] = float("-inf")
