"""Sampling from logits as CPU kernels: a few passes over each row instead of a sort of the vocabulary.

Every filter is a threshold on a token's weight, and a threshold is found by radix selection: floats above 0
order like their bits, so a histogram over the leading bits finds the bin it is in, and only that bin is
looked at more closely. Upstream does the like on a GPU in vllm/v1/sample/ops/topk_topp_triton.py.
`torch_ref.py` says what is computed. Importing this module compiles or loads the kernels.
"""

from __future__ import annotations

import numpy as np

from learnvllm.executor_worker.sample.gumbel import GAMMA, MIX_1, MIX_2
from learnvllm.model_layers.ops.cpu import exp
from learnvllm.model_layers.ops.jit import (
    as_float,
    device,
    f32,
    i32,
    i64,
    kernel,
    my_share,
    thread_num,
    threads_for,
)

# ------------------------------------------------------------------------------------------------------ noise

_GAMMA, _MIX_1, _MIX_2 = (np.uint64(c & (1 << 64) - 1) for c in (GAMMA, MIX_1, MIX_2))
_11, _27, _30, _31 = (np.uint64(n) for n in (11, 27, 30, 31))


@device
def mix64(x):  # type: ignore[no-untyped-def]
    """gumbel.mix64, on uint64."""
    x = (x ^ (x >> _30)) * _MIX_1
    x = (x ^ (x >> _27)) * _MIX_2
    return x ^ (x >> _31)


@device
def race(weights, bits, vocab, threshold, ties, seed, position):  # type: ignore[no-untyped-def]
    """argmin of E / weight over the tokens at or above the threshold: gumbel.gumbel_argmax in its other form.

    E = -log(1 - u) is at least u, so where even u / weight would not win no logarithm is taken: all but a
    few. Of the tokens at the threshold itself, the first `ties` take part.
    """
    key = mix64(mix64(np.uint64(seed)) + np.uint64(position))
    best, winner = np.inf, np.int64(0)
    for j in range(vocab):
        if bits[j] < threshold:
            continue
        if bits[j] == threshold:
            ties -= 1
            if ties < 0:
                continue
        u = np.float64(mix64(key + np.uint64(j + 1) * _GAMMA) >> _11) * 2.0**-53
        weight = np.float64(weights[j])
        if u < best * weight:
            time = -np.log1p(-u) / weight
            if time < best:
                best, winner = time, np.int64(j)
    return winner


# ------------------------------------------------------------------------------------------------- thresholds

BINS = 1024
# Masses are summed in whole units of 2**-40 of the largest weight: exact, so the same in any order.
_UNIT = 2.0**40


@device
def select(bits, weights, vocab, low, target, by_mass, histogram):  # type: ignore[no-untyped-def]
    """The largest threshold at or above which tokens reach `target`, in number or in mass.

    Three rounds over ten bits each. Tokens below `low` do not take part.

    Returns: (threshold, what is missing of target above it); (low, 0) if all tokens together fall short.
    """
    prefix = np.int32(0)
    for shift in (20, 10, 0):
        for b in range(BINS):
            histogram[b] = 0
        for j in range(vocab):
            bit = bits[j]
            if bit >= low and bit >> np.int32(shift + 10) == prefix:
                histogram[(bit >> np.int32(shift)) & (BINS - 1)] += (
                    np.int64(weights[j] * _UNIT) if by_mass else 1
                )
        b = BINS - 1
        while b >= 0 and histogram[b] < target:
            target -= histogram[b]
            b -= 1
        if b < 0:
            return low, np.int64(0)
        prefix = np.int32((prefix << np.int32(10)) | np.int32(b))
    return prefix, target


# ------------------------------------------------------------------------------------------------------- rows

_INF_KEY, _MINUS_INF_KEY = np.int32(0x7F800000), np.int32(-0x7F800001)


@device
def ordered(bits):  # type: ignore[no-untyped-def]
    """Bits of a float32 <-> an int32 that orders like the float. NaNs lie beyond the infinities."""
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@device
def special_case(keys, vocab):  # type: ignore[no-untyped-def]
    """(key of the largest logit, None of the special cases: -2, else the row's answer)."""
    largest, smallest = np.int32(-0x80000000), np.int32(0x7FFFFFFF)
    for j in range(vocab):  # integers, because a maximum of floats does not become vector code
        key = ordered(keys[j])
        largest = max(largest, key)
        smallest = min(smallest, key)
    if largest > _INF_KEY or smallest < _MINUS_INF_KEY:
        return largest, np.int64(-1)
    if largest == _MINUS_INF_KEY:
        return largest, np.int64(0)
    if largest == _INF_KEY:
        for j in range(vocab):
            if keys[j] == _INF_KEY:
                return largest, np.int64(j)
    return largest, np.int64(-2)


