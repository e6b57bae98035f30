"""A linear layer for few rows as a Triton kernel, with what comes before and after it done on the way.

With one row each weight is read once and used once, so reading is all it costs and the matrix units have
nothing to do: a program takes a few output features, reads their weights in long runs and sums. What is
around the product costs launches, not arithmetic, so it rides along: RMSNorm in front (its factor 1/rms is
the same for all of a row, so it waits until the sums are there), a gated activation or the addition to the
residual stream behind. Weights do not depend on the kernel before: the first are asked for before it ends.
Twins: torch_ref.rms_norm, F.linear, torch_ref.silu_and_mul, `residual +=`, one after the other.
"""

from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from learnvllm.model_layers.ops.triton_kernels.activation import activate
from learnvllm.model_layers.ops.triton_kernels.launch import (
    power_of_two,
    start_next_kernel_early,
    starts_early,
    wait_for_inputs,
)

MAX_ROWS = 4


@triton.jit
def _load_weights(  # type: ignore[no-untyped-def]
    weight_ptr, feature, num_features, k, K: tl.constexpr
):
    """[features, BLOCK_K] of weight [num_features, K]; zeros beyond both ends."""
    mask = (feature < num_features)[:, None] & (k < K)[None, :]
    return tl.load(weight_ptr + feature.to(tl.int64)[:, None] * K + k[None, :], mask=mask, other=0.0)


@triton.jit
def _small_linear_kernel(  # type: ignore[no-untyped-def]
    x_ptr, weight_ptr, bias_ptr, norm_ptr, out_ptr, eps, rows, x_stride, out_stride, num_features,
    K: tl.constexpr, ROWS: tl.constexpr, FEATURES: tl.constexpr, BLOCK_K: tl.constexpr,
    NORM: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """FEATURES outputs of all rows. With an ACTIVATION output i needs features i and num_features + i."""
    start_next_kernel_early(EARLY)
    feature, row = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES), tl.arange(0, ROWS)
    k, is_row = tl.arange(0, BLOCK_K), (tl.arange(0, ROWS) < rows)[:, None]
    up_ptr = weight_ptr + num_features.to(tl.int64) * K
    weight = _load_weights(weight_ptr, feature, num_features, k, K)
    up = weight
    if ACTIVATION != "":
        up = _load_weights(up_ptr, feature, num_features, k, K)
    wait_for_inputs(EARLY)
    acc, up_acc = tl.zeros([ROWS, FEATURES], tl.float32), tl.zeros([ROWS, FEATURES], tl.float32)
    squares = tl.zeros([ROWS], tl.float32)
    for first in tl.static_range(0, K, BLOCK_K):
        i = first + k
        x = tl.load(x_ptr + row[:, None] * x_stride + i[None, :], mask=is_row & (i < K)[None, :], other=0.0)
        x = x.to(tl.float32)
        if NORM:
            squares += tl.sum(x * x, axis=1)
            x *= tl.load(norm_ptr + i, mask=i < K, other=0.0).to(tl.float32)[None, :]
        acc += tl.sum(weight.to(tl.float32)[None, :, :] * x[:, None, :], axis=2)
        if ACTIVATION != "":
            up_acc += tl.sum(up.to(tl.float32)[None, :, :] * x[:, None, :], axis=2)
        if first + BLOCK_K < K:
            weight = _load_weights(weight_ptr, feature, num_features, i + BLOCK_K, K)
            if ACTIVATION != "":
                up = _load_weights(up_ptr, feature, num_features, i + BLOCK_K, K)
    if NORM:
        scale = tl.rsqrt(squares / K + eps)[:, None]
        acc, up_acc = acc * scale, up_acc * scale
    in_row = (feature < num_features)[None, :]
    if BIAS:
        acc += tl.load(bias_ptr + feature, mask=feature < num_features, other=0.0).to(tl.float32)[None, :]
        if ACTIVATION != "":
            up_bias = bias_ptr + num_features + feature
            up_acc += tl.load(up_bias, mask=feature < num_features, other=0.0).to(tl.float32)[None, :]
    if ACTIVATION != "":
        acc = activate(acc, ACTIVATION == "silu") * up_acc
    out = out_ptr + row[:, None] * out_stride + feature[None, :]
    if ADD:
        acc += tl.load(out, mask=is_row & in_row, other=0.0).to(tl.float32)
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=is_row & in_row)


def tile_sizes(rows: int, num_features: int, in_features: int) -> tuple[int, int, int]:
    """(features a program, BLOCK_K, warps)."""
    return 8, min(1024 // power_of_two(rows), power_of_two(in_features)), 4


def small_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    norm: Tensor | None = None,
    eps: float = 0.0,
    activation: Literal["", "silu", "gelu_tanh"] = "",
    residual: Tensor | None = None,
    tiles: tuple[int, int, int] | None = None,
) -> Tensor:
    """act(rms_norm(x) @ weight.T + bias) for at most MAX_ROWS rows; sums, norm and activation in fp32.

    x: [T, K], its last dimension contiguous; weight: [N, K] contiguous; bias: [N]; norm: [K], RMSNorm's
    weight (None: no norm); activation: of the first half of the features, times the second half; residual:
    [T, N], to which the result is added in place, and which is returned. -> [T, N], or [T, N / 2] gated.
    """
    rows, in_features = x.shape
    features = weight.shape[0] if activation == "" else weight.shape[0] // 2
    out = torch.empty(rows, features, dtype=x.dtype, device=x.device) if residual is None else residual
    per_program, block_k, warps = tiles or tile_sizes(rows, features, in_features)
    early = starts_early(x.device)
    _small_linear_kernel[(triton.cdiv(features, per_program),)](
        x, weight, bias, norm, out, eps, rows, x.stride(0), out.stride(0), features,
        K=in_features, ROWS=power_of_two(rows), FEATURES=per_program, BLOCK_K=block_k, NORM=norm is not None,
        ACTIVATION=activation, BIAS=bias is not None, ADD=residual is not None, EARLY=early,
        num_warps=warps, launch_pdl=early,
    )  # fmt: skip
    return out
