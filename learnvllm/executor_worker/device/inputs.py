"""A step's inputs, made on the device from the rows and from a few numbers a request.

The host packs which rows compute how much, and the changes of state, into one piece of pinned memory: one
copy. Everything else (token ids, positions, slots, lengths, block tables) the device gathers itself, in one
kernel, so a token sampled a moment ago need never have been seen by the host. `prepare_torch` says what that
kernel does. Upstream: vllm/v1/worker/gpu/input_batch.py; fusing it into one kernel: vllm #56562.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import numpy as np
import torch

from learnvllm.architecture.math_utils import cdiv
from learnvllm.executor_worker.device.host_copy import Staging
from learnvllm.executor_worker.device.rows import DeviceRows
from learnvllm.model_layers.attention import AttentionMetadata

MAX_CHANGES = 1 << 16
"""Changes of state that travel in the one copy; long prompts beyond it take more copies."""


@dataclass(frozen=True)
class StepNumbers:
    """What the host says of a step: R requests, S of which sample."""

    rows: np.ndarray
    """[R]: each request's row; the spare row for one that only fills the batch up to a captured size."""
    query_start_loc: np.ndarray
    """[R+1]"""
    computed: np.ndarray
    """[R]: tokens in the cache before the step."""
    sampling: np.ndarray
    """[S]: which of the R."""


class StepInputs:
    """Buffers at fixed addresses, which every step overwrites (and captured graphs read). The stream keeps
    the steps apart: a step's kernels run after those of the step before."""

    def __init__(self, rows: DeviceRows, max_tokens_in_step: int, use_triton: bool) -> None:
        self.rows, self.use_triton = rows, use_triton
        device, max_reqs, groups = rows.arena.device, rows.max_rows + 1, len(rows.widths)
        self.device, self.max_reqs, self.max_tokens = device, max_reqs, max_tokens_in_step
        self.stream = torch.cuda.current_stream(device) if device.type == "cuda" else None
        self._stride = max_reqs + 1
        ints = {"dtype": torch.int32, "device": device}
        self.packed = torch.zeros(4 * self._stride + 2 * MAX_CHANGES, **ints)  # type: ignore[call-overload]
        self.row, self.query_start_loc, self.computed, self.sampling = (
            self.packed[i * self._stride : (i + 1) * self._stride] for i in range(4)
        )
        self._staging, self._turn = [Staging(self.packed) for _ in range(3)], 0
        self.input_ids = torch.zeros(max_tokens_in_step, dtype=torch.int64, device=device)
        self.positions = torch.zeros(max_tokens_in_step, dtype=torch.int64, device=device)
        self.slots = torch.zeros(groups, max_tokens_in_step, dtype=torch.int64, device=device)
        self.seq_lens = torch.zeros(max_reqs, **ints)  # type: ignore[call-overload]
        self.block_tables = torch.zeros(groups, max_reqs, max(rows.widths), **ints)  # type: ignore[call-overload]
        self.logits_indices = torch.zeros(max_reqs, dtype=torch.int64, device=device)
        self.groups = torch.tensor(
            [
                [table.storage_offset(), width, size]
                for table, width, size in zip(rows.tables, rows.widths, rows.block_sizes)
            ],
            dtype=torch.int64,
            device=device,
        )

    def send(self, step: StepNumbers) -> None:
        """Bring the numbers and all changes of state to the device. Does not wait for it."""
        places, values = self.rows.take_changes()
        while len(places) > MAX_CHANGES:  # long prompts: ahead of the rest
            both = torch.from_numpy(np.stack([places[:MAX_CHANGES], values[:MAX_CHANGES]]))
            self.rows.apply(*both.to(self.device))
            places, values = places[MAX_CHANGES:], values[MAX_CHANGES:]
        stride, count = self._stride, len(places)
        end = 4 * stride
        staging = self._staging[self._turn]
        self._turn = (self._turn + 1) % len(self._staging)
        packed = staging.begin()
        packed[: len(step.rows)] = step.rows
        packed[stride : stride + len(step.query_start_loc)] = step.query_start_loc
        packed[2 * stride : 2 * stride + len(step.computed)] = step.computed
        packed[3 * stride : 3 * stride + len(step.sampling)] = step.sampling
        packed[end : end + count], packed[end + count : end + 2 * count] = places, values
        staging.send(self.packed, end + 2 * count, self.stream)
        if count:
            self.rows.apply(self.packed[end : end + count], self.packed[end + count : end + 2 * count])

    def prepare(self, num_reqs: int, num_tokens: int, num_sampling: int) -> None:
        """Fill the buffers for the step that was sent. The same work for the same three numbers, whatever
        the contents: this is the first thing a captured graph does."""
        if self.use_triton:
            kernels = importlib.import_module("learnvllm.executor_worker.device.input_kernel")
            kernels.prepare(self, num_reqs, num_sampling)
        else:
            prepare_torch(self, num_reqs, num_tokens, num_sampling)

    def metadata(
        self, num_reqs: int, num_tokens: int, max_query_len: int, max_seq_len: int
    ) -> list[AttentionMetadata]:
        """Views of the buffers, for each KV cache group."""
        return [
            AttentionMetadata(
                query_start_loc=self.query_start_loc[: num_reqs + 1],
                seq_lens=self.seq_lens[:num_reqs],
                block_table=self.block_tables[group, :num_reqs, : cdiv(max_seq_len, size)],
                slot_mapping=self.slots[group, :num_tokens],
                max_query_len=max_query_len,
                max_seq_len=max_seq_len,
            )
            for group, size in enumerate(self.rows.block_sizes)
        ]


def prepare_torch(inputs: StepInputs, num_reqs: int, num_tokens: int, num_sampling: int) -> None:
    """The kernel's readable twin: every operator over the whole step at once, none that needs the host."""
    rows, starts = inputs.rows, inputs.query_start_loc[: num_reqs + 1]
    row, computed = inputs.row[:num_reqs], inputs.computed[:num_reqs]
    is_real, row = row != rows.spare_row, row.long()
    token = torch.arange(num_tokens, dtype=torch.int32, device=inputs.device)
    owner = torch.searchsorted(starts[1:], token, right=True)  # [T]: the request each token belongs to
    position = torch.where(is_real[owner], computed[owner] + token - starts[owner], 0).long()
    inputs.input_ids[:num_tokens] = rows.token_ids[row[owner], position]
    inputs.positions[:num_tokens] = position
    inputs.seq_lens[:num_reqs] = torch.where(is_real, computed + starts[1:] - starts[:-1], 0)
    for group, size in enumerate(rows.block_sizes):
        table = rows.tables[group]
        slots = table[row[owner], position // size].long() * size + position % size
        inputs.slots[group, :num_tokens] = torch.where(is_real[owner], slots, -1)
        inputs.block_tables[group, :num_reqs, : rows.widths[group]] = table[row]
    last = starts[1:][inputs.sampling[:num_sampling].long()] - 1
    inputs.logits_indices[:num_sampling] = last
