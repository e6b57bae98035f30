"""RMSNorm as a Triton kernel: one program a row, which stays in registers between its sum and its scaling.

Memory is what a norm costs, so each element is read once and written once; with the residual added on the way
in, four passes of torch become one. Upstream: csrc/layernorm_kernels.cu. Twins: torch_ref.rms_norm and
fused_add_rms_norm.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from learnvllm.model_layers.ops.triton_kernels.launch import (
    power_of_two,
    start_next_kernel_early,
    starts_early,
    wait_for_inputs,
)


@triton.jit
def _rms_norm_kernel(  # type: ignore[no-untyped-def]
    x_ptr, residual_ptr, weight_ptr, out_ptr, eps,
    heads, x_token_stride, x_head_stride, residual_stride,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, ADD: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One row. x may be a view: row = token * heads + head. ADD: residual += x first, and that is normed."""
    start_next_kernel_early(EARLY)
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    weight = tl.load(weight_ptr + i, mask=i < SIZE, other=0.0).to(tl.float32)
    wait_for_inputs(EARLY)
    token = (row // heads).to(tl.int64)  # offsets beyond 2**31 are no rarity in a large batch
    x_row = x_ptr + token * x_token_stride + (row % heads) * x_head_stride
    x = tl.load(x_row + i, mask=i < SIZE, other=0.0).to(tl.float32)
    if ADD:
        residual_row = residual_ptr + token * residual_stride
        x += tl.load(residual_row + i, mask=i < SIZE, other=0.0).to(tl.float32)
        rounded = x.to(residual_ptr.dtype.element_ty)
        tl.store(residual_row + i, rounded, mask=i < SIZE)
        x = rounded.to(tl.float32)  # what the twin sees, which reads it back
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / SIZE + eps)
    out = (x * scale * weight).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row.to(tl.int64) * SIZE + i, out, mask=i < SIZE)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """torch_ref.rms_norm. x: [T, H] or [T, heads, H], its last dimension contiguous."""
    return _run(x, x, weight, eps, add=False)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """torch_ref.fused_add_rms_norm. x, residual: [T, H]."""
    return _run(x, residual, weight, eps, add=True), residual


def _run(x: Tensor, residual: Tensor, weight: Tensor, eps: float, add: bool) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not x.numel():
        return out
    size, heads = x.shape[-1], x.shape[1] if x.dim() == 3 else 1
    block, early = power_of_two(size), starts_early(x.device)
    _rms_norm_kernel[(x.numel() // size,)](
        x, residual, weight, out, eps,
        heads, x.stride(0), x.stride(1) if x.dim() == 3 else 0, residual.stride(0),
        SIZE=size, BLOCK=block, ADD=add, EARLY=early,
        num_warps=min(16, max(1, block // 256)), launch_pdl=early,
    )  # fmt: skip
    return out
