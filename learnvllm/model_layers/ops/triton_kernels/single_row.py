"""A linear layer for a single row as a Triton kernel, with what comes before and after it done on the way.

With one row each weight is read once and used once, so reading is all it costs and the matrix units have
nothing to do: a program takes a few output features, reads their weights in long runs and sums. What is
around the product costs launches, not arithmetic, so it rides along: RMSNorm in front (its factor 1/rms is
the same for the whole row, so it waits until the sums are there), a gated activation or the addition to the
residual stream behind. Weights do not depend on the kernel before: they are asked for before it ends.
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

Activation = Literal["", "silu", "gelu_tanh"]


@triton.jit
def _load_weights(weight_ptr, feature, is_feature, k, K: tl.constexpr):  # type: ignore[no-untyped-def]
    """[features, BLOCK_K] of weight [N, K]; zeros beyond both ends."""
    place = feature.to(tl.int64)[:, None] * K + k[None, :]
    return tl.load(weight_ptr + place, mask=is_feature[:, None] & (k < K)[None, :], other=0.0)


@triton.jit
def _linear_row_kernel(  # type: ignore[no-untyped-def]
    x_ptr, weight_ptr, bias_ptr, norm_ptr, out_ptr, eps, num_features,
    K: tl.constexpr, FEATURES: tl.constexpr, BLOCK_K: tl.constexpr,
    NORM: tl.constexpr, ACTIVATION: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """FEATURES outputs. With an ACTIVATION output i needs the features i and num_features + i."""
    start_next_kernel_early(EARLY)
    feature, k = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES), tl.arange(0, BLOCK_K)
    is_feature = feature < num_features
    weight = _load_weights(weight_ptr, feature, is_feature, k, K)
    up = weight
    if ACTIVATION != "":
        up = _load_weights(weight_ptr, num_features + feature, is_feature, k, K)
    wait_for_inputs(EARLY)
    acc, up_acc = tl.zeros([FEATURES], tl.float32), tl.zeros([FEATURES], tl.float32)
    if ADD:
        stream = tl.load(out_ptr + feature, mask=is_feature, other=0.0).to(tl.float32)
    squares = tl.zeros([BLOCK_K], tl.float32)
    for first in tl.static_range(0, K, BLOCK_K):
        i = first + k
        x = tl.load(x_ptr + i, mask=i < K, other=0.0).to(tl.float32)
        if NORM:
            squares += x * x
            x *= tl.load(norm_ptr + i, mask=i < K, other=0.0).to(tl.float32)
        acc += tl.sum(weight.to(tl.float32) * x[None, :], axis=1)
        if ACTIVATION != "":
            up_acc += tl.sum(up.to(tl.float32) * x[None, :], axis=1)
        if first + BLOCK_K < K:
            weight = _load_weights(weight_ptr, feature, is_feature, i + BLOCK_K, K)
            if ACTIVATION != "":
                up = _load_weights(weight_ptr, num_features + feature, is_feature, i + BLOCK_K, K)
    if NORM:
        scale = tl.rsqrt(tl.sum(squares, axis=0) / K + eps)
        acc, up_acc = acc * scale, up_acc * scale
    if BIAS:
        acc += tl.load(bias_ptr + feature, mask=is_feature, other=0.0).to(tl.float32)
        if ACTIVATION != "":
            up_acc += tl.load(bias_ptr + num_features + feature, mask=is_feature, other=0.0).to(tl.float32)
    if ACTIVATION != "":
        acc = activate(acc, ACTIVATION == "silu") * up_acc
    if ADD:
        acc += stream
    tl.store(out_ptr + feature, acc.to(out_ptr.dtype.element_ty), mask=is_feature)


def tile_sizes(num_features: int, in_features: int) -> tuple[int, int, int]:
    """(features a program, BLOCK_K, warps): the best of benchmarks/gpu_tune.py on an H200, within 2 %.

    A row of weights in one piece, so that all of it is asked for at once: 1.95 us for [1024, 2048], where two
    pieces take 2.9 us; with 8 or 16 features a program 2.2 us.
    """
    return 4 if num_features < 1 << 15 else 8, min(4096, power_of_two(in_features)), 4


def linear_row(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    norm: Tensor | None = None,
    eps: float = 0.0,
    activation: Activation = "",
    residual: Tensor | None = None,
    tiles: tuple[int, int, int] | None = None,
) -> Tensor:
    """act(rms_norm(x) @ weight.T + bias); sums, norm and activation in fp32.

    x: [1, K]; weight: [N, K], both contiguous; bias: [N]; norm: [K], RMSNorm's weight (None: no norm);
    activation: of the first half of the features, times the second half; residual: [1, N], to which the
    result is added in place, and which is returned. -> [1, N], or [1, N / 2] with an activation.
    """
    in_features = x.shape[1]
    features = weight.shape[0] if activation == "" else weight.shape[0] // 2
    out = torch.empty(1, features, dtype=x.dtype, device=x.device) if residual is None else residual
    per_program, block_k, warps = tiles or tile_sizes(features, in_features)
    early = starts_early(x.device)
    _linear_row_kernel[(triton.cdiv(features, per_program),)](
        x, weight, bias, norm, out, eps, features,
        K=in_features, FEATURES=per_program, BLOCK_K=block_k, NORM=norm is not None,
        ACTIVATION=activation, BIAS=bias is not None, ADD=residual is not None, EARLY=early,
        num_warps=warps, launch_pdl=early,
    )  # fmt: skip
    return out
