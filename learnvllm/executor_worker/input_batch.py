"""One step's inputs, gathered from the rows: flat token ids, positions, and who owns which part of them.

Everything is a handful of numpy operations over the whole step; nothing loops over tokens. Each step makes
new arrays, so a step still in flight can never see its inputs overwritten by the next one.
Upstream namesake: vllm/v1/worker/gpu/input_batch.py (InputBatch).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from learnvllm.architecture.step import SchedulerOutput
from learnvllm.executor_worker.block_table import BlockTables
from learnvllm.executor_worker.request_state import RequestState
from learnvllm.model_layers.attention import AttentionMetadata


@dataclass(frozen=True)
class BatchShape:
    """R requests in batch order, T tokens, of which S requests get a token sampled. The host knows all of it
    without knowing a single token, so it can be planned while the step before still runs."""

    req_ids: list[str]
    rows: np.ndarray
    """[R] int64: each request's row."""
    num_scheduled: np.ndarray
    """[R] int64: tokens of each request in this step."""
    query_start_loc: np.ndarray
    """[R+1] int32: where each request's tokens begin."""
    seq_lens: np.ndarray
    """[R] int32: tokens of each request in the cache after this step."""
    sampling: np.ndarray
    """[S] int64: indices into the batch of the requests whose last known token is computed in this step."""

    @property
    def logits_indices(self) -> np.ndarray:
        """[S] int64: the token, for each sampling request, whose logits give the next token."""
        return self.query_start_loc[1:][self.sampling].astype(np.int64) - 1


@dataclass(frozen=True)
class InputBatch(BatchShape):
    """A step whose tokens the host knows."""

    token_rows: np.ndarray
    """[T] int64: the row each token belongs to."""
    input_ids: np.ndarray
    """[T] int64."""
    positions: np.ndarray
    """[T] int64: each token's index in its request."""


def batch_shape(states: RequestState, scheduler_output: SchedulerOutput) -> BatchShape:
    """Who computes how much. States must be up to date with the step's deltas.

    Raises:
        RuntimeError: a request is asked to compute tokens that do not exist yet (a bug in the scheduler).
    """
    scheduled = scheduler_output.num_scheduled_tokens
    req_ids = list(scheduled)
    rows = np.fromiter(map(states.row_of.__getitem__, req_ids), np.int64, len(req_ids))
    num_scheduled = np.fromiter(scheduled.values(), np.int64, len(req_ids))
    seq_lens = states.num_computed_tokens[rows] + num_scheduled
    missing = states.num_tokens[rows] - seq_lens
    if missing.min() < 0:
        bad = int(missing.argmin())
        raise RuntimeError(
            f"Request {req_ids[bad]!r} is scheduled up to token {seq_lens[bad]} but only "
            f"{states.num_tokens[rows[bad]]} tokens are known."
        )
    query_start_loc = np.zeros(len(req_ids) + 1, dtype=np.int32)
    np.cumsum(num_scheduled, out=query_start_loc[1:])
    sampling = np.flatnonzero(missing == 0)
    return BatchShape(req_ids, rows, num_scheduled, query_start_loc, seq_lens.astype(np.int32), sampling)


def build_input_batch(states: RequestState, scheduler_output: SchedulerOutput) -> InputBatch:
    """Gather a step's inputs; see `batch_shape`."""
    shape = batch_shape(states, scheduler_output)
    rows, query_start_loc = shape.rows, shape.query_start_loc
    computed = states.num_computed_tokens[rows]
    if query_start_loc[-1] == len(rows):  # only decodes, the common case: every request has one token
        token_rows, positions = rows, computed
    else:
        token_rows = np.repeat(rows, shape.num_scheduled)
        positions = np.arange(query_start_loc[-1], dtype=np.int64)
        positions += np.repeat(computed - query_start_loc[:-1], shape.num_scheduled)
    input_ids = states.token_ids.ravel().take(token_rows * states.max_tokens + positions).astype(np.int64)
    return InputBatch(**vars(shape), token_rows=token_rows, input_ids=input_ids, positions=positions)


def attention_metadata(
    batch: InputBatch, block_tables: BlockTables, device: torch.device
) -> list[AttentionMetadata]:
    """Where the step's tokens live in the cache: one object per KV cache group."""
    max_seq_len = int(batch.seq_lens.max())
    query_start_loc = torch.from_numpy(batch.query_start_loc).to(device)
    seq_lens = torch.from_numpy(batch.seq_lens).to(device)
    result = []
    for group in range(len(block_tables.block_sizes)):
        table = block_tables.gather(group, batch.rows, max_seq_len)
        slots = block_tables.slot_mapping(group, batch.token_rows, batch.positions)
        result.append(
            AttentionMetadata(
                query_start_loc=query_start_loc,
                seq_lens=seq_lens,
                block_table=torch.from_numpy(table).to(device),
                slot_mapping=torch.from_numpy(slots).to(device),
                max_query_len=int(batch.num_scheduled.max()),
                max_seq_len=max_seq_len,
            )
        )
    return result
