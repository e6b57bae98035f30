"""Tokens sorted by expert, each expert's share rounded up to whole tiles: what a grouped product runs over.

A token with K experts is K *pairs* (pair p is token p // K with its expert number p % K). Neither function
asks the host for a count: sizes are upper bounds, so both could run inside a CUDA graph. Upstream namesake:
vllm/model_executor/layers/fused_moe/moe_align_block_size.py.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sort_by_expert(topk_ids: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """topk_ids: [T, K] int64 -> the pairs in the order of their experts [T*K], and pairs per expert [E]."""
    experts = topk_ids.flatten()
    order = experts.argsort(stable=True)  # an expert's tokens keep their order
    counts = torch.zeros(num_experts, dtype=torch.int64, device=experts.device)
    return order, counts.scatter_add_(0, experts, torch.ones_like(experts))


def most_blocks(num_pairs: int, block_size: int, num_experts: int) -> int:
    """Blocks that any routing of so many pairs can fill: a part of one for each expert that has tokens."""
    busy = min(num_pairs, num_experts)
    return (num_pairs + busy * (block_size - 1)) // block_size


def moe_align_block_size(
    topk_ids: Tensor, block_size: int, num_experts: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Place pairs in blocks of `block_size` slots, so that no block holds tokens of two experts.

    topk_ids: [T, K] int64, each below num_experts. Returns
        sorted_token_ids [B * block_size]: pairs by expert; T * K in slots that only pad,
        expert_ids [B]: whose tokens a block holds; -1: nobody's,
        num_tokens_post_padded [1]: slots in use, padding of the experts included.
    """
    order, counts = sort_by_expert(topk_ids, num_experts)
    device, num_pairs = order.device, order.shape[0]
    num_blocks = most_blocks(num_pairs, block_size, num_experts)
    padded = (counts + block_size - 1) // block_size * block_size
    ends = padded.cumsum(0)
    experts = topk_ids.flatten()[order]
    rank = torch.arange(num_pairs, device=device) - (counts.cumsum(0) - counts)[experts]  # among its expert's
    sorted_token_ids = torch.full((num_blocks * block_size,), num_pairs, device=device)
    sorted_token_ids[(ends - padded)[experts] + rank] = order
    block_starts = torch.arange(num_blocks, device=device) * block_size
    expert_ids = torch.searchsorted(ends, block_starts, right=True)
    expert_ids = torch.where(block_starts < ends[-1], expert_ids, -1)
    return sorted_token_ids, expert_ids, ends[-1:]
