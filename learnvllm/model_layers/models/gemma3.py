"""Gemma 3 (text): most layers see a sliding window, some see everything, and each sublayer is normed twice.

Window layers and global layers rotate with different base frequencies, q and k are normalized per head, the
embedding is scaled by sqrt(hidden), and every norm multiplies by 1 + weight (added once, at loading).
Upstream namesake: vllm/model_executor/models/gemma3.py. Paper: arXiv 2503.19786.
"""

from __future__ import annotations

from torch import Tensor

from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.architecture.rope_config import SLIDING_ATTENTION
from learnvllm.model_layers.attention import Attention, StepContext
from learnvllm.model_layers.embedding import Embedding, LMHead
from learnvllm.model_layers.layernorm import RMSNorm
from learnvllm.model_layers.linear import o_linear, qkv_linear
from learnvllm.model_layers.mlp import GatedMLP
from learnvllm.model_layers.model import DecoderModel
from learnvllm.model_layers.rotary_embedding import cos_sin_cache
from learnvllm.model_layers.weights import Weights


def gemma_norm(weights: Weights, name: str, size: int, eps: float) -> RMSNorm:
    """Gemma's checkpoints store the norm's weight minus one."""
    return RMSNorm(weights, name, size, eps, offset=1.0)


class Gemma3Attention:
    """[T, hidden] -> [T, hidden]; over a window or over everything, as the layer's type says."""

    def __init__(self, arch: ModelArchitecture, weights: Weights, index: int, rope: Tensor) -> None:
        self.qkv_proj = qkv_linear(arch, weights)
        self.q_norm = gemma_norm(weights, "q_norm", arch.head_dim, arch.rms_norm_eps)
        self.k_norm = gemma_norm(weights, "k_norm", arch.head_dim, arch.rms_norm_eps)
        self.o_proj = o_linear(arch, weights)
        self.attn = Attention(arch, index, rope)

    def __call__(self, positions: Tensor, hidden: Tensor, ctx: StepContext) -> Tensor:
        q, k, v = self.attn.split(self.qkv_proj(hidden))
        return self.o_proj(self.attn(positions, self.q_norm(q), self.k_norm(k), v, ctx))


class Gemma3DecoderLayer:
    """A norm before each sublayer and one after it, before its result joins the residual stream."""

    def __init__(self, arch: ModelArchitecture, weights: Weights, index: int, rope: Tensor) -> None:
        size, eps = arch.hidden_size, arch.rms_norm_eps
        self.input_layernorm = gemma_norm(weights, "input_layernorm", size, eps)
        self.self_attn = Gemma3Attention(arch, weights.at("self_attn"), index, rope)
        self.post_attention_layernorm = gemma_norm(weights, "post_attention_layernorm", size, eps)
        self.pre_feedforward_layernorm = gemma_norm(weights, "pre_feedforward_layernorm", size, eps)
        self.mlp = GatedMLP(arch, weights.at("mlp"))
        self.post_feedforward_layernorm = gemma_norm(weights, "post_feedforward_layernorm", size, eps)

    def __call__(
        self, positions: Tensor, hidden: Tensor, residual: Tensor | None, ctx: StepContext
    ) -> tuple[Tensor, Tensor]:
        """hidden: what the layer before computed; residual: the stream to add it to (None: first layer)."""
        if residual is None:
            hidden, residual = self.input_layernorm(hidden), hidden
        else:
            hidden, residual = self.input_layernorm.add(hidden, residual)
        hidden = self.post_attention_layernorm(self.self_attn(positions, hidden, ctx))
        hidden, residual = self.pre_feedforward_layernorm.add(hidden, residual)
        return self.post_feedforward_layernorm(self.mlp(hidden)), residual


class Gemma3ForCausalLM(DecoderModel):
    """Scaled embedding, layers of two kinds, final norm, tied head."""

    def __init__(self, arch: ModelArchitecture, weights: Weights) -> None:
        self.arch = arch
        self.held = weights.held
        max_positions = weights.max_positions or arch.max_position_embeddings
        global_rope = cos_sin_cache(arch.rope, arch.head_dim, max_positions).to(weights.device)
        local = arch.rope_local or arch.rope
        local_rope = cos_sin_cache(local, arch.head_dim, max_positions).to(weights.device)
        self.embed_tokens = Embedding(arch, weights)
        self.embed_scale = arch.hidden_size**0.5
        self.layers = [
            Gemma3DecoderLayer(
                arch,
                weights.at(f"model.layers.{i}"),
                i,
                local_rope if layer_type == SLIDING_ATTENTION else global_rope,
            )
            for i, layer_type in enumerate(arch.layer_types)
        ]
        self.norm = gemma_norm(weights, "model.norm", arch.hidden_size, arch.rms_norm_eps)
        self.lm_head = LMHead(arch, weights)

    def forward(self, input_ids: Tensor, positions: Tensor, ctx: StepContext) -> Tensor:
        hidden, residual = self.embed_tokens(input_ids) * self.embed_scale, None
        for layer in self.layers:
            hidden, residual = layer(positions, hidden, residual, ctx)
        assert residual is not None  # a model has layers
        hidden, _ = self.norm.add(hidden, residual)
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)
