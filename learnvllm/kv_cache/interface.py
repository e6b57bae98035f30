"""What a layer needs of the KV cache, and how layers are grouped to share one pool of blocks.

A spec says how many bytes a block of one layer takes and which blocks it must keep. Layers with the same
spec form a group; every group has its own block table and all draw block ids from the same pool.
Upstream namesake: vllm/v1/kv_cache_interface.py.
"""

from __future__ import annotations

from dataclasses import dataclass

_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class KVCacheSpec:
    """One layer's needs. `page_size_bytes` is the size of one block of this one layer."""

    block_size: int
    """Tokens in a block."""

    @property
    def page_size_bytes(self) -> int:
        raise NotImplementedError

    def max_blocks(self, num_tokens: int) -> int:
        """Most blocks a request of `num_tokens` can hold at once."""
        raise NotImplementedError


@dataclass(frozen=True)
class AttentionSpec(KVCacheSpec):
    num_kv_heads: int
    head_dim: int
    dtype: str
    """float32, float16 or bfloat16."""

    @property
    def page_size_bytes(self) -> int:
        return 2 * self.block_size * self.num_kv_heads * self.head_dim * _DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class FullAttentionSpec(AttentionSpec):
    """Every token attends to all before it: all blocks are kept."""

    def max_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


@dataclass(frozen=True)
class SlidingWindowSpec(AttentionSpec):
    """A token attends to the last `sliding_window` tokens, itself included: older blocks are given back."""

    sliding_window: int

    def max_blocks(self, num_tokens: int) -> int:
        """An upper bound once outdated blocks are freed; a prompt is refused on the full-attention bound only."""
        return -(-num_tokens // self.block_size)


@dataclass(frozen=True)
class KVCacheGroupSpec:
    """Layers that share a block table."""

    layer_names: tuple[str, ...]
    spec: KVCacheSpec


@dataclass(frozen=True)
class KVCacheTensor:
    """One allocation of num_blocks pages, used by one layer of each group (their block ids never overlap).

    Shape on the device: two tensors (k, v) of [num_blocks, num_kv_heads, block_size, head_dim].
    """

    shared_by: tuple[str, ...]
    """Layer names, at most one per group."""


@dataclass(frozen=True)
class KVCacheConfig:
    """The plan the engine core makes once and every worker allocates."""

    num_blocks: int
    """Blocks in the pool, block 0 (the null block) included."""
    block_size: int
    groups: tuple[KVCacheGroupSpec, ...]
    tensors: tuple[KVCacheTensor, ...]
