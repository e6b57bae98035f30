"""Starts paged attention: how many rows a tile has, into how many splits the keys are cut, and their merge.

One request's decode is as many programs as there are kv heads, 8 for a GPU of 132 multiprocessors, so its
keys are dealt out to several programs (flash decoding) and their results weighed by their sums (log-sum-exp
merge). Only upper bounds known on the host decide: a CUDA graph repeats the decision for lengths it never
saw. Upstream: vllm/v1/attention/ops/triton_unified_attention.py (reduce_segments).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from learnvllm.model_layers.ops.triton_kernels.attention import LOG2_E, paged_attention_kernel
from learnvllm.model_layers.ops.triton_kernels.launch import (
    num_multiprocessors,
    power_of_two,
    start_next_kernel_early,
    starts_early,
    wait_for_inputs,
)


@dataclass(frozen=True)
class Tiles:
    """How a launch is cut. benchmarks/gpu_tune.py tried out what is below, on an H200 and heads of 128."""

    rows: int
    """Queries times heads of a group in a program (a decode takes FEW_ROWS in any case)."""
    keys: int
    """Keys at a time."""
    warps: int
    stages: int
    """How many tiles of keys are on their way from memory at once."""
    programs: int
    """Keys are split until a multiprocessor has as many."""


FEW_ROWS = 16  # what the matrix units take at least
DECODES = Tiles(FEW_ROWS, keys=128, warps=4, stages=3, programs=4)
FEW_DECODES = Tiles(FEW_ROWS, keys=32, warps=4, stages=3, programs=4)  # so few that keys are split
# Microseconds of CHUNKS and MIXED for 16 chunks of 1024: 266, 295; for one: 46, 29.
CHUNKS = Tiles(128, keys=32, warps=8, stages=2, programs=1)
MIXED = Tiles(64, keys=64, warps=4, stages=3, programs=1)
FP32 = Tiles(32, keys=32, warps=4, stages=2, programs=2)  # no matrix units: more would not fit the registers
MAX_SPLITS = 32


@triton.jit
def _merge_splits_kernel(  # type: ignore[no-untyped-def]
    parts_ptr, lse_ptr, out_ptr,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One head of one token: the splits' results, each weighed by the sum of its softmax."""
    start_next_kernel_early(EARLY)
    wait_for_inputs(EARLY)
    row = tl.program_id(0).to(tl.int64)
    split, dim = tl.arange(0, SPLITS), tl.arange(0, DIM)
    lse = tl.load(lse_ptr + row * SPLITS + split)
    highest = tl.max(lse, axis=0)
    weights = tl.exp2(lse - tl.where(highest == float("-inf"), 0.0, highest))
    total = tl.sum(weights, axis=0)
    weights = weights / tl.where(total == 0.0, 1.0, total)
    parts = tl.load(
        parts_ptr + (row * SPLITS + split)[:, None] * HEAD_DIM + dim[None, :],
        mask=(weights > 0.0)[:, None] & (dim < HEAD_DIM)[None, :],
        other=0.0,
    )
    out = tl.sum(parts * weights[:, None], axis=0).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * HEAD_DIM + dim, out, mask=dim < HEAD_DIM)


def num_splits(programs: int, max_seq_len: int, wanted: int) -> int:
    """Into how many parts the keys are cut so that there are `wanted` programs, if keys suffice.

    programs: there are without splitting; max_seq_len: an upper bound. A power of two, as each number of
    splits is a kernel of its own.
    """
    wanted = min(wanted // max(programs, 1), max_seq_len // FEW_DECODES.keys, MAX_SPLITS)
    return power_of_two(wanted + 1) // 2 if wanted > 1 else 1


def choose_tiles(dtype: torch.dtype, is_decode: bool, tokens: int, requests: int) -> Tiles:
    """By what the host knows of a batch. Wide tiles pay where chunks are many and decodes few."""
    if dtype is torch.float32:
        return FP32
    if is_decode:
        return DECODES
    return CHUNKS if tokens >= max(4096, 64 * requests) else MIXED


def paged_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
    query_start_loc: Tensor, scale: float, sliding_window: int | None = None, out: Tensor | None = None,
    max_query_len: int | None = None, max_seq_len: int | None = None, sinks: Tensor | None = None,
    splits: int | None = None,
) -> Tensor:  # fmt: skip
    """torch_ref.paged_attention. splits: a power of two; None: `num_splits` decides."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    (tokens, q_heads, dim), (_, kv_heads, block_size, _) = q.shape, k_cache.shape
    requests, group = seq_lens.shape[0], q_heads // kv_heads
    if not tokens or not requests:
        return out
    few = max(FEW_ROWS, power_of_two(group))
    is_decode = max_query_len is not None and max_query_len * group <= few
    cut = choose_tiles(q.dtype, is_decode, tokens, requests)
    rows = few if is_decode else max(cut.rows, 2 * few)
    tiles = requests if is_decode else tokens // (rows // group) + requests
    if splits is None:
        bound = block_table.shape[1] * block_size if max_seq_len is None else max_seq_len
        bound = bound if sliding_window is None else min(bound, sliding_window)
        splits = num_splits(tiles * kv_heads, bound, cut.programs * num_multiprocessors(q.device))
    if splits > 1 and cut is DECODES:
        cut = FEW_DECODES
    early, parts, lse = starts_early(q.device), out, None
    if splits > 1:
        parts = torch.empty(tokens, q_heads, splits, dim, dtype=torch.float32, device=q.device)
        lse = torch.empty(tokens, q_heads, splits, device=q.device)
    paged_attention_kernel[(tiles, kv_heads, splits)](
        q, k_cache, v_cache, block_table, seq_lens, query_start_loc, sinks, parts, lse, requests,
        scale * LOG2_E.value, sliding_window or 0, q.stride(0), q.stride(1), k_cache.stride(0),
        k_cache.stride(1), block_table.stride(0), q_heads,
        GROUP=group, HEAD_DIM=dim, DIM=max(16, power_of_two(dim)), BLOCK_SIZE=block_size,
        FEW_ROWS=few, ROWS=rows, TILE=cut.keys, SPLITS=splits,
        WINDOW=sliding_window is not None, SINKS=sinks is not None, EARLY=early,
        num_warps=cut.warps, num_stages=cut.stages, launch_pdl=early,
    )  # fmt: skip
    if splits > 1:
        _merge_splits_kernel[(tokens * q_heads,)](
            parts, lse, out, HEAD_DIM=dim, DIM=power_of_two(dim), SPLITS=splits, EARLY=early,
            num_warps=4, launch_pdl=early,
        )  # fmt: skip
    return out
