"""Qwen3-MoE: Qwen3 whose feed-forward blocks are experts, in all layers or in some of them.

Upstream namesake: vllm/model_executor/models/qwen3_moe.py. Paper: arXiv 2505.09388.
"""

from __future__ import annotations

from functools import partial

from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.model_layers.fused_moe.runner import make_moe
from learnvllm.model_layers.mlp import GatedMLP
from learnvllm.model_layers.models.llama import FeedForward, LlamaForCausalLM
from learnvllm.model_layers.models.qwen3 import Qwen3Attention
from learnvllm.model_layers.weights import Weights


def qwen3_moe_mlp(arch: ModelArchitecture, weights: Weights, index: int) -> FeedForward:
    """Experts in the layers that the architecture calls sparse, else one block of intermediate_size."""
    if arch.moe is not None and index in arch.moe.sparse_layers:
        return make_moe(arch, arch.moe, weights)
    return GatedMLP(arch, weights)


Qwen3MoeForCausalLM = partial(LlamaForCausalLM, attention=Qwen3Attention, mlp=qwen3_moe_mlp)
"""Everything else is Llama's: embedding, layers, final norm, head."""
