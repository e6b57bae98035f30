"""The gated feed-forward block: down(act(gate(x)) * up(x)), gate and up stacked into one product.

SwiGLU where act is silu, GeGLU where it is gelu. Upstream namesake: LlamaMLP in
vllm/model_executor/models/llama.py. Paper: arXiv 2002.05202.
"""

from __future__ import annotations

from torch import Tensor

from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.model_layers.layernorm import RMSNorm
from learnvllm.model_layers.linear import Linear
from learnvllm.model_layers.residual_stream import GATED, Activation, add_linear, normed_linear
from learnvllm.model_layers.weights import Weights

ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


class GatedMLP:
    """[T, hidden] -> [T, hidden] by way of 2 x [T, intermediate]."""

    def __init__(self, arch: ModelArchitecture, weights: Weights) -> None:
        hidden, inner = arch.hidden_size, arch.intermediate_size
        self.gate_up_proj = Linear(weights, [("gate_proj", inner), ("up_proj", inner)], hidden, arch.mlp_bias)
        self.down_proj = Linear(weights, [("down_proj", hidden)], inner, arch.mlp_bias)
        self.activation = ACTIVATIONS[arch.hidden_act]
        self.act_and_mul = GATED[self.activation]

    def __call__(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_and_mul(self.gate_up_proj(x)))

    def add_to(self, stream: Tensor, norm: RMSNorm) -> None:
        """stream += self(norm(stream)), as a GPU does it (see residual_stream.py)."""
        add_linear(stream, self.down_proj, normed_linear(norm, self.gate_up_proj, stream, self.activation))