@device
def draw(x, keys, vocab, temperature, top_k, top_p, min_p, seed, position, weights, bits, histogram):  # type: ignore[no-untyped-def]
    """torch_ref.sample for one row. x and keys are the same memory, and so are weights and bits: [vocab]
    each."""
    largest, answer = special_case(keys, vocab)
    if answer != -2:
        return answer
    highest, scale = as_float(ordered(largest)), np.float32(1.0) / temperature
    for j in range(vocab):
        d = (x[j] - highest) * scale
        weights[j] = exp(d) if d > np.float32(-87.0) else np.float32(0.0)
    low, ties = np.int32(1), vocab  # bits of the smallest float above 0: weight 0 never takes part
    if min_p > np.float32(0.0):
        weights[vocab] = min_p
        low = bits[vocab]
    if 0 < top_k < vocab:
        low, _ = select(bits, weights, vocab, low, np.int64(top_k), False, histogram)
    if top_p < np.float32(1.0):
        mass = np.int64(0)
        for j in range(vocab):
            mass += np.int64(weights[j] * _UNIT) if bits[j] >= low else 0
        target = max(np.int64(1), np.int64(np.float64(mass) * np.float64(top_p)))
        low, missing = select(bits, weights, vocab, low, target, True, histogram)
        unit = np.int64(np.float64(as_float(low)) * _UNIT)
        ties = -(-missing // unit) if unit > 0 else vocab
    return race(weights, bits, vocab, low, ties, seed, position)


@kernel("q" * 14)
def _sample(args):  # type: ignore[no-untyped-def]
    logits, indices, count, vocab = args[0], i64(args[1]), args[2], args[3]
    temperature, top_k, top_p, min_p = f32(args[4]), i32(args[5]), f32(args[6]), f32(args[7])
    seeds, positions, out = i64(args[8]), i64(args[9]), i64(args[10])
    scratch = args[11] + np.int64(thread_num()) * args[13]
    histogram = i64(args[12] + np.int64(thread_num()) * BINS * 8)
    begin, end = my_share(count)
    for i in range(begin, end):
        row = logits + indices[i] * vocab * 4
        out[i] = draw(
            f32(row),
            i32(row),
            vocab,
            temperature[i],
            top_k[i],
            top_p[i],
            min_p[i],
            seeds[i],
            positions[i],
            f32(scratch),
            i32(scratch),
            histogram,
        )


def sample(
    logits: np.ndarray,
    indices: np.ndarray,
    temperature: np.ndarray,
    top_k: np.ndarray,
    top_p: np.ndarray,
    min_p: np.ndarray,
    seeds: np.ndarray,
    positions: np.ndarray,
) -> np.ndarray:
    """torch_ref.sample for the rows `indices` of logits; their order and number do not change what each
    draws.

    logits: [S, V] float32, contiguous; indices: [n] int64; temperature, top_p, min_p: [n] float32; top_k: [n]
    int32; seeds, positions: [n] int64 -> [n] int64.
    """
    count, vocab = len(indices), logits.shape[1]
    threads = max(1, threads_for(count - 1, 1))
    stride = (vocab + 1) * 4
    weights = np.empty((threads, vocab + 1), dtype=np.float32)
    histograms = np.empty((threads, BINS), dtype=np.int64)
    out = np.empty(count, dtype=np.int64)
    _sample(
        threads,
        address(logits, np.float32, logits.size),
        address(indices, np.int64, count),
        count,
        vocab,
        address(temperature, np.float32, count),
        address(top_k, np.int32, count),
        address(top_p, np.float32, count),
        address(min_p, np.float32, count),
        address(seeds, np.int64, count),
        address(positions, np.int64, count),
        out.ctypes.data,
        weights.ctypes.data,
        histograms.ctypes.data,
        stride,
    )
    return out


def address(array: np.ndarray, dtype: type[np.generic], size: int) -> int:
    """Where the array's data lies. A kernel takes that on trust, so what it trusts in is checked here."""
    if array.dtype != dtype or array.size != size or not array.flags.c_contiguous:
        raise TypeError(
            f"Expected a contiguous array of {size} {dtype.__name__}, got {array.size} {array.dtype} "
            f"(contiguous: {array.flags.c_contiguous})."
        )
    return array.ctypes.data
