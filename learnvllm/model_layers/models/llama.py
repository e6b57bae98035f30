"""Llama (and what shares its shape: SmolLM2, TinyLlama): the plain decoder that the other models here vary.

RMSNorm before each sublayer, rotary positions, grouped-query attention, a SwiGLU feed-forward block.
Upstream namesake: vllm/model_executor/models/llama.py. Paper: arXiv 2302.13971.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.model_layers.attention import Attention, StepContext
from learnvllm.model_layers.embedding import Embedding, LMHead
from learnvllm.model_layers.layernorm import RMSNorm
from learnvllm.model_layers.linear import Linear, o_linear, qkv_linear
from learnvllm.model_layers.mlp import GatedMLP
from learnvllm.model_layers.model import DecoderModel
from learnvllm.model_layers.residual_stream import add_linear, is_added_to, normed_linear
from learnvllm.model_layers.rotary_embedding import cos_sin_cache
from learnvllm.model_layers.weights import Weights


class AttentionBlock(Protocol):
    """What is between an attention layer's norm and the residual stream. Qwen3 passes its own."""

    qkv_proj: Linear
    o_proj: Linear

    def attend(self, positions: Tensor, qkv: Tensor, ctx: StepContext) -> Tensor:
        """positions: [T]; qkv: [T, (Hq + 2 Hk) * D], changed -> [T, Hq * D]."""
        ...


class LlamaAttention:
    """The plain AttentionBlock."""

    def __init__(self, arch: ModelArchitecture, weights: Weights, index: int, rope: Tensor) -> None:
        self.qkv_proj = qkv_linear(arch, weights)
        self.o_proj = o_linear(arch, weights)
        self.attn = Attention(arch, index, rope)

    def attend(self, positions: Tensor, qkv: Tensor, ctx: StepContext) -> Tensor:
        return self.attn(positions, *self.attn.split(qkv), ctx)


class FeedForward(Protocol):
    """The other half of a layer: a `GatedMLP`. Qwen3-MoE passes experts."""

    def __call__(self, x: Tensor, /) -> Tensor:
        """[T, H] -> [T, H]."""
        ...

    def add_to(self, stream: Tensor, norm: RMSNorm) -> None:
        """stream += self(norm(stream))."""
        ...


class LlamaDecoderLayer:
    """Attention, then the feed-forward block, each behind a norm and added to the residual stream."""

    def __init__(
        self, arch: ModelArchitecture, weights: Weights, self_attn: AttentionBlock, mlp: FeedForward
    ) -> None:
        size, eps = arch.hidden_size, arch.rms_norm_eps
        self.input_layernorm = RMSNorm(weights, "input_layernorm", size, eps)
        self.self_attn = self_attn
        self.post_attention_layernorm = RMSNorm(weights, "post_attention_layernorm", size, eps)
        self.mlp = mlp

    def __call__(
        self, positions: Tensor, hidden: Tensor, residual: Tensor | None, ctx: StepContext
    ) -> tuple[Tensor, Tensor]:
        """hidden: what the layer before computed; residual: the stream to add it to (None: first layer)."""
        if residual is None:
            hidden, residual = self.input_layernorm(hidden), hidden
        else:
            hidden, residual = self.input_layernorm.add(hidden, residual)
        attn = self.self_attn
        hidden = attn.o_proj(attn.attend(positions, attn.qkv_proj(hidden), ctx))
        hidden, residual = self.post_attention_layernorm.add(hidden, residual)
        return self.mlp(hidden), residual

    def add_to(self, stream: Tensor, positions: Tensor, ctx: StepContext) -> None:
        """The same as a GPU does it (see residual_stream.py): stream, [T, H], becomes the next layer's."""
        attn = self.self_attn
        qkv = normed_linear(self.input_layernorm, attn.qkv_proj, stream)
        add_linear(stream, attn.o_proj, attn.attend(positions, qkv, ctx))
        self.mlp.add_to(stream, self.post_attention_layernorm)


def llama_mlp(arch: ModelArchitecture, weights: Weights, index: int) -> FeedForward:
    """The same block in every layer."""
    return GatedMLP(arch, weights)


class LlamaForCausalLM(DecoderModel):
    """Embedding, layers, final norm, head.

    Args:
        attention: makes a layer's attention of (architecture, weights, layer index, rotary table).
        mlp: makes a layer's feed-forward block of (architecture, weights, layer index).
    """

    def __init__(
        self,
        arch: ModelArchitecture,
        weights: Weights,
        attention: Callable[[ModelArchitecture, Weights, int, Tensor], AttentionBlock] = LlamaAttention,
        mlp: Callable[[ModelArchitecture, Weights, int], FeedForward] = llama_mlp,
    ) -> None:
        self.arch = arch
        self.held = weights.held
        max_positions = weights.max_positions or arch.max_position_embeddings
        rope = cos_sin_cache(arch.rope, arch.head_dim, max_positions).to(weights.device)
        self.embed_tokens = Embedding(arch, weights)
        self.layers = []
        for i in range(arch.num_layers):
            layer = weights.at(f"model.layers.{i}")
            self_attn = attention(arch, layer.at("self_attn"), i, rope)
            self.layers.append(LlamaDecoderLayer(arch, layer, self_attn, mlp(arch, layer.at("mlp"), i)))
        self.norm = RMSNorm(weights, "model.norm", arch.hidden_size, arch.rms_norm_eps)
        self.lm_head = LMHead(arch, weights)

    def forward(self, input_ids: Tensor, positions: Tensor, ctx: StepContext) -> Tensor:
        hidden, residual = self.embed_tokens(input_ids), None
        if is_added_to(hidden):
            for layer in self.layers:
                layer.add_to(hidden, positions, ctx)
            return self.norm(hidden)
        for layer in self.layers:
            hidden, residual = layer(positions, hidden, residual, ctx)
        assert residual is not None  # a model has layers
        hidden, _ = self.norm.add(hidden, residual)
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return self.lm_head(hidden)
