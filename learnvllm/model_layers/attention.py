"""The attention layer: rotate q and k, write k and v into the paged cache, attend over the cache's blocks.

It knows nothing of requests. A step's `StepContext` says where tokens are to be written and which blocks
belong to whom, and it is an argument: upstream keeps it in a context variable (vllm/forward_context.py).
Upstream namesake: vllm/model_executor/layers/attention/attention.py (Attention). Paper: arXiv 2309.06180.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.architecture.rope_config import SLIDING_ATTENTION
from learnvllm.model_layers import ops


@dataclass
class AttentionMetadata:
    """Where this step's tokens live. One object per KV cache group. R requests, T tokens."""

    query_start_loc: Tensor
    """[R+1] int32: request r owns the tokens query_start_loc[r] : query_start_loc[r+1] of the step."""
    seq_lens: Tensor
    """[R] int32: tokens of each request in the cache once this step's are written."""
    block_table: Tensor
    """[R, W] int32: block ids in the order of the tokens they hold."""
    slot_mapping: Tensor
    """[T] int64: block * block_size + offset for each token; -1: do not store it."""
    max_query_len: int | None = None
    """Upper bounds that the host knows, so that a kernel need not ask the device. None: not known."""
    max_seq_len: int | None = None


@dataclass
class StepContext:
    """All that layers need to know of a step."""

    metadata: dict[str, AttentionMetadata]
    """By layer name; layers of a group share one object."""
    kv_caches: dict[str, tuple[Tensor, Tensor]]
    """By layer name: k and v, each [num_blocks, num_kv_heads, block_size, head_dim]."""


class Attention:
    """Causal attention of layer `index`, with grouped kv heads (arXiv 2305.13245) and maybe a window."""

    def __init__(self, arch: ModelArchitecture, index: int, cos_sin_cache: Tensor) -> None:
        self.layer_name = f"layers.{index}"
        self.num_heads, self.num_kv_heads = arch.num_attention_heads, arch.num_kv_heads
        self.head_dim = arch.head_dim
        self.scale = (arch.query_pre_attn_scalar or arch.head_dim) ** -0.5
        self.cos_sin_cache = cos_sin_cache
        is_window = arch.layer_types[index] == SLIDING_ATTENTION
        self.sliding_window = arch.sliding_window if is_window else None

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Views of the fused projection. [T, (Hq + 2 Hk) * D] -> q [T, Hq, D], k [T, Hk, D], v [T, Hk, D]."""
        heads = qkv.view(qkv.shape[0], -1, self.head_dim)
        q, k, v = torch.split_with_sizes(heads, (self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=1)
        return q, k, v

    def __call__(
        self,
        positions: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        ctx: StepContext,
        qk_norm: tuple[Tensor, Tensor, float] | None = None,
    ) -> Tensor:
        """positions: [T] int64; q, k, v as `split` gives them, q and k changed in place -> [T, Hq * D].

        qk_norm: weights [D] and eps of norms over each head of q and of k, before they are rotated.
        """
        meta = ctx.metadata[self.layer_name]
        caches = k_cache, v_cache = ctx.kv_caches[self.layer_name]
        if qk_norm is None:
            ops.rope_and_cache(positions, q, k, v, self.cos_sin_cache, *caches, meta.slot_mapping)
        else:
            ops.qk_norm_rope_and_cache(
                positions, q, k, v, *qk_norm, self.cos_sin_cache, *caches, meta.slot_mapping
            )
        out = ops.paged_attention(
            q,
            k_cache,
            v_cache,
            meta.block_table,
            meta.seq_lens,
            meta.query_start_loc,
            self.scale,
            self.sliding_window,
            max_query_len=meta.max_query_len,
            max_seq_len=meta.max_seq_len,
        )
        return out.flatten(1)
