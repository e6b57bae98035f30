"""RMSNorm, fused with the addition of the residual stream that always comes just before it.

Between layers two tensors travel: `hidden`, what the last sublayer computed, and `residual`, the stream it
has not been added to yet. The norm adds the first into the second and normalizes in one pass over memory.
Upstream namesake: vllm/model_executor/layers/layernorm.py (RMSNorm). Paper: arXiv 1910.07467.
"""

from __future__ import annotations

from torch import Tensor

from learnvllm.model_layers import ops
from learnvllm.model_layers.weights import Weights


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    Args:
        offset: added to the weight once, here: Gemma's checkpoints store weight - 1.
    """

    def __init__(self, weights: Weights, name: str, size: int, eps: float, offset: float = 0.0) -> None:
        self.weight = weights.take(f"{name}.weight", size).float() + offset  # a copy in any case
        self.eps = eps
        weights.count(self.weight.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        """x: [T, size] or [T, heads, size] -> a new tensor of the same shape."""
        return ops.rms_norm(x, self.weight, self.eps)

    def add(self, hidden: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """residual += hidden, in place. Returns (norm(residual), residual). Both: [T, size]."""
        return ops.fused_add_rms_norm(hidden, residual, self.weight, self.eps)
