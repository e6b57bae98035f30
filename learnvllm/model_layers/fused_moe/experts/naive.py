"""One expert after the other, each with the tokens that chose it: what all others compute is defined here.

Each expert is a plain linear layer of few tokens, so a step of many experts is many small products. Upstream:
vllm/model_executor/layers/fused_moe/experts/fused_batched_moe.py (NaiveBatchedExperts, over tables).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from learnvllm.model_layers.fused_moe.modular_kernel import (
    ActivationFormat,
    MoEKernelConfig,
    PreparedTokens,
)
from learnvllm.model_layers.linear_kernels import LinearKernel, make_linear
from learnvllm.model_layers.mlp import ACTIVATIONS
from learnvllm.model_layers.residual_stream import GATED


class NaiveExperts:
    """A loop over the experts that have tokens."""

    activation_format = ActivationFormat.STANDARD
    asks_host = True

    def __init__(self, config: MoEKernelConfig) -> None:
        self.linear_mode, self.act_and_mul = config.linear_mode, GATED[ACTIVATIONS[config.hidden_act]]

    @staticmethod
    def unsupported_reason(config: MoEKernelConfig) -> str | None:
        return None

    def pack(self, matrices: Iterator[Tensor], num_experts: int) -> list[LinearKernel]:
        # Copies, for a kernel that takes a view of the checkpoint as it is would keep the file mapped.
        return [make_linear(matrix.clone(), None, self.linear_mode) for matrix in matrices]

    def num_bytes(self, packed: list[LinearKernel]) -> int:
        return sum(kernel.weight_bytes for kernel in packed)

    def apply(self, tokens: PreparedTokens, w13: list[LinearKernel], w2: list[LinearKernel]) -> Tensor:
        x, ids = tokens.hidden, tokens.topk_ids
        out = torch.zeros_like(x)
        for e in ids.unique().tolist():
            token, choice = (ids == e).nonzero(as_tuple=True)
            computed = w2[e](self.act_and_mul(w13[e](x[token])))
            out.index_add_(0, token, computed * tokens.topk_weights[token, choice, None].to(x.dtype))
        return out

    def explain(self) -> str:
        return "one expert after the other, each a linear layer of its own: the reference, anywhere"
