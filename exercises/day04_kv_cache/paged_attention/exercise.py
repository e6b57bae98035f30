"""Attention over scattered blocks (fill-in, 45 minutes, 16 points).

The tensors behind the block table. New keys and values go into the slots they were given, and attention
collects a request's context from wherever its blocks lie, for a batch that mixes whole prompts, chunks and
single decodes. You write it in plain torch: the version that defines what the fast kernels must compute.

Not asked: Speed. A loop over requests is fine; the compiled kernels of Day 6 are tested against this.

Read: docs/topics/kv_cache/concepts.md
Check: learnvllm check kv_cache.paged_attention
"""

from __future__ import annotations

import torch
from torch import Tensor


def reshape_and_cache(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write each token's k and v into its slot; slot -1 means "do not store this token".

    k, v: [T, Hk, D], caches: [num_blocks, Hk, block_size, D], slot_mapping: [T] int64, slot = block *
    block_size + offset.
    """
    # TODO: Write k[t] and v[t] to slot slot_mapping[t] of the caches (in their dtype); leave out tokens whose
    # slot is -1.
    raise NotImplementedError("TODO: reshape_and_cache")


def gather_kv(cache: Tensor, block_table_row: Tensor, start: int, stop: int) -> Tensor:
    """Positions [start, stop) of one request as one tensor. cache: [num_blocks, Hk, block_size, D] -> [Hk,
    stop-start, D].
    """
    # TODO: The blocks that hold positions [start, stop) of this row, joined in order, cut to exactly these
    # positions.
    raise NotImplementedError("TODO: gather_kv")


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    scale: float,
    sliding_window: int | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Causal attention of a mixed batch over the paged cache, with sums in fp32.

    q: [T, Hq, D], rows query_start_loc[r] to query_start_loc[r + 1] are request r's: the last of its
    seq_lens[r] positions. caches: [num_blocks, Hk, block_size, D]; block_table: [R, max_blocks], entry i of a
    row holds positions i * block_size on; sliding_window: a query sees so many tokens, itself included.
    Returns out, or a new tensor like q. See `learnvllm.model_layers.ops.paged_attention`.
    """
    # TODO: Per request r: its queries are rows query_start_loc[r] to query_start_loc[r + 1] of q (perhaps
    # none), at the last positions of its seq_lens[r]. softmax(q k^T * scale) v in fp32 over the positions
    # each query may see. Write into out if given.
    raise NotImplementedError("TODO: paged_attention")
