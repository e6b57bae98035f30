"""Qwen2 and Qwen2.5: Llama's layers with a bias on q, k and v, and maybe a sliding window in the upper ones.

Upstream namesake: vllm/model_executor/models/qwen2.py. Paper: arXiv 2407.10671.
"""

from __future__ import annotations

from torch import Tensor

from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.model_layers.attention import StepContext
from learnvllm.model_layers.embedding import Embedding, LMHead
from learnvllm.model_layers.layernorm import RMSNorm
from learnvllm.model_layers.model import DecoderModel
from learnvllm.model_layers.models.llama import LlamaDecoderLayer
from learnvllm.model_layers.rotary_embedding import cos_sin_cache
from learnvllm.model_layers.weights import Weights


class Qwen2ForCausalLM(DecoderModel):
    """The architecture says attention_bias=True, attention_out_bias=False: else it is Llama."""

    def __init__(self, arch: ModelArchitecture, weights: Weights) -> None:
        self.arch = arch
        self.held = weights.held
        rope = cos_sin_cache(arch.rope, arch.head_dim, weights.max_positions or arch.max_position_embeddings)
        self.embed_tokens = Embedding(arch, weights)
        self.layers = [
            LlamaDecoderLayer(arch, weights.at(f"model.layers.{i}"), i, rope) for i in range(arch.num_layers)
        ]
        self.norm = RMSNorm(weights, "model.norm", arch.hidden_size, arch.rms_norm_eps)
        self.lm_head = LMHead(arch, weights)

    def forward(self, input_ids: Tensor, positions: Tensor, ctx: StepContext) -> Tensor:
        hidden, residual = self.embed_tokens(input_ids), None
        for layer in self.layers:
            hidden, residual = layer(positions, hidden, residual, ctx)
        assert residual is not None  # a model has layers
        hidden, _ = self.norm.add(hidden, residual)
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)
