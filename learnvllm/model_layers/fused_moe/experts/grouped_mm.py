"""Tokens sorted by expert, then torch's product of one long matrix with many: every expert its own rows.

Nothing is computed twice or for nobody. The readable twin of `cpu.py`, and the way for any device. Upstream
namesake: vllm/model_executor/layers/fused_moe/experts/triton_moe.py (TritonExperts).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from learnvllm.model_layers.fused_moe.align import sort_by_expert
from learnvllm.model_layers.fused_moe.experts.stacked import stack
from learnvllm.model_layers.fused_moe.modular_kernel import (
    ActivationFormat,
    MoEKernelConfig,
    PreparedTokens,
)
from learnvllm.model_layers.mlp import ACTIVATIONS
from learnvllm.model_layers.residual_stream import GATED

ALIGNMENT = 16
"""Bytes that a row of either operand must be a multiple of."""


class GroupedMMExperts:
    """F.grouped_mm over pairs sorted by expert."""

    activation_format = ActivationFormat.STANDARD
    asks_host = True
    """For some dtypes and GPUs only; nothing says for which."""

    def __init__(self, config: MoEKernelConfig) -> None:
        self.linear_mode, self.act_and_mul = config.linear_mode, GATED[ACTIVATIONS[config.hidden_act]]

    @staticmethod
    def unsupported_reason(config: MoEKernelConfig) -> str | None:
        if not hasattr(F, "grouped_mm"):
            return f"torch {torch.__version__} has no grouped_mm"
        for name in ("hidden_size", "intermediate_size"):
            size, itemsize = getattr(config, name), config.dtype.itemsize
            if size * itemsize % ALIGNMENT:
                return f"{name}={size} in {config.dtype} is no multiple of {ALIGNMENT} bytes"
        return None

    def pack(self, matrices: Iterator[Tensor], num_experts: int) -> Tensor:
        return stack(matrices, num_experts, rounded=self.linear_mode == "fp16")

    def num_bytes(self, packed: Tensor) -> int:
        return packed.nbytes

    def apply(self, tokens: PreparedTokens, w13: Tensor, w2: Tensor) -> Tensor:
        num_tokens, top_k = tokens.topk_ids.shape
        order, counts = sort_by_expert(tokens.topk_ids, w13.shape[0])
        ends = counts.cumsum(0).to(torch.int32)
        x = tokens.hidden[order // top_k]  # [T * K, H]
        activated = self.act_and_mul(F.grouped_mm(x, w13.transpose(1, 2), offs=ends))
        computed = F.grouped_mm(activated, w2.transpose(1, 2), offs=ends)
        by_pair = torch.empty_like(computed)
        by_pair[order] = computed
        weights = tokens.topk_weights.unsqueeze(-1).to(x.dtype)
        return (by_pair.view(num_tokens, top_k, -1) * weights).sum(dim=1)

    def explain(self) -> str:
        return "torch's grouped product over tokens sorted by expert: any device, each row once"
