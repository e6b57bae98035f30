"""Experts' matrices in one tensor, as torch's own products over many matrices want them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def stack(matrices: Iterator[Tensor], num_experts: int, rounded: bool) -> Tensor:
    """[E, out, in] in the matrices' dtype. rounded: to half precision's numbers, in fp32's bytes, for torch
    multiplies operands of one dtype only."""
    stacked = torch.empty(0)
    for e, matrix in enumerate(matrices):
        if e == 0:
            stacked = matrix.new_empty(num_experts, *matrix.shape)
        stacked[e] = matrix.half() if rounded else matrix
    return stacked
