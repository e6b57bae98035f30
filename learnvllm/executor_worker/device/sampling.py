"""Choosing tokens on the device, and putting them where the next step finds them.

Greedy rows and rows with a temperature need nothing but their logits and noise that is a hash of (seed,
position, token): one kernel for all, which a graph can hold. `sample_torch` says what it does. Filters
(top-k, top-p, min-p) take the general `torch_ref.sample`, still without the host.
Upstream: vllm/v1/worker/gpu/sample/gumbel.py.
"""

from __future__ import annotations

import importlib

import numpy as np
import torch
from torch import Tensor

from learnvllm.executor_worker.device.inputs import StepInputs
from learnvllm.executor_worker.sample import torch_ref
from learnvllm.executor_worker.sample.gumbel import gumbel_argmax
from learnvllm.executor_worker.sample.states import SamplingStates


class DeviceSampler:
    """The choice of a step's S sampling requests, in two buffers at fixed addresses."""

    def __init__(self, inputs: StepInputs, vocab_size: int) -> None:
        self.inputs, self.rows, self.vocab_size = inputs, inputs.rows, vocab_size
        self.chosen = torch.zeros(2, inputs.max_reqs, dtype=torch.int32, device=inputs.device)
        """[0]: token ids; [1]: how many of the row's logits were NaN."""

    def sample(self, logits: Tensor) -> None:
        """Choose for rows without filters and append each token to its row. logits: [S, V], any dtype."""
        if self.inputs.use_triton:
            kernels = importlib.import_module("learnvllm.executor_worker.device.sampling_kernel")
            kernels.sample(self, logits)
            return
        logits = logits.float()
        rows, seq_lens = self._rows_and_lengths(len(logits))
        positions = seq_lens - self.rows.num_prompt_tokens[rows]
        tokens = sample_torch(logits, self.rows.temperature[rows], self.rows.seeds[rows], positions)
        self._store(tokens, logits.isnan().sum(dim=-1))

    def sample_filtered(self, logits: Tensor, states: SamplingStates, rows: np.ndarray) -> None:
        """Choose where some row has a filter. rows: [S], what the host knows the sampling rows to be."""
        device = logits.device
        kept = (states.temperature[rows], states.top_k[rows], states.top_p[rows], states.min_p[rows])
        temperature, top_k, top_p, min_p = (_send(array, device) for array in kept)
        is_greedy = self.rows.temperature[self._rows_and_lengths(len(rows))[0]] <= 0
        temperature = torch.where(is_greedy, 1.0, temperature)
        on_device, seq_lens = self._rows_and_lengths(len(logits))
        positions = seq_lens - self.rows.num_prompt_tokens[on_device]
        seeds = self.rows.seeds[on_device]
        drawn = torch_ref.sample(logits, temperature, top_k, top_p, min_p, seeds, positions.long())
        best = _best(logits)
        self._store(torch.where(is_greedy | (drawn < 0), best, drawn), logits.isnan().sum(dim=-1))

    def _rows_and_lengths(self, count: int) -> tuple[Tensor, Tensor]:
        """Row and length, this step included, of each sampling request."""
        sampling = self.inputs.sampling[:count].long()
        return self.inputs.row[sampling].long(), self.inputs.seq_lens[sampling]

    def _store(self, tokens: Tensor, num_nans: Tensor) -> None:
        count = len(tokens)
        self.chosen[0, :count] = tokens
        self.chosen[1, :count] = num_nans
        rows, seq_lens = self._rows_and_lengths(count)
        self.rows.token_ids[rows, seq_lens.long()] = tokens.to(torch.int32)


def sample_torch(logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """One token a row: the best logit where temperature is 0, else a draw. A NaN is never chosen, and a row
    that has one gets its best other token.

    logits: [S, V] float32; temperature: [S]; seeds, positions: [S] ints -> [S] int64.
    """
    best = _best(logits)
    is_random = (temperature > 0) & ~logits.isnan().any(dim=-1) & logits.isfinite().any(dim=-1)
    scaled = logits / torch.where(temperature > 0, temperature, 1.0)[:, None]
    drawn = gumbel_argmax(scaled.nan_to_num(nan=float("-inf"), posinf=float("inf")), seeds, positions.long())
    return torch.where(is_random & ~(logits == float("inf")).any(dim=-1), drawn, best)


def _best(logits: Tensor) -> Tensor:
    return logits.nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf")).argmax(dim=-1)


def _send(array: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
