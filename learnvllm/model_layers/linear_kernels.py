"""Which matrix product computes a linear layer: chosen by the dtype its weights are held in and the number of
rows.

A decode step reads every weight once for a few rows, so bytes decide; a prefill does so for hundreds, so
arithmetic does. `make_linear` packs the weight once for the kernel at hand (upstream:
vllm/model_executor/layers/utils.py).
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

LinearMode = Literal["fp32", "fp16", "torch"]

FP16_MAX = 65504.0


class LinearKernel(Protocol):
    """A packed linear layer. weight_bytes: what it holds."""

    in_features: int
    out_features: int
    weight_bytes: int

    def forward(self, x: Tensor) -> Tensor:
        """x: [T, in] fp32 -> [T, out] fp32."""
        ...

    def __call__(self, x: Tensor) -> Tensor: ...

    def explain(self) -> str:
        """One sentence: which kernel computes this layer, and why."""
        ...


def make_linear(weight: Tensor, bias: Tensor | None, mode: LinearMode) -> LinearKernel:
    """Pack weight: [out, in] fp32 (and bias: [out]) for this machine. The caller may drop the weight
    afterwards.

    mode: fp32, the exact product; fp16, weights rounded to half precision, inputs and sums fp32; torch,
    F.linear on the weight as it is, on any device.

    Raises:
        ValueError: an unknown mode; a weight that is not two-dimensional; fp16 and a weight beyond 65504.
    """
    if weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        shapes = f"{tuple(weight.shape)}" + ("" if bias is None else f" and {tuple(bias.shape)}")
        raise ValueError(f"a linear layer takes a weight [out, in] and a bias [out], not {shapes}")
    if mode == "torch" or not weight.is_cpu:
        return TorchLinear(weight, bias)
    if mode == "fp32":
        has_onednn = torch.backends.mkldnn.is_available()
        return OneDNNLinear(weight, bias) if has_onednn else TorchLinear(weight, bias)
    if mode == "fp16":
        return FbgemmLinear(weight, bias)
    raise ValueError(f"unknown linear mode {mode!r}: use fp32, fp16 or torch")


class TorchLinear:
    """F.linear on the weight as it is: the reference, and what runs on any device."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight, self.bias = weight, bias
        self.weight_bytes = weight.nbytes

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    __call__ = forward

    def explain(self) -> str:
        return "torch F.linear: the weight as it is, on any device"


class OneDNNLinear:
    """The exact fp32 product on a weight that oneDNN has laid out in blocks once, instead of at every call."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self.bias = bias
        self.weight_bytes = weight.nbytes

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")

    __call__ = forward

    def explain(self) -> str:
        return "oneDNN fp32 on a prepacked weight: exact"


class FbgemmLinear:
    """Weights rounded to half precision (half the bytes of a decode step), inputs and sums in fp32."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        check_fits_fp16(weight)
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)
        self.weight_bytes = weight.numel() * 2

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)

    __call__ = forward

    def explain(self) -> str:
        return "FBGEMM: weights in half precision, inputs and sums in fp32"


def check_fits_fp16(weight: Tensor) -> None:
    """Raises ValueError if half precision cannot hold a weight: rounding it to infinity would be silent
    nonsense.
    """
    low, high = torch.aminmax(weight)
    largest = max(-low.item(), high.item())
    if not largest <= FP16_MAX:
        raise ValueError(f"a weight of {largest:g} exceeds half precision's 65504: use dtype float32")
