"""The gated activations as a Triton kernel: act(gate) * up, where gate and up lie side by side in a row.

Upstream: csrc/activation_kernels.cu. Twins: torch_ref.silu_and_mul and gelu_tanh_and_mul.
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

BLOCK = 1024


@triton.jit
def activate(x, SILU: tl.constexpr):  # type: ignore[no-untyped-def]
    """silu(x), or the tanh approximation of gelu(x). x: float32.

    tanh(y) = 2 sigmoid(2y) - 1, so both are x times a sigmoid, which is right at both ends of the range.
    """
    if SILU:
        return x * tl.sigmoid(x)
    return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))  # 2 sqrt(2 / pi)


@triton.jit
def _activate_and_mul_kernel(  # type: ignore[no-untyped-def]
    x_ptr, out_ptr, x_stride, size, SILU: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    start_next_kernel_early(EARLY)
    wait_for_inputs(EARLY)
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(x_ptr + row * x_stride + i, mask=i < size, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + row * x_stride + size + i, mask=i < size, other=0.0).to(tl.float32)
    tl.store(
        out_ptr + row * size + i, (activate(gate, SILU) * up).to(out_ptr.dtype.element_ty), mask=i < size
    )


def silu_and_mul(x: Tensor) -> Tensor:
    """torch_ref.silu_and_mul. x: [T, 2 * I], its last dimension contiguous -> [T, I]."""
    return _run(x, silu=True)


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    """torch_ref.gelu_tanh_and_mul, shapes as in silu_and_mul."""
    return _run(x, silu=False)


def _run(x: Tensor, silu: bool) -> Tensor:
    rows, size = x.shape[0], x.shape[1] // 2
    out = torch.empty(rows, size, dtype=x.dtype, device=x.device)
    if out.numel():
        block, early = min(BLOCK, power_of_two(size)), starts_early(x.device)
        _activate_and_mul_kernel[(rows, triton.cdiv(size, block))](
            x, out, x.stride(0), size, SILU=silu, BLOCK=block, EARLY=early, num_warps=4, launch_pdl=early
        )
    return out
