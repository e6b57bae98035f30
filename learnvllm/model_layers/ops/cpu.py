"""The small operators as CPU kernels: norms, activations, RoPE and the cache write, each one pass over its
data.

What torch does in several operators, each of which walks memory and wakes the threads, one kernel does while
the row is in the first-level cache: benchmarks/results/cpu_kernels.txt compares them (upstream:
csrc/cpu/layernorm.cpp, activation.cpp, pos_encoding.cpp, cache.cpp). Importing this module compiles or loads
the kernels.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from learnvllm.model_layers.ops.jit import (
    as_double,
    as_float,
    device,
    f32,
    i64,
    kernel,
    my_share,
    threads_for,
)

# Elements one thread handles in about the time it takes to wake a second one.
ELEMENTS_PER_THREAD = 8192

# ------------------------------------------------------------------------------------------------- arithmetic

_LOG2E = np.float32(math.log2(math.e))
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)  # their sum is ln 2 to 40 bits
_EXP = tuple(np.float32(1 / math.factorial(n)) for n in range(8))


@device
def exp(x):  # type: ignore[no-untyped-def]
    """e**x to 2 ulp, in a form the compiler vectorises (libm's is a call per element).

    x = n ln 2 + r with |r| <= ln 2 / 2; e**r by its Taylor series, 2**n by writing n into the exponent bits.
    """
    x = max(min(x, np.float32(88.0)), np.float32(-87.0))
    n = np.floor(x * _LOG2E + np.float32(0.5))
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    p = _EXP[7]
    p = p * r + _EXP[6]
    p = p * r + _EXP[5]
    p = p * r + _EXP[4]
    p = p * r + _EXP[3]
    p = p * r + _EXP[2]
    p = p * r + _EXP[1]
    p = p * r + _EXP[0]
    return p * as_float((np.int32(n) + np.int32(127)) << np.int32(23))


@device
def sigmoid(x):  # type: ignore[no-untyped-def]
    return np.float32(1.0) / (np.float32(1.0) + exp(-x))


# ------------------------------------------------------------------------------------------------------ norms


@kernel("qqqqqqqqd")
def _rms_norm(args):  # type: ignore[no-untyped-def]
    x, weight, out = f32(args[0]), f32(args[1]), f32(args[2])
    rows, heads, width, row_stride, head_stride = args[3], args[4], args[5], args[6], args[7]
    eps = np.float32(as_double(args[8]))
    begin, end = my_share(rows * heads)
    for i in range(begin, end):
        a = i // heads * row_stride + i % heads * head_stride
        b = i * width
        total = np.float32(0.0)
        for j in range(width):
            total += x[a + j] * x[a + j]
        scale = np.float32(1.0) / np.sqrt(total / np.float32(width) + eps)
        for j in range(width):
            out[b + j] = x[a + j] * scale * weight[j]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if x.dim() == 3:
        (rows, heads, width), (row_stride, head_stride, _) = x.shape, x.stride()
    else:
        (rows, width), (row_stride, _), heads, head_stride = x.shape, x.stride(), 1, 0
    _rms_norm(
        threads_for(rows * heads * width, ELEMENTS_PER_THREAD),
        x.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, heads, width, row_stride, head_stride, eps,
    )  # fmt: skip
    return out


@kernel("qqqqqqqd")
def _fused_add_rms_norm(args):  # type: ignore[no-untyped-def]
    x, residual, weight, out = f32(args[0]), f32(args[1]), f32(args[2]), f32(args[3])
    rows, width, row_stride = args[4], args[5], args[6]
    eps = np.float32(as_double(args[7]))
    begin, end = my_share(rows)
    for i in range(begin, end):
        a, b = i * row_stride, i * width
        total = np.float32(0.0)
        for j in range(width):
            value = residual[b + j] + x[a + j]
            residual[b + j] = value
            total += value * value
        scale = np.float32(1.0) / np.sqrt(total / np.float32(width) + eps)
        for j in range(width):
            out[b + j] = residual[b + j] * scale * weight[j]


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    rows, width = x.shape
    out = torch.empty(rows, width)
    _fused_add_rms_norm(
        threads_for(rows * width, ELEMENTS_PER_THREAD),
        x.data_ptr(), residual.data_ptr(), weight.data_ptr(), out.data_ptr(), rows, width, x.stride(0), eps,
    )  # fmt: skip
    return out, residual


# ------------------------------------------------------------------------------------------------ activations


@kernel("qqqqq")
def _silu_and_mul(args):  # type: ignore[no-untyped-def]
    x, out = f32(args[0]), f32(args[1])
    rows, width, row_stride = args[2], args[3], args[4]
    begin, end = my_share(rows * width)
    while begin < end:  # this thread's elements, a piece of a row at a time
        row = begin // width
        count = min(end, (row + 1) * width) - begin
        gate = row * row_stride + begin - row * width
        up = gate + width
        for j in range(count):
            out[begin + j] = x[gate + j] * sigmoid(x[gate + j]) * x[up + j]
        begin += count


@kernel("qqqqq")
def _gelu_tanh_and_mul(args):  # type: ignore[no-untyped-def]
    x, out = f32(args[0]), f32(args[1])
    rows, width, row_stride = args[2], args[3], args[4]
    begin, end = my_share(rows * width)
    while begin < end:
        row = begin // width
        count = min(end, (row + 1) * width) - begin
        gate = row * row_stride + begin - row * width
        up = gate + width
        for j in range(count):
            g = x[gate + j]
            # gelu(g) = g/2 (1 + tanh(u)), and (1 + tanh(u))/2 = sigmoid(2u)
            u2 = np.float32(2.0 * math.sqrt(2.0 / math.pi)) * (g + np.float32(0.044715) * g * g * g)
            out[begin + j] = g * sigmoid(u2) * x[up + j]
        begin += count


def silu_and_mul(x: Tensor) -> Tensor:
    rows, width = x.shape[0], x.shape[1] // 2
    out = torch.empty(rows, width)
    threads = threads_for(rows * width, ELEMENTS_PER_THREAD // 4)
    _silu_and_mul(threads, x.data_ptr(), out.data_ptr(), rows, width, x.stride(0))
    return out


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    rows, width = x.shape[0], x.shape[1] // 2
    out = torch.empty(rows, width)
    threads = threads_for(rows * width, ELEMENTS_PER_THREAD // 4)
    _gelu_tanh_and_mul(threads, x.data_ptr(), out.data_ptr(), rows, width, x.stride(0))
    return out


# --------------------------------------------------------------------------------------- RoPE and cache write


@device
def _rotate(x, start, cos_sin, row, half):  # type: ignore[no-untyped-def]
    """Rotate one head, x[start : start + 2*half], by the cosines and sines at cos_sin[row : row + 2*half]."""
    for j in range(half):
        c, s = cos_sin[row + j], cos_sin[row + half + j]
        x1, x2 = x[start + j], x[start + half + j]
        x[start + j] = x1 * c - x2 * s
        x[start + half + j] = x2 * c + x1 * s


@device
def _copy(source, a, target, b, count):  # type: ignore[no-untyped-def]
    for j in range(count):
        target[b + j] = source[a + j]


@kernel("q" * 21)
def _rope_and_cache(args):  # type: ignore[no-untyped-def]
    positions, q, k, v, cos_sin = i64(args[0]), f32(args[1]), f32(args[2]), f32(args[3]), f32(args[4])
    k_cache, v_cache, slots = f32(args[5]), f32(args[6]), i64(args[7])
    tokens, q_heads, k_heads, dim, rot_dim, block_size = (
        args[8],
        args[9],
        args[10],
        args[11],
        args[12],
        args[13],
    )
    q_stride, q_head, k_stride, k_head = args[14], args[15], args[16], args[17]
    v_stride, v_head, block_stride = args[18], args[19], args[20]
    begin, end = my_share(tokens)
    for t in range(begin, end):
        if rot_dim > 0:
            row = positions[t] * rot_dim
            for h in range(q_heads):
                _rotate(q, t * q_stride + h * q_head, cos_sin, row, rot_dim // 2)
            for h in range(k_heads):
                _rotate(k, t * k_stride + h * k_head, cos_sin, row, rot_dim // 2)
        if block_size > 0 and slots[t] >= 0:
            block, offset = slots[t] // block_size, slots[t] % block_size
            for h in range(k_heads):
                to = block * block_stride + (h * block_size + offset) * dim
                _copy(k, t * k_stride + h * k_head, k_cache, to, dim)
                _copy(v, t * v_stride + h * v_head, v_cache, to, dim)


def rope_and_cache(
    positions: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin_cache: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
) -> None:
    (tokens, q_heads, dim), (_, k_heads, block_size, _) = q.shape, k_cache.shape
    (q_stride, q_head, _), (k_stride, k_head, _), (v_stride, v_head, _) = q.stride(), k.stride(), v.stride()
    block_stride = k_cache.stride(0)
    _rope_and_cache(
        threads_for(tokens * (q_heads + 2 * k_heads) * dim, ELEMENTS_PER_THREAD),
        positions.data_ptr(), q.data_ptr(), k.data_ptr(), v.data_ptr(), cos_sin_cache.data_ptr(),
        k_cache.data_ptr(), v_cache.data_ptr(), slot_mapping.data_ptr(),
        tokens, q_heads, k_heads, dim, cos_sin_cache.shape[1], block_size,
        q_stride, q_head, k_stride, k_head, v_stride, v_head, block_stride,
    )  # fmt: skip


def rotary_embedding(positions: Tensor, q: Tensor, k: Tensor, cos_sin_cache: Tensor) -> None:
    """The first half of `_rope_and_cache` (block_size 0: nothing is stored)."""
    tokens, q_heads, dim = q.shape
    _rope_and_cache(
        threads_for(tokens * (q_heads + k.shape[1]) * dim, ELEMENTS_PER_THREAD),
        positions.data_ptr(), q.data_ptr(), k.data_ptr(), 0, cos_sin_cache.data_ptr(), 0, 0, 0,
        tokens, q_heads, k.shape[1], dim, cos_sin_cache.shape[1], 0,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), 0, 0, 0,
    )  # fmt: skip


def reshape_and_cache(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """The second half of `_rope_and_cache` (rot_dim 0: nothing is rotated)."""
    tokens, heads, dim = k.shape
    _rope_and_cache(
        threads_for(2 * tokens * heads * dim, ELEMENTS_PER_THREAD),
        0, 0, k.data_ptr(), v.data_ptr(), 0, k_cache.data_ptr(), v_cache.data_ptr(), slot_mapping.data_ptr(),
        tokens, 0, heads, dim, 0, k_cache.shape[2],
        0, 0, k.stride(0), k.stride(1), v.stride(0), v.stride(1), k_cache.stride(0),
    )  # fmt: skip
