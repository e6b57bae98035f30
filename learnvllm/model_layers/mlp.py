"""The gated feed-forward block: down(act(gate(x)) * up(x)), gate and up stacked into one product.

SwiGLU where act is silu, GeGLU where it is gelu. Upstream namesake: LlamaMLP in
vllm/model_executor/models/llama.py. Paper: arXiv 2002.05202.
"""

from __future__ import annotations

from torch import Tensor

from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.model_layers import ops
from learnvllm.model_layers.linear import Linear
from learnvllm.model_layers.weights import Weights

ACTIVATIONS = {"silu": ops.silu_and_mul, "gelu_pytorch_tanh": ops.gelu_tanh_and_mul}


class GatedMLP:
    """[T, hidden] -> [T, hidden] by way of 2 x [T, intermediate]."""

    def __init__(self, arch: ModelArchitecture, weights: Weights) -> None:
        hidden, inner = arch.hidden_size, arch.intermediate_size
        self.gate_up_proj = Linear(weights, [("gate_proj", inner), ("up_proj", inner)], hidden, arch.mlp_bias)
        self.down_proj = Linear(weights, [("down_proj", hidden)], inner, arch.mlp_bias)
        self.act_and_mul = ACTIVATIONS[arch.hidden_act]

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_and_mul(self.gate_up_proj(x)))
