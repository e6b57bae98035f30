"""The operators as Triton kernels, for tensors on a GPU: each function is `torch_ref`'s of the same name.

A kernel is a program that runs many times side by side, each time on its own tile of the data; what one would
do in several torch operators, each of which walks the GPU's memory, one program does while the tile is in
registers. Begin with `norm.py`. With TRITON_INTERPRET=1 in the environment before triton is first imported
they run on the CPU, slowly, which is how tests run them. Upstream: vllm/v1/attention/ops/ and csrc/.
"""

from learnvllm.model_layers.ops.triton_kernels.activation import gelu_tanh_and_mul, silu_and_mul
from learnvllm.model_layers.ops.triton_kernels.attention_launch import paged_attention
from learnvllm.model_layers.ops.triton_kernels.norm import fused_add_rms_norm, rms_norm
from learnvllm.model_layers.ops.triton_kernels.rope_cache import (
    qk_norm_rope_and_cache,
    reshape_and_cache,
    rope_and_cache,
    rotary_embedding,
)
from learnvllm.model_layers.ops.triton_kernels.single_row import linear_row

__all__ = [
    "fused_add_rms_norm",
    "gelu_tanh_and_mul",
    "linear_row",
    "paged_attention",
    "qk_norm_rope_and_cache",
    "reshape_and_cache",
    "rms_norm",
    "rope_and_cache",
    "rotary_embedding",
    "silu_and_mul",
]
