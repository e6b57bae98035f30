"""Qwen3 (dense): Llama's layers with q and k normalized per head before rotation, which bounds the scores.

Heads may be wider than hidden_size / num_heads, so q_proj need not be square.
Upstream namesake: vllm/model_executor/models/qwen3.py. Papers: arXiv 2505.09388; QK-norm: arXiv 2010.04245.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from learnvllm.architecture.model_arch import SLIDING_ATTENTION, ModelArchitecture
from learnvllm.model_layers.attention import Attention, StepContext
from learnvllm.model_layers.layernorm import RMSNorm
from learnvllm.model_layers.linear import Linear
from learnvllm.model_layers.models.llama import LlamaForCausalLM
from learnvllm.model_layers.weights import Weights


class Qwen3Attention:
    """[T, hidden] -> [T, hidden]."""

    def __init__(self, arch: ModelArchitecture, weights: Weights, index: int, rope: Tensor) -> None:
        q_size, kv_size = arch.num_attention_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
        self.qkv_proj = Linear(
            weights,
            [("q_proj", q_size), ("k_proj", kv_size), ("v_proj", kv_size)],
            arch.hidden_size,
            arch.attention_bias,
        )
        self.q_norm = RMSNorm(weights, "q_norm", arch.head_dim, arch.rms_norm_eps)
        self.k_norm = RMSNorm(weights, "k_norm", arch.head_dim, arch.rms_norm_eps)
        self.o_proj = Linear(weights, [("o_proj", arch.hidden_size)], q_size, arch.attention_out_bias)
        self.attn = Attention(
            f"layers.{index}",
            arch.num_attention_heads,
            arch.num_kv_heads,
            arch.head_dim,
            scale=arch.head_dim**-0.5,
            cos_sin_cache=rope,
            sliding_window=arch.sliding_window if arch.layer_types[index] == SLIDING_ATTENTION else None,
        )

    def __call__(self, positions: Tensor, hidden: Tensor, ctx: StepContext) -> Tensor:
        q, k, v = self.attn.split(self.qkv_proj(hidden))
        return self.o_proj(self.attn(positions, self.q_norm(q), self.k_norm(k), v, ctx))


Qwen3ForCausalLM = partial(LlamaForCausalLM, attention=Qwen3Attention)
"""Everything else is Llama's: embedding, layers, final norm, head."""
