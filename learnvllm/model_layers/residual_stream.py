"""The residual stream on a GPU: sublayers read it through a norm and add to it themselves.

On a CPU a norm adds what the sublayer before it computed, which saves a pass over memory. A GPU has two
better ways: cuBLAS adds its product to the stream for nothing, and for a single row the norm, the product,
the activation and the sum are one kernel of ours, which matters because a step of one request is bound by
how many kernels it is. Both compute what `LlamaDecoderLayer.__call__` does, rounded once less.
Upstream has no such thing by hand; its compiler passes fuse norms with what is before them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from learnvllm.model_layers import ops
from learnvllm.model_layers.layernorm import RMSNorm
from learnvllm.model_layers.linear import Linear
from learnvllm.model_layers.linear_kernels import TorchLinear

Activation = Literal["", "silu", "gelu_tanh"]
GATED: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": ops.silu_and_mul,
    "gelu_tanh": ops.gelu_tanh_and_mul,
}


def is_added_to(stream: Tensor) -> bool:
    """Shall layers do it this way?"""
    return ops.gpu_kernels(stream) is not None


def normed_linear(norm: RMSNorm, linear: Linear, stream: Tensor, activation: Activation = "") -> Tensor:
    """linear(norm(stream)), then the gated activation if one is named. stream: [T, H] -> [T, out]."""
    kernel = linear.kernel
    gpu = ops.gpu_kernels(stream) if len(stream) == 1 else None
    if gpu and isinstance(kernel, TorchLinear):
        return gpu.linear_row(stream, kernel.weight, kernel.bias, norm.weight, norm.eps, activation)
    y = linear(norm(stream))
    return y if activation == "" else GATED[activation](y)


def add_linear(stream: Tensor, linear: Linear, x: Tensor) -> None:
    """stream += linear(x). stream: [T, H], x: [T, in]."""
    kernel = linear.kernel
    if not isinstance(kernel, TorchLinear):
        stream += linear(x)
        return
    gpu = ops.gpu_kernels(x) if len(x) == 1 else None
    if gpu:
        gpu.linear_row(x, kernel.weight, kernel.bias, residual=stream)
    elif kernel.bias is None:
        stream.addmm_(x, kernel.weight.t())
    else:
        stream += linear(x)
