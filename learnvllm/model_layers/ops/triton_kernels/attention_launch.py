"""Starts paged attention: how many rows a tile has, into how many splits the keys are cut, and their merge.

One request's decode is as many programs as there are kv heads, 8 for a GPU of 132 multiprocessors, so its
keys are dealt out to several programs (flash decoding) and their results weighed by their sums (log-sum-exp
merge). Only upper bounds known on the host decide: a CUDA graph repeats the decision for lengths it never
saw. Upstream: vllm/v1/attention/ops/triton_unified_attention.py (reduce_segments).
"""

from __future__ import annotations

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

FEW_ROWS = 16  # what the matrix units take at least
ROWS, TILE, WARPS, STAGES = 128, 64, 8, 2  # of a batch with chunks
DECODE_TILE, DECODE_WARPS, DECODE_STAGES = 64, 4, 3
FP32_ROWS, FP32_TILE = 32, 32  # no matrix units: more would not fit the registers
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


def num_splits(programs: int, max_seq_len: int, multiprocessors: int) -> int:
    """Into how many parts the keys are cut so that each multiprocessor gets two programs, if keys suffice.

    programs: there are without splitting; max_seq_len: an upper bound. A power of two, as each number of
    splits is a kernel of its own.
    """
    wanted = min(2 * multiprocessors // max(programs, 1), max_seq_len // DECODE_TILE, MAX_SPLITS)
    return power_of_two(wanted + 1) // 2 if wanted > 1 else 1


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
    is_fp32 = q.dtype is torch.float32
    rows = few if is_decode else max(FP32_ROWS if is_fp32 else ROWS, 2 * few)
    tile = FP32_TILE if is_fp32 else DECODE_TILE if is_decode else TILE
    tiles = requests if is_decode else tokens // (rows // group) + requests
    if splits is None:
        bound = block_table.shape[1] * block_size if max_seq_len is None else max_seq_len
        bound = bound if sliding_window is None else min(bound, sliding_window)
        splits = num_splits(tiles * kv_heads, bound, num_multiprocessors(q.device))
    early, parts, lse = starts_early(q.device), out, None
    if splits > 1:
        parts = torch.empty(tokens, q_heads, splits, dim, dtype=torch.float32, device=q.device)
        lse = torch.empty(tokens, q_heads, splits, device=q.device)
    paged_attention_kernel[(tiles, kv_heads, splits)](
        q, k_cache, v_cache, block_table, seq_lens, query_start_loc, sinks, parts, lse, requests,
        scale * LOG2_E.value, sliding_window or 0, q.stride(0), q.stride(1), k_cache.stride(0),
        k_cache.stride(1), block_table.stride(0), q_heads,
        GROUP=group, HEAD_DIM=dim, DIM=max(16, power_of_two(dim)), BLOCK_SIZE=block_size,
        FEW_ROWS=few, ROWS=rows, TILE=tile, SPLITS=splits,
        WINDOW=sliding_window is not None, SINKS=sinks is not None, EARLY=early,
        num_warps=DECODE_WARPS if is_decode else WARPS, launch_pdl=early,
        num_stages=DECODE_STAGES if is_decode else STAGES,
    )  # fmt: skip
    if splits > 1:
        _merge_splits_kernel[(tokens * q_heads,)](
            parts, lse, out, HEAD_DIM=dim, DIM=power_of_two(dim), SPLITS=splits, EARLY=early,
            num_warps=4, launch_pdl=early,
        )  # fmt: skip
    return out
