"""The next token of every row: logits in, token ids and the log-probabilities that were asked for out.

The order is vLLM's: logit_bias and min_tokens, penalties, bad_words; then argmax for greedy rows, and
temperature, min-p, top-k, top-p and seeded noise for the others. A batch of plain greedy rows is one argmax.
Upstream namesake: vllm/v1/worker/gpu/sample/sampler.py (Sampler).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from learnvllm.architecture.messages import LogprobsLists
from learnvllm.executor_worker.request_state import RequestState
from learnvllm.executor_worker.sample import torch_ref
from learnvllm.executor_worker.sample.logprob import compute_logprobs
from learnvllm.executor_worker.sample.states import LOGPROBS, PENALTIES, RANDOM, RULES, SamplingStates


@dataclass(frozen=True)
class SamplerOutput:
    """What was chosen for S rows."""

    token_ids: np.ndarray
    """[S] int64."""
    logprobs: dict[int, LogprobsLists] = field(default_factory=dict)
    """By index into the S rows, for those that asked; one row each."""
    nan_counts: dict[int, int] = field(default_factory=dict)
    """By index into the S rows: how many logits were NaN. Such a row gets the best of its other tokens, so
    that the batch goes on; whoever reads this decides what becomes of the request."""


class Sampler:
    """Samples for rows whose parameters are in `states` and whose tokens so far are in `requests`.

    Args:
        use_kernels: compiled CPU kernels (logits must be on the CPU); False: torch, on any device.
    """

    def __init__(self, states: SamplingStates, requests: RequestState, use_kernels: bool) -> None:
        self.states, self.requests, self.use_kernels = states, requests, use_kernels

    def warm_up(self) -> None:
        """Load (or, the very first time, compile) the kernels, so that no request waits for it."""
        if self.use_kernels:
            importlib.import_module("learnvllm.executor_worker.sample.logit_kernels")  # it imports the others

    def __call__(self, logits: Tensor, rows: np.ndarray) -> SamplerOutput:
        """Choose one token a row. logits: [S, V] float32, contiguous, overwritten; rows: [S] int64."""
        flags = self.states.flags[rows]
        needed = int(np.bitwise_or.reduce(flags)) if len(flags) else 0
        asking = np.flatnonzero(flags & LOGPROBS)
        raw_logits = logits[torch.from_numpy(asking)] if len(asking) else None  # copied before any change
        if needed & (RULES | PENALTIES):
            self._adjust(logits, rows, flags)
        token_ids = self._choose(logits, rows, np.flatnonzero(flags & RANDOM))
        nan_counts = _replace_nans(logits, token_ids)
        if needed & PENALTIES:
            penalized = np.flatnonzero(flags & PENALTIES)
            self.states.penalties.count(rows[penalized], token_ids[penalized])
        logprobs = {}
        if raw_logits is not None:
            logprobs = self._logprobs(raw_logits, rows[asking], token_ids[asking], asking.tolist())
        return SamplerOutput(token_ids, logprobs, nan_counts)

    def _adjust(self, logits: Tensor, rows: np.ndarray, flags: np.ndarray) -> None:
        """Apply, in place, what changes even a greedy choice."""
        with_rules = np.flatnonzero(flags & RULES).tolist()
        for index in with_rules:
            self.states.logit_bias.apply(logits, index, int(rows[index]), len(self._output(rows[index])))
        penalized = np.flatnonzero(flags & PENALTIES)
        if len(penalized):
            self.states.penalties.apply(logits, penalized, rows[penalized], self.use_kernels)
        for index in with_rules:
            self.states.bad_words.apply(logits, index, int(rows[index]), self._output(rows[index]))

    def _output(self, row: int) -> np.ndarray:
        """Output tokens so far."""
        requests = self.requests
        return requests.token_ids[row, requests.num_prompt_tokens[row] : requests.num_tokens[row]]

    def _choose(self, logits: Tensor, rows: np.ndarray, random: np.ndarray) -> np.ndarray:
        """[S] token ids, -1 where a NaN stood in the way. random: [n], indices of the rows that are not
        greedy."""
        if len(random) == len(rows):
            return self._draw(logits, rows, random)
        token_ids = np.full(len(rows), -1, dtype=np.int64)
        if len(random):
            token_ids[random] = self._draw(logits, rows, random)
        is_greedy = np.ones(len(rows), dtype=bool)
        is_greedy[random] = False
        if logits.device.type != "cpu":
            winners = logits.argmax(dim=-1)  # of a row with NaNs, the first NaN; so does numpy
            winners = torch.where(logits.gather(1, winners[:, None])[:, 0].isnan(), -1, winners)
            token_ids[is_greedy] = winners.cpu().numpy()[is_greedy]
            return token_ids
        values = logits.numpy()
        for index in np.flatnonzero(is_greedy).tolist():  # numpy's argmax of a row takes 5 µs, torch's 50
            best = int(values[index].argmax())
            token_ids[index] = best if values[index, best] == values[index, best] else -1
        return token_ids

    def _draw(self, logits: Tensor, rows: np.ndarray, indices: np.ndarray) -> np.ndarray:
        """[n] sampled token ids for the rows `indices` of logits."""
        states, requests = self.states, self.requests
        mine = rows[indices]
        positions = requests.num_tokens[mine] - requests.num_prompt_tokens[mine]
        parameters = (
            states.temperature[mine],
            states.top_k[mine],
            states.top_p[mine],
            states.min_p[mine],
            states.seeds[mine],
            positions,
        )
        if self.use_kernels:
            from learnvllm.executor_worker.sample import kernels

            return kernels.sample(logits.numpy(), indices, *parameters)
        device = logits.device
        tensors = (torch.from_numpy(p).to(device) for p in parameters)
        return torch_ref.sample(logits[torch.from_numpy(indices).to(device)], *tensors).cpu().numpy()

    def _logprobs(
        self, logits: Tensor, rows: np.ndarray, token_ids: np.ndarray, indices: list[int]
    ) -> dict[int, LogprobsLists]:
        """One row of log-probabilities for each of the n requests that asked. logits: [n, V], not yet
        changed."""
        wanted = self.states.num_logprobs[rows].tolist()
        together = compute_logprobs(logits, token_ids, max(wanted), self.use_kernels)
        return {
            index: LogprobsLists(
                together.token_ids[i : i + 1, : k + 1],
                together.logprobs[i : i + 1, : k + 1],
                together.ranks[i : i + 1],
            )
            for i, (index, k) in enumerate(zip(indices, wanted))
        }


def _replace_nans(logits: Tensor, token_ids: np.ndarray) -> dict[int, int]:
    """Give rows whose choice failed (-1) their best real number, in place; how many NaNs each had."""
    counts = {}
    for index in np.flatnonzero(token_ids < 0).tolist():
        row = logits[index]
        counts[index] = int(row.isnan().sum())
        token_ids[index] = int(row.nan_to_num(nan=float("-inf")).argmax())
    return counts
