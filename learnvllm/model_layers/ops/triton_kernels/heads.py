"""What `rope_cache.py` does to a token's heads: norm and rotate some where they lie, copy some to the cache.

A tile is [heads, elements]: x_ptr is a column of pointers, one to each head's first element.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def norm_and_rotate(  # type: ignore[no-untyped-def]
    x_ptr, is_head, weight_ptr, eps, cos, sin, stored_ptr, is_stored,
    HEAD_DIM: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, REST_BLOCK: tl.constexpr,
    NORM: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """Heads at x_ptr [heads, 1], in place; a copy to stored_ptr. Element i < HALF pairs with i + HALF."""
    i, rest = tl.arange(0, HALF_BLOCK)[None, :], 2 * HALF + tl.arange(0, REST_BLOCK)[None, :]
    in_half, in_rest = is_head & (i < HALF), is_head & (rest < HEAD_DIM)  # rest: what is not rotated
    x1 = tl.load(x_ptr + i, mask=in_half, other=0.0).to(tl.float32)
    x2 = tl.load(x_ptr + HALF + i, mask=in_half, other=0.0).to(tl.float32)
    x3 = tl.load(x_ptr + rest, mask=in_rest, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(x1 * x1 + x2 * x2, axis=1) + tl.sum(x3 * x3, axis=1)
        scale = tl.rsqrt(squares / HEAD_DIM + eps)[:, None]
        x1 *= scale * tl.load(weight_ptr + i, mask=i < HALF, other=0.0).to(tl.float32)
        x2 *= scale * tl.load(weight_ptr + HALF + i, mask=i < HALF, other=0.0).to(tl.float32)
        x3 *= scale * tl.load(weight_ptr + rest, mask=rest < HEAD_DIM, other=0.0).to(tl.float32)
    dtype = x_ptr.dtype.element_ty
    y1, y2, y3 = (x1 * cos - x2 * sin).to(dtype), (x2 * cos + x1 * sin).to(dtype), x3.to(dtype)
    tl.store(x_ptr + i, y1, mask=in_half)
    tl.store(x_ptr + HALF + i, y2, mask=in_half)
    tl.store(x_ptr + rest, y3, mask=in_rest)
    if STORE:
        tl.store(stored_ptr + i, y1, mask=in_half & is_stored)
        tl.store(stored_ptr + HALF + i, y2, mask=in_half & is_stored)
        tl.store(stored_ptr + rest, y3, mask=in_rest & is_stored)


@triton.jit
def copy_heads(from_ptr, to_ptr, is_stored, HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Heads at from_ptr [heads, 1] to to_ptr."""
    for first in tl.static_range(0, HEAD_DIM, BLOCK):
        i = first + tl.arange(0, BLOCK)[None, :]
        inside = is_stored & (i < HEAD_DIM)
        tl.store(to_ptr + i, tl.load(from_ptr + i, mask=inside), mask=inside)
