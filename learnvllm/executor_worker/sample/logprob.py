"""Log-probabilities of chosen and of most likely tokens, from the model's own distribution.

"Raw": before temperature, penalties or any filter, vLLM's default (logprobs_mode="raw_logprobs").
Upstream namesake: vllm/v1/worker/gpu/sample/logprob.py.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from learnvllm.architecture.messages import LogprobsLists

# Rows whose logits are held at once: a long prompt's logits over the whole vocabulary would not fit.
ROWS_AT_ONCE = 64


def compute_logprobs(
    logits: Tensor, token_ids: np.ndarray, num_top: int, use_kernels: bool = False
) -> LogprobsLists:
    """Log-probability and rank of one token a row, and of the row's `num_top` most likely tokens.

    Rank 1 is the most likely; equally likely tokens share the better rank. See LogprobsLists for the shapes.

    logits: [n, V] float32; token_ids: [n] int64; use_kernels: the compiled CPU kernel, which finds the few
    best tokens ten times sooner than torch does.
    """
    num_top = min(num_top, logits.shape[1])
    if use_kernels:
        from learnvllm.executor_worker.sample import logit_kernels

        return LogprobsLists(*logit_kernels.logprobs(logits.numpy(), token_ids, num_top))
    chosen = torch.from_numpy(token_ids).to(logits.device)[:, None]
    normalizer = logits.logsumexp(dim=-1, keepdim=True)
    chosen_logits = logits.gather(1, chosen)
    ranks = (logits > chosen_logits).sum(dim=-1) + 1
    top = logits.topk(num_top, dim=-1)
    ids = torch.cat([chosen, top.indices], dim=1)
    values = torch.cat([chosen_logits, top.values], dim=1) - normalizer
    return LogprobsLists(
        token_ids=ids.to(torch.int32).cpu().numpy(),
        logprobs=values.cpu().numpy(),
        ranks=ranks.to(torch.int32).cpu().numpy(),
    )


def concatenate(parts: list[LogprobsLists]) -> LogprobsLists:
    """Rows of all parts, which have the same number of columns, one after the other."""
    return LogprobsLists(*(np.concatenate(columns) for columns in zip(*parts)))
