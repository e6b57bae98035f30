"""Sampling from logits in plain torch: what temperature, min-p, top-k and top-p mean, on any device.

The CPU kernel in `kernels.py` does the same in one pass per filter and is tested against this. Upstream
namesakes: vllm/v1/sample/ops/topk_topp_sampler.py (apply_top_k_top_p), vllm/v1/worker/gpu/sample/min_p.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from learnvllm.executor_worker.sample.gumbel import gumbel_argmax


def sample(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    """Draw one token a row.

    logits: [n, V] float32; temperature > 0, top_p, min_p: [n] float; top_k: [n] int, 0 = all;
    seeds, positions: [n] int64 -> [n] int64. A row with a NaN gives -1, a row of only -inf gives 0.
    """
    weights = filtered_weights(logits, temperature, top_k, top_p, min_p)
    tokens = gumbel_argmax(weights.log(), seeds, positions)
    infinite = logits == float("inf")  # an infinite logit wins outright; exp() could only make a NaN of it
    tokens = torch.where(infinite.any(dim=-1), infinite.int().argmax(dim=-1), tokens)
    tokens = torch.where((logits == float("-inf")).all(dim=-1), torch.zeros_like(tokens), tokens)
    return torch.where(logits.isnan().any(dim=-1), torch.full_like(tokens, -1), tokens)


def filtered_weights(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    """Probabilities up to a factor, zero where a filter removes the token. Shapes as in `sample`; -> [n, V]
    float64.

    The order is vLLM's: temperature, then min-p, then top-k, then top-p over what top-k left.
    """
    shifted = logits.double() - logits.double().amax(dim=-1, keepdim=True)
    weights = torch.exp(shifted / temperature[:, None])  # the most likely token has weight 1
    weights = weights.masked_fill(weights < min_p[:, None], 0.0)
    # Stable, so that of equally likely tokens the one with the lower id comes first.
    descending, order = weights.sort(dim=-1, descending=True, stable=True)
    k = torch.where(top_k > 0, top_k, logits.shape[1]).clamp(max=logits.shape[1]).long()
    kth = descending.gather(1, (k - 1)[:, None])
    descending = descending.masked_fill(descending < kth, 0.0)  # tokens as likely as the k-th stay
    before = descending.cumsum(dim=-1) - descending  # mass of the tokens in front
    beyond = (before >= top_p[:, None] * descending.sum(dim=-1, keepdim=True)) & (top_p[:, None] < 1)
    beyond[:, 0] = False
    descending = descending.masked_fill(beyond, 0.0)
    return torch.zeros_like(weights).scatter(1, order, descending)


def penalize(
    logits: Tensor, counts: Tensor, in_prompt: Tensor, repetition: Tensor, frequency: Tensor, presence: Tensor
) -> Tensor:
    """Make tokens that occurred less likely.

    repetition divides positive and multiplies negative logits of tokens in prompt or output (arXiv
    1909.05858); frequency is subtracted once per occurrence in the output, presence once if there is any.

    logits: [n, V]; counts: [n, V] int, occurrences in the output; in_prompt: [n, V] bool; penalties: [n]
    float. Upstream: vllm/model_executor/layers/utils.py (apply_penalties).
    """
    factor = torch.where((counts > 0) | in_prompt, repetition[:, None], 1.0)
    logits = torch.where(logits > 0, logits / factor, logits * factor)
    logits = logits - frequency[:, None] * counts
    return logits - presence[:, None] * (counts > 0)
