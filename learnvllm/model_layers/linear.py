"""A linear layer, and the stacking of several checkpoint tensors into one.

q, k and v (and gate and up) read the same input, so their weights are stacked and computed as one matrix
product: fewer, larger products. Which kernel computes it is `linear_kernels.py`'s affair. Upstream namesake:
vllm/model_executor/layers/linear.py (QKVParallelLinear, MergedColumnParallelLinear).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.model_layers.linear_kernels import LinearKernel, check_fits_fp16, make_linear
from learnvllm.model_layers.weights import Weights


class Linear:
    """y = x W^T + b. x: [T, in_features] -> [T, sum of the projections' rows], in `weights.dtype`.

    Args:
        weights: the point of the name tree above the projections.
        projections: checkpoint names and their number of output rows, stacked in this order.
        in_features: columns of every projection.
        bias: whether each projection has one.
    """

    def __init__(
        self, weights: Weights, projections: Sequence[tuple[str, int]], in_features: int, bias: bool = False
    ) -> None:
        stacked = [weights.take(f"{name}.weight", rows, in_features) for name, rows in projections]
        biases = [weights.take(f"{name}.bias", rows) for name, rows in projections] if bias else []
        dtype = weights.dtype
        weight = stacked[0].to(dtype) if len(stacked) == 1 else torch.cat([w.to(dtype) for w in stacked])
        bias_or_none = torch.cat([b.to(dtype) for b in biases]) if bias else None
        self.kernel = packed(weights, "+".join(name for name, _ in projections), weight, bias_or_none)

    def __call__(self, x: Tensor) -> Tensor:
        return self.kernel(x)


def qkv_linear(arch: ModelArchitecture, weights: Weights) -> Linear:
    """[T, hidden] -> [T, (Hq + 2 Hk) * D]: q, k and v in one product; `Attention.split` takes them apart."""
    q_size, kv_size = arch.num_attention_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    projections = [("q_proj", q_size), ("k_proj", kv_size), ("v_proj", kv_size)]
    return Linear(weights, projections, arch.hidden_size, arch.attention_bias)


def o_linear(arch: ModelArchitecture, weights: Weights) -> Linear:
    """[T, Hq * D] -> [T, hidden]."""
    q_size = arch.num_attention_heads * arch.head_dim
    return Linear(weights, [("o_proj", arch.hidden_size)], q_size, arch.attention_out_bias)


def packed(weights: Weights, name: str, weight: Tensor, bias: Tensor | None) -> LinearKernel:
    """The weight in the form it is computed with.

    Raises:
        ModelLoadError: half precision cannot hold it (bfloat16 checkpoints may reach beyond 65504).
    """
    try:
        if weights.dtype is torch.float16:
            check_fits_fp16(weight)  # has become infinite where it did not
        kernel = make_linear(weight, bias, weights.linear_mode)
    except ValueError as error:
        raise weights.error(name, str(error)) from None
    weights.count(kernel.weight_bytes)
    weights.held.kernels[kernel.explain()] += 1
    return kernel
