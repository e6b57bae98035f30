"""Which matrix product computes a linear layer: chosen once, by the dtype its weights are to be held in.

A decode step reads every weight for a few rows, so bytes decide; a prefill multiplies hundreds of rows, so
arithmetic does. A kernel per row count would need a second copy of the weights; `benchmarks/linear.py` shows
that none is wanted: ours leads at every row count. Upstream: vllm/model_executor/layers/utils.py
(dispatch_cpu_unquantized_gemm).
"""

from __future__ import annotations

from functools import cache
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from learnvllm.model_layers import ops

LinearMode = Literal["fp32", "fp16", "torch"]

FP16_MAX = 65504.0


class LinearKernel(Protocol):
    """A packed linear layer."""

    in_features: int
    out_features: int
    weight_bytes: int  # what it holds in memory

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
        ValueError: an unknown mode; shapes that do not fit; no weights; fp16 and a weight beyond 65504.
    """
    if weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        shapes = f"{tuple(weight.shape)}" + ("" if bias is None else f" and {tuple(bias.shape)}")
        raise ValueError(f"a linear layer takes a weight [out, in] and a bias [out], not {shapes}")
    if weight.numel() == 0:
        raise ValueError(f"a linear layer needs at least one weight, not {tuple(weight.shape)}")
    if mode not in ("fp32", "fp16", "torch"):
        raise ValueError(f"unknown linear mode {mode!r}: use fp32, fp16 or torch")
    if mode == "torch" or not weight.is_cpu:
        return TorchLinear(weight, bias, "F.linear on the weight as it is: the reference, on any device")
    cpu = ops.cpu_kernels("cpu_linear")
    if mode == "fp16":
        check_fits_fp16(weight)
        if cpu and cpu.converts_halves():
            return cpu.CpuLinear(weight, bias, torch.float16)
        if has_fbgemm():
            return FbgemmLinear(weight, bias)
        weight = weight.half().float()  # the same numbers; only the memory saved is missing
    if cpu:
        return cpu.CpuLinear(weight, bias, torch.float32)
    if has_onednn():
        return OneDNNLinear(weight, bias, rounded=mode == "fp16")
    return TorchLinear(weight, bias, "F.linear: this build of torch offers neither oneDNN nor FBGEMM")


class TorchLinear:
    """F.linear; on a GPU a single row takes our kernel, about twice as fast (results/gpu_kernels.txt)."""

    def __init__(self, weight: Tensor, bias: Tensor | None, why: str) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight, self.bias, self.why = weight, bias, why
        self.weight_bytes = weight.nbytes

    def forward(self, x: Tensor) -> Tensor:
        gpu = ops.gpu_kernels(x) if len(x) == 1 else None
        if gpu:
            return gpu.linear_row(x, self.weight, self.bias)
        return F.linear(x, self.weight, self.bias)

    __call__ = forward

    def explain(self) -> str:
        return self.why


class OneDNNLinear:
    """The exact fp32 product where our kernels are off, on a weight laid out in oneDNN's blocks once instead
    of at every call.

    oneDNN compiles a kernel per number of rows when it first meets it, about a millisecond a shape.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, rounded: bool = False) -> None:
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)
        self.bias, self.rounded = bias, rounded
        self.weight_bytes = weight.nbytes

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")

    __call__ = forward

    def explain(self) -> str:
        if self.rounded:
            return "oneDNN fp32 on weights rounded to half precision: this torch has no FBGEMM to hold halves"
        return "oneDNN fp32 on a prepacked weight: exact; F.linear, which lays it out every time, is slower"


class FbgemmLinear:
    """Weights held in half precision where our kernels are off. Inputs and sums stay fp32."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.out_features, self.in_features = weight.shape
        self.packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)
        self.weight_bytes = weight.numel() * 2

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)

    __call__ = forward

    def explain(self) -> str:
        return (
            "FBGEMM on weights in half precision, inputs and sums fp32: half the bytes for a decode, "
            "of torch's kernels the fastest for few rows (benchmarks/results/linear.txt)"
        )


def check_fits_fp16(weight: Tensor) -> None:
    """Raises ValueError if half precision cannot hold a weight: infinity would come out instead."""
    low, high = torch.aminmax(weight) if weight.numel() else (torch.zeros(()), torch.zeros(()))
    largest = max(-low.item(), high.item())
    if not largest <= FP16_MAX:
        raise ValueError(f"a weight of {largest:g} does not fit half precision (65504): use dtype float32")


@cache
def has_fbgemm() -> bool:
    """Does this build of torch, on this CPU, multiply half-precision weights? (x86 with AVX2: yes.)"""
    try:
        packed = torch.ops.quantized.linear_prepack_fp16(torch.ones(1, 1), None)
        return bool(torch.ops.quantized.linear_dynamic_fp16(torch.ones(1, 1), packed) == 1)
    except (RuntimeError, AttributeError):
        return False


@cache
def has_onednn() -> bool:
    """Does this build of torch take weights packed for oneDNN?"""
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(torch.ones(1, 1), None)
        one = torch.ops.mkldnn._linear_pointwise(torch.ones(1, 1), packed, None, "none", [], "")
        return bool(one == 1)
    except (RuntimeError, AttributeError):
        return False
