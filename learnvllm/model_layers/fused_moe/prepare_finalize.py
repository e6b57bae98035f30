"""Tokens to experts and back where all experts are on this rank: nothing to send, at most another layout.

Upstream namesakes: vllm/model_executor/layers/fused_moe/prepare_finalize/no_dp_ep.py and batched.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from learnvllm.model_layers.fused_moe.modular_kernel import ActivationFormat, PreparedTokens


class LocalPrepareFinalize:
    """Tokens stay where they are; experts of this layout weight and sum by themselves."""

    activation_format = ActivationFormat.STANDARD

    def prepare(
        self, hidden: Tensor, topk_weights: Tensor, topk_ids: Tensor, num_experts: int
    ) -> PreparedTokens:
        return PreparedTokens(hidden, topk_weights, topk_ids, hidden.shape[0])

    def finalize(self, expert_output: Tensor, prepared: PreparedTokens) -> Tensor:
        return expert_output


class BatchedPrepareFinalize:
    """A table of T rows for each expert, tokens in the first of them: no size depends on the routing.

    T rows are the least that always suffices, as a token comes to an expert once. That is E / K times the
    rows that are used: a layout for few tokens.
    """

    activation_format = ActivationFormat.BATCHED

    def prepare(
        self, hidden: Tensor, topk_weights: Tensor, topk_ids: Tensor, num_experts: int
    ) -> PreparedTokens:
        tokens, width = hidden.shape
        chosen = torch.zeros(tokens, num_experts, dtype=torch.int64, device=hidden.device)
        chosen.scatter_(1, topk_ids, 1)
        rows = (chosen.cumsum(0) - 1).gather(1, topk_ids)  # how many before me chose the same expert
        tables = hidden.new_zeros(num_experts, tokens, width)
        tables[topk_ids, rows] = hidden.unsqueeze(1)
        return PreparedTokens(tables, topk_weights, topk_ids, tokens, rows)

    def finalize(self, expert_output: Tensor, prepared: PreparedTokens) -> Tensor:
        assert prepared.rows is not None  # `prepare` has set it
        picked = expert_output[prepared.topk_ids, prepared.rows]  # [T, K, H]
        return (picked * prepared.topk_weights.unsqueeze(-1).to(picked.dtype)).sum(dim=1)
