"""What a layer needs of the KV cache, and how layers are grouped to share one pool of blocks.

A spec says how many bytes a block of one layer takes and which blocks it must keep. Layers with the same
spec form a group; every group has its own block table and all draw block ids from the same pool.
Upstream namesake: vllm/v1/kv_cache_interface.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from learnvllm.architecture.math_utils import cdiv

_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class KVCacheSpec(ABC):
    """One layer's needs. `page_size_bytes` is the size of one block of this one layer."""

    block_size: int
    """Tokens in a block."""

    @property
    @abstractmethod
    def page_size_bytes(self) -> int: ...

    @abstractmethod
    def max_blocks(self, num_tokens: int, max_step_tokens: int | None = None) -> int:
        """Most blocks a request of `num_tokens` can hold at once.

        Args:
            num_tokens: tokens with KV.
            max_step_tokens: most tokens one step computes; None: no limit, as if all came in one step.
        """


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

    def max_blocks(self, num_tokens: int, max_step_tokens: int | None = None) -> int:
        return cdiv(num_tokens, self.block_size)


@dataclass(frozen=True)
class SlidingWindowSpec(AttentionSpec):
    """A token attends to the last `sliding_window` tokens, itself included: older blocks are given back."""

    sliding_window: int

    def __post_init__(self) -> None:
        if self.sliding_window < 1:
            raise ValueError(f"sliding_window={self.sliding_window}: must be at least 1, the token itself")

    def max_blocks(self, num_tokens: int, max_step_tokens: int | None = None) -> int:
        """A step of n tokens reads the window - 1 before it too, wherever in a block they begin."""
        if max_step_tokens is None or num_tokens <= 0:
            return cdiv(num_tokens, self.block_size)
        span = min(self.sliding_window - 1 + max_step_tokens, num_tokens)
        # The span need not begin at a block boundary: its first token may be the last of a block.
        return min(cdiv(num_tokens, self.block_size), cdiv(span - 1, self.block_size) + 1)


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

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that can hold KV: all but the null block."""
        return self.num_blocks - 1

    def max_blocks(self, num_tokens: int, max_step_tokens: int | None = None) -> int:
        """Most blocks, over all groups, that one request of `num_tokens` can hold at once."""
        return sum(group.spec.max_blocks(num_tokens, max_step_tokens) for group in self.groups)

    def max_tokens_that_fit(self, max_step_tokens: int | None = None, at_most: int = 1 << 24) -> int:
        """Tokens of the longest request, up to `at_most`, that fits when it has the pool to itself."""
        low, high = 0, at_most
        while low < high:
            middle = (low + high + 1) // 2
            if self.max_blocks(middle, max_step_tokens) <= self.num_usable_blocks:
                low = middle
            else:
                high = middle - 1
        return low
