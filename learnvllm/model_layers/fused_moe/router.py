"""Which experts see a token, and how much each of them counts: softmax over all, the k best.

It sees scores only; whose they are and what experts compute is no business of its own. Upstream namesake:
vllm/model_executor/layers/fused_moe/router/fused_topk_router.py. Paper: arXiv 2101.03961 (Switch), with k
experts instead of one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FusedTopKRouter:
    """T tokens, E experts, K of them for each token."""

    top_k: int
    renormalize: bool
    """Make each token's weights sum to 1."""

    def select_experts(self, router_logits: Tensor) -> tuple[Tensor, Tensor]:
        """router_logits: [T, E] -> weights [T, K] fp32 and expert ids [T, K] int64, the best first.

        Probabilities are fp32 whatever the scores are, as two experts often lie close together.
        """
        probabilities = torch.softmax(router_logits, dim=-1, dtype=torch.float32)
        topk_weights, topk_ids = probabilities.topk(self.top_k, dim=-1)
        if self.renormalize:
            topk_weights = topk_weights / topk_weights.sum(dim=-1, keepdim=True)
        return topk_weights, topk_ids


def append_shared_experts(
    topk_weights: Tensor, topk_ids: Tensor, first_id: int, num_shared: int
) -> tuple[Tensor, Tensor]:
    """Send every token also to the experts first_id, first_id + 1, ..., with weight 1: [T, K] -> [T, K + S].

    A shared expert is one that nobody need choose; with ids behind the routed ones, the same grouped product
    computes both. Upstream:
    vllm/model_executor/layers/fused_moe/router/aiter_shared_routed_fused_moe_router.py.
    """
    tokens = topk_ids.shape[0]
    shared = torch.arange(first_id, first_id + num_shared, device=topk_ids.device).expand(tokens, -1)
    ones = topk_weights.new_ones(tokens, num_shared)
    return torch.cat([topk_weights, ones], dim=1), torch.cat([topk_ids, shared], dim=1)
