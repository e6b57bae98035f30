"""Products of many experts as CPU kernels: the linear layer's tile, other weights for each block of rows.

Rows are sorted by expert, so an expert's rows lie together and its weights are read once for up to BLOCK of
them. The way back (weigh a token's K results and add them) is one pass over memory. Upstream:
csrc/cpu/cpu_fused_moe.cpp, vllm/model_executor/layers/fused_moe/moe_fused_mul_sum.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import torch
from torch import Tensor

from learnvllm.model_layers.ops import huge_pages
from learnvllm.model_layers.ops.cpu_linear import BLOCK, PANEL, PRODUCTS_PER_THREAD, ROWS, tile
from learnvllm.model_layers.ops.jit import Kernel, f32, i64, kernel, my_share, threads_for

ELEMENTS_PER_THREAD = 8192

__all__ = ["BLOCK", "GroupedPanels", "fused_mul_sum", "sort_into_blocks"]


@kernel("q" * 8)
def _sort_into_blocks(args):  # type: ignore[no-untyped-def]
    ids, tokens, rows, blocks, counts = i64(args[0]), i64(args[1]), i64(args[2]), i64(args[3]), i64(args[4])
    num_pairs, num_experts, top_k = args[5], args[6], args[7]
    for i in range(num_pairs):
        counts[ids[i]] += 1
    first, b = 0, 0
    for e in range(num_experts):
        count = counts[e]
        for begin in range(0, count, BLOCK):
            blocks[3 * b], blocks[3 * b + 1] = e, first + begin
            blocks[3 * b + 2] = min(BLOCK, count - begin)
            b += 1
        counts[e] = first  # from here on: where the expert's next pair goes
        first += count
    for i in range(num_pairs):
        row = counts[ids[i]]
        counts[ids[i]] += 1
        tokens[row], rows[i] = i // top_k, row


def sort_into_blocks(topk_ids: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    """`align.py:moe_align_block_size` without padding, which a CPU need not compute, in one pass.

    topk_ids: [T, K] int64, each below num_experts (not checked). Returns, all int64,
        tokens [T * K]: of which token each row is, rows sorted by expert,
        rows [T, K]: where each pair went,
        blocks [B, 3]: expert, first row and number of rows (at most BLOCK; 0 in blocks left over).
    """
    if topk_ids.dtype is not torch.int64 or not topk_ids.is_contiguous() or not topk_ids.is_cpu:
        raise ValueError(f"topk_ids must be contiguous int64 on the CPU, not {topk_ids.dtype}")
    num_pairs, top_k = topk_ids.numel(), topk_ids.shape[1]
    tokens, rows = torch.empty(num_pairs, dtype=torch.int64), torch.empty_like(topk_ids)
    blocks = torch.zeros(num_pairs // BLOCK + min(num_pairs, num_experts), 3, dtype=torch.int64)
    counts = torch.zeros(num_experts, dtype=torch.int64)
    _sort_into_blocks(
        1,
        topk_ids.data_ptr(), tokens.data_ptr(), rows.data_ptr(), blocks.data_ptr(), counts.data_ptr(),
        num_pairs, num_experts, top_k,
    )  # fmt: skip
    return tokens, rows, blocks


@cache
def grouped_linear_kernel(bits: int) -> Kernel:
    """The kernel for weights of 16 or 32 bits. Compiled (a second or two) or loaded on first use."""
    panel_bytes = PANEL * bits // 8  # of one input

    @kernel("q" * 8)
    def _grouped_linear(args):  # type: ignore[no-untyped-def]
        x, weight, zeros, out, blocks = args[0], args[1], args[2], args[3], i64(args[4])
        num_blocks, width, panels = args[5], args[6], args[7]
        os = panels * PANEL  # elements from a row of out to the next
        begin, end = my_share(panels)
        for i in range(num_blocks):
            expert, first, count = blocks[3 * i], blocks[3 * i + 1], blocks[3 * i + 2]
            groups = (count + ROWS - 1) // ROWS
            for p in range(begin, end):
                w = weight + (expert * panels + p) * width * panel_bytes
                for g in range(groups):
                    row, stop = first + count * g // groups, first + count * (g + 1) // groups
                    y, o = x + 4 * row * width, out + 4 * (row * os + PANEL * p)
                    tile(bits, stop - row, y, width, w, zeros, o, os, width)

    return _grouped_linear


class GroupedPanels:
    """E matrices [out, in] in panels, as `cpu_linear.pack` lays out one, in float16 or float32.

    Args:
        matrices: on the CPU, all of one shape and none empty; each is copied.
    """

    def __init__(self, matrices: Iterator[Tensor], num_experts: int, dtype: torch.dtype) -> None:
        first = next(matrices)
        self.num_experts = num_experts
        self.out_features, self.in_features = first.shape
        if first.numel() == 0 or not first.is_cpu:  # the inner loop runs at least once
            raise ValueError(f"experts must be on the CPU and not empty, not {tuple(first.shape)}")
        panels = -(-self.out_features // PANEL)
        self.panels = huge_pages.empty((num_experts, panels, self.in_features, PANEL), dtype)
        self._columns = panels * PANEL
        self._put(0, first)
        for e, matrix in enumerate(matrices, start=1):
            self._put(e, matrix)
        self._zeros = torch.zeros(PANEL)  # what sums start from
        self._kernel = grouped_linear_kernel(8 * dtype.itemsize)

    def _put(self, expert: int, matrix: Tensor) -> None:
        target, whole = self.panels[expert], self.out_features // PANEL
        target[:whole] = matrix[: whole * PANEL].view(whole, PANEL, self.in_features).transpose(1, 2)
        if whole < len(target):  # zeros stand in for features beyond the last
            target[whole].zero_()
            target[whole, :, : self.out_features - whole * PANEL] = matrix[whole * PANEL :].T

    def __call__(self, x: Tensor, blocks: Tensor) -> Tensor:
        """x: [N, in] fp32, rows sorted by expert; blocks: [B, 3] int64, each an expert, its first row and how
        many (0: an empty block), together all rows of x -> [N, out] fp32, maybe a view of a wider tensor."""
        is_readable = x.is_cpu and x.dtype is torch.float32 and x.is_contiguous() and x.dim() == 2
        if not is_readable or x.shape[1] != self.in_features:  # the kernel reads raw memory
            given = f"{x.dtype} {tuple(x.shape)} on {x.device}"
            raise ValueError(f"x must be contiguous float32 [N, {self.in_features}] on the CPU, not {given}")
        rows = x.shape[0]
        out = torch.empty(rows, self._columns)
        self._kernel(
            threads_for(rows * self.in_features * self._columns, PRODUCTS_PER_THREAD),
            x.data_ptr(), self.panels.data_ptr(), self._zeros.data_ptr(), out.data_ptr(), blocks.data_ptr(),
            blocks.shape[0], self.in_features, self.panels.shape[1],
        )  # fmt: skip
        return out[:, : self.out_features]


@kernel("q" * 8)
def _fused_mul_sum(args):  # type: ignore[no-untyped-def]
    y, rows, weights, out = f32(args[0]), i64(args[1]), f32(args[2]), f32(args[3])
    tokens, top_k, width, stride = args[4], args[5], args[6], args[7]
    begin, end = my_share(tokens)
    for t in range(begin, end):
        for j in range(width):
            out[t * width + j] = np.float32(0.0)
        for k in range(top_k):
            a, weight = rows[t * top_k + k] * stride, weights[t * top_k + k]
            for j in range(width):
                out[t * width + j] += weight * y[a + j]


def fused_mul_sum(y: Tensor, rows: Tensor, weights: Tensor) -> Tensor:
    """out[t] = sum over k of weights[t, k] * y[rows[t, k]]. y: [N, H] fp32, rows: [T, K] int64 -> [T, H]."""
    (tokens, top_k), width = rows.shape, y.shape[1]
    out = torch.empty(tokens, width)
    _fused_mul_sum(
        threads_for(tokens * top_k * width, ELEMENTS_PER_THREAD),
        y.data_ptr(), rows.data_ptr(), weights.data_ptr(), out.data_ptr(), tokens, top_k, width, y.stride(0),
    )  # fmt: skip
    return out
