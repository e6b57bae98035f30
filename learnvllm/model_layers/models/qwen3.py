"""Qwen3 (dense): Llama's layers with q and k normalized per head before rotation, which bounds the scores.

Heads may be wider than hidden_size / num_heads, so q_proj need not be square.
Upstream namesake: vllm/model_executor/models/qwen3.py. Papers: arXiv 2505.09388; QK-norm: arXiv 2010.04245.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.model_layers.attention import Attention, StepContext
from learnvllm.model_layers.layernorm import RMSNorm
from learnvllm.model_layers.linear import o_linear, qkv_linear
from learnvllm.model_layers.models.llama import LlamaForCausalLM
from learnvllm.model_layers.weights import Weights


class Qwen3Attention:
    """An AttentionBlock whose q and k are normed."""

    def __init__(self, arch: ModelArchitecture, weights: Weights, index: int, rope: Tensor) -> None:
        self.qkv_proj = qkv_linear(arch, weights)
        self.q_norm = RMSNorm(weights, "q_norm", arch.head_dim, arch.rms_norm_eps)
        self.k_norm = RMSNorm(weights, "k_norm", arch.head_dim, arch.rms_norm_eps)
        self.o_proj = o_linear(arch, weights)
        self.attn = Attention(arch, index, rope)

    def attend(self, positions: Tensor, qkv: Tensor, ctx: StepContext) -> Tensor:
        norms = (self.q_norm.weight, self.k_norm.weight, self.q_norm.eps)
        return self.attn(positions, *self.attn.split(qkv), ctx, norms)


Qwen3ForCausalLM = partial(LlamaForCausalLM, attention=Qwen3Attention)
"""Everything else is Llama's: embedding, layers, final norm, head."""
