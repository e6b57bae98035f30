"""Tokens sorted by expert, then our own CPU kernel over blocks of them, weights in half precision or exact.

Each expert's weights are read once a step however few tokens it has, and all experts are one call. Upstream:
vllm/model_executor/layers/fused_moe/experts/cpu_moe.py, csrc/cpu/cpu_fused_moe.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from learnvllm.model_layers import ops
from learnvllm.model_layers.fused_moe.modular_kernel import (
    ActivationFormat,
    MoEKernelConfig,
    PreparedTokens,
)
from learnvllm.model_layers.mlp import ACTIVATIONS
from learnvllm.model_layers.residual_stream import GATED

if TYPE_CHECKING:
    from learnvllm.model_layers.ops.cpu_moe import GroupedPanels


class CPUExperts:
    """Grouped products over panels of weights."""

    activation_format = ActivationFormat.STANDARD
    asks_host = True

    def __init__(self, config: MoEKernelConfig) -> None:
        kernels, linear = ops.cpu_kernels("cpu_moe"), ops.cpu_kernels("cpu_linear")
        assert kernels is not None  # `unsupported_reason` says so
        assert linear is not None
        self.kernels, self.act_and_mul = kernels, GATED[ACTIVATIONS[config.hidden_act]]
        self.rounded = config.linear_mode == "fp16"
        self.dtype = torch.float16 if self.rounded and linear.converts_halves() else torch.float32

    @staticmethod
    def unsupported_reason(config: MoEKernelConfig) -> str | None:
        if config.device_type != "cpu":
            return f"it is for the CPU, not for {config.device_type}"
        if config.dtype is not torch.float32:
            return f"activations must be float32, not {config.dtype}"
        if not ops.uses_kernels():
            return "compiled kernels are off (--cpu-kernels torch, or LEARNVLLM_CPU_KERNELS)"
        return None

    def pack(self, matrices: Iterator[Tensor], num_experts: int) -> GroupedPanels:
        if self.rounded:
            matrices = (matrix.half() for matrix in matrices)
        packed: GroupedPanels = self.kernels.GroupedPanels(matrices, num_experts, self.dtype)
        return packed

    def num_bytes(self, packed: GroupedPanels) -> int:
        return packed.panels.nbytes

    def apply(self, tokens: PreparedTokens, w13: GroupedPanels, w2: GroupedPanels) -> Tensor:
        of_token, rows, blocks = self.kernels.sort_into_blocks(tokens.topk_ids, w13.num_experts)
        activated = self.act_and_mul(w13(tokens.hidden[of_token], blocks))
        summed: Tensor = self.kernels.fused_mul_sum(w2(activated, blocks), rows, tokens.topk_weights)
        return summed

    def explain(self) -> str:
        held = "half precision" if self.dtype is torch.float16 else "fp32"
        return (
            f"our grouped kernel over tokens sorted by expert, weights in {held} (benchmarks/results/moe.txt)"
        )
