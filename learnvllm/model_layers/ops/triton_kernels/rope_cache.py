"""Everything between the qkv product and attention in one pass: norm of q and k, rotation, the cache write.

A program takes one token and a few of its heads: q's are normed and rotated where they lie, k's as well and
then also stored in the token's slot, v's only stored. Three operators would read and write q and k three
times. Upstream: csrc/fused_qknorm_rope_kernel.cu, cache_kernels.cu. Twins: the functions of the same names in
torch_ref.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from learnvllm.model_layers.ops.triton_kernels.heads import copy_heads, norm_and_rotate
from learnvllm.model_layers.ops.triton_kernels.launch import (
    power_of_two,
    start_next_kernel_early,
    starts_early,
    wait_for_inputs,
)


@triton.jit
def _rope_and_cache_kernel(  # type: ignore[no-untyped-def]
    positions_ptr, q_ptr, k_ptr, v_ptr, q_weight_ptr, k_weight_ptr, eps, table_ptr, k_cache_ptr, v_cache_ptr,
    slots_ptr, q_stride, q_head_stride, k_stride, k_head_stride, v_stride, v_head_stride, block_stride,
    cache_head_stride, Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr, HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, REST_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, NORM: tl.constexpr, ROTATE: tl.constexpr, STORE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Program (token, c): HEADS heads of q, or of k and v after the last of q."""
    start_next_kernel_early(EARLY)
    wait_for_inputs(EARLY)
    token, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, HALF_BLOCK)
    cos, sin = i[None, :], i[None, :]  # so that the names exist
    if ROTATE:
        angles_ptr = table_ptr + tl.load(positions_ptr + token) * (2 * HALF)
        cos = tl.load(angles_ptr + i, mask=i < HALF, other=0.0)[None, :]
        sin = tl.load(angles_ptr + HALF + i, mask=i < HALF, other=0.0)[None, :]
    head = tl.arange(0, HEADS)[:, None]
    q_chunks: tl.constexpr = (Q_HEADS + HEADS - 1) // HEADS if ROTATE else 0
    if chunk < q_chunks:
        head += chunk * HEADS
        q = q_ptr + token * q_stride + head * q_head_stride
        norm_and_rotate(
            q, head < Q_HEADS, q_weight_ptr, eps, cos, sin, q, head < 0,
            HEAD_DIM, HALF, HALF_BLOCK, REST_BLOCK, NORM, False,
        )  # fmt: skip
    else:
        head += (chunk - q_chunks) * HEADS
        k = k_ptr + token * k_stride + head * k_head_stride
        stored, is_stored = k, head < 0
        if STORE:
            slot = tl.load(slots_ptr + token).to(tl.int64)
            is_stored = (head < KV_HEADS) & (slot >= 0)
            place = (
                slot // BLOCK_SIZE * block_stride + head * cache_head_stride + slot % BLOCK_SIZE * HEAD_DIM
            )
            stored = k_cache_ptr + place
            v = v_ptr + token * v_stride + head * v_head_stride
            copy_heads(v, v_cache_ptr + place, is_stored, HEAD_DIM, HALF_BLOCK)
        if ROTATE:
            norm_and_rotate(
                k, head < KV_HEADS, k_weight_ptr, eps, cos, sin, stored, is_stored,
                HEAD_DIM, HALF, HALF_BLOCK, REST_BLOCK, NORM, STORE,
            )  # fmt: skip
        else:
            copy_heads(k, stored, is_stored, HEAD_DIM, HALF_BLOCK)


HEADS_PER_PROGRAM = 8


def rotary_embedding(positions: Tensor, q: Tensor, k: Tensor, cos_sin_cache: Tensor) -> None:
    """torch_ref.rotary_embedding."""
    _run(positions, q, k, k, None, None, 0.0, cos_sin_cache, None, None, None)


def reshape_and_cache(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """torch_ref.reshape_and_cache."""
    _run(None, k, k, v, None, None, 0.0, None, k_cache, v_cache, slot_mapping)


def rope_and_cache(
    positions: Tensor, q: Tensor, k: Tensor, v: Tensor, cos_sin_cache: Tensor,
    k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor,
) -> None:  # fmt: skip
    """torch_ref.rope_and_cache."""
    _run(positions, q, k, v, None, None, 0.0, cos_sin_cache, k_cache, v_cache, slot_mapping)


def qk_norm_rope_and_cache(
    positions: Tensor, q: Tensor, k: Tensor, v: Tensor, q_weight: Tensor, k_weight: Tensor, eps: float,
    cos_sin_cache: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor,
) -> None:  # fmt: skip
    """torch_ref.qk_norm_rope_and_cache."""
    _run(positions, q, k, v, q_weight, k_weight, eps, cos_sin_cache, k_cache, v_cache, slot_mapping)


def _run(
    positions: Tensor | None, q: Tensor, k: Tensor, v: Tensor, q_weight: Tensor | None,
    k_weight: Tensor | None, eps: float, table: Tensor | None, k_cache: Tensor | None,
    v_cache: Tensor | None, slots: Tensor | None,
) -> None:  # fmt: skip
    """What is None is not done: no table, no rotation; no cache, no cache write; no weights, no norm."""
    (tokens, q_heads, dim), kv_heads = q.shape, k.shape[1]
    if not tokens:
        return
    half = dim // 2 if table is None else table.shape[1] // 2
    heads = min(HEADS_PER_PROGRAM, power_of_two(max(q_heads, kv_heads)))
    early = starts_early(q.device)
    chunks = triton.cdiv(kv_heads, heads) + (0 if table is None else triton.cdiv(q_heads, heads))
    strides = (0, 0) if k_cache is None else k_cache.stride()[:2]
    _rope_and_cache_kernel[(tokens, chunks)](
        positions, q, k, v, q_weight, k_weight, eps, table, k_cache, v_cache, slots,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), *strides,
        Q_HEADS=q_heads, KV_HEADS=kv_heads, HEADS=heads, HEAD_DIM=dim, HALF=half,
        HALF_BLOCK=power_of_two(half), REST_BLOCK=power_of_two(dim - 2 * half),
        BLOCK_SIZE=1 if k_cache is None else k_cache.shape[2],
        NORM=q_weight is not None, ROTATE=table is not None, STORE=k_cache is not None, EARLY=early,
        num_warps=4, launch_pdl=early,
    )  # fmt: skip
