"""All experts at once over tables of one size: a batched matrix product, most of whose rows are empty.

It computes E / K times what is needed, but no size depends on the routing, so nothing is asked of the device
and a CUDA graph can hold it. Upstream namesake:
vllm/model_executor/layers/fused_moe/experts/fused_batched_moe.py (BatchedTritonExperts).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from learnvllm.model_layers.fused_moe.experts.stacked import stack
from learnvllm.model_layers.fused_moe.modular_kernel import (
    ActivationFormat,
    MoEKernelConfig,
    PreparedTokens,
)
from learnvllm.model_layers.mlp import ACTIVATIONS
from learnvllm.model_layers.residual_stream import GATED


class BatchedExperts:
    """bmm over [E, C, H], C rows for every expert."""

    activation_format = ActivationFormat.BATCHED
    asks_host = False

    def __init__(self, config: MoEKernelConfig) -> None:
        self.linear_mode, self.act_and_mul = config.linear_mode, GATED[ACTIVATIONS[config.hidden_act]]

    @staticmethod
    def unsupported_reason(config: MoEKernelConfig) -> str | None:
        return None

    def pack(self, matrices: Iterator[Tensor], num_experts: int) -> Tensor:
        return stack(matrices, num_experts, rounded=self.linear_mode == "fp16")

    def num_bytes(self, packed: Tensor) -> int:
        return packed.nbytes

    def apply(self, tokens: PreparedTokens, w13: Tensor, w2: Tensor) -> Tensor:
        gate_up = torch.bmm(tokens.hidden, w13.transpose(1, 2))  # [E, C, 2I]
        activated = self.act_and_mul(gate_up.flatten(0, 1))
        return torch.bmm(activated.view(*gate_up.shape[:2], -1), w2.transpose(1, 2))

    def explain(self) -> str:
        return "one batched product over a table of all tokens for each expert: no size depends on routing"
