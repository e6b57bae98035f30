"""One tile of paged attention: three query rows, up to 64 keys: scores, softmax, weighted sum of values.

These are the inner loops of `cpu_attention.py`. Three rows share each key and value that is loaded, and the
keys to come are fetched ahead: blocks lie anywhere, so the CPU cannot guess which one is next.
Upstream: csrc/cpu/cpu_attn_impl.hpp.
"""

from __future__ import annotations

import numpy as np

from learnvllm.model_layers.ops.cpu import exp
from learnvllm.model_layers.ops.jit import device, prefetch

# Keys between two updates of the running softmax. 64 keys and 64 values of 64 floats fill the L1 cache.
TILE = 64
# Query rows computed together: 3 rows x 4 keys are 12 sums; with their operands they fill 16 registers.
ROWS = 3

LOWEST = np.float32(-3.4e38)
ZERO = np.float32(0.0)

# In all that follows s is this thread's scratch memory, and other arguments are offsets into it.


@device
def _fetch(x, p0, p1, p2, p3, dim):  # type: ignore[no-untyped-def]
    """Ask for four keys (or values) ahead of their use."""
    for d in range(0, dim, 16):
        prefetch(x, p0 + d)
        prefetch(x, p1 + d)
        prefetch(x, p2 + d)
        prefetch(x, p3 + d)


@device
def _four(places, j, count):  # type: ignore[no-untyped-def]
    """The places of keys j to j + 3. The last key stands in for those beyond it, whose weights are zero."""
    last = count - 1
    return places[j], places[min(j + 1, last)], places[min(j + 2, last)], places[min(j + 3, last)]


@device
def dot_products(s, q, k, places, count, dim, to, v, fetch):  # type: ignore[no-untyped-def]
    """s[to + TILE * i + j] = query row i . key j, of the three rows at s[q] and `count` keys at `places`."""
    for j in range(0, count, 4):
        p0, p1, p2, p3 = _four(places, j, count)
        if fetch:
            _fetch(v, p0, p1, p2, p3, dim)
        s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = s20 = s21 = s22 = s23 = ZERO
        for d in range(dim):
            q0, q1, q2 = s[q + d], s[q + dim + d], s[q + 2 * dim + d]
            k0, k1, k2, k3 = k[p0 + d], k[p1 + d], k[p2 + d], k[p3 + d]
            s00 += q0 * k0
            s01 += q0 * k1
            s02 += q0 * k2
            s03 += q0 * k3
            s10 += q1 * k0
            s11 += q1 * k1
            s12 += q1 * k2
            s13 += q1 * k3
            s20 += q2 * k0
            s21 += q2 * k1
            s22 += q2 * k2
            s23 += q2 * k3
        o = to + j
        s[o], s[o + 1], s[o + 2], s[o + 3] = s00, s01, s02, s03
        o += TILE
        s[o], s[o + 1], s[o + 2], s[o + 3] = s10, s11, s12, s13
        o += TILE
        s[o], s[o + 1], s[o + 2], s[o + 3] = s20, s21, s22, s23


@device
def softmax(s, at, count, low, high, stats, acc, dim):  # type: ignore[no-untyped-def]
    """Scores s[at : at + count] become weights, zero outside [low, high); s[stats]: maximum and sum so far.

    When the maximum grows, what was added up under the old one shrinks.
    """
    top = s[stats]
    for j in range(low, high):
        top = max(top, s[at + j])
    shrink = exp(s[stats] - top)
    total = ZERO
    for j in range(low, high):
        p = exp(s[at + j] - top)
        s[at + j] = p
        total += p
    for j in range(low):
        s[at + j] = ZERO
    for j in range(high, (count + 3) // 4 * 4):
        s[at + j] = ZERO
    if shrink < np.float32(1.0):
        for d in range(dim):
            s[acc + d] *= shrink
    s[stats], s[stats + 1] = top, s[stats + 1] * shrink + total


@device
def add_values(s, p, v, places, count, dim, acc, k, next_places, next_count):  # type: ignore[no-untyped-def]
    """s[acc + dim * i + d] += sum over j of s[p + TILE * i + j] * value j[d]; the next tile's keys are
    fetched.
    """
    for j in range(0, count, 4):
        p0, p1, p2, p3 = _four(places, j, count)
        if j < next_count:
            n0, n1, n2, n3 = _four(next_places, j, next_count)
            _fetch(k, n0, n1, n2, n3, dim)
        o = p + j
        p00, p01, p02, p03 = s[o], s[o + 1], s[o + 2], s[o + 3]
        o += TILE
        p10, p11, p12, p13 = s[o], s[o + 1], s[o + 2], s[o + 3]
        o += TILE
        p20, p21, p22, p23 = s[o], s[o + 1], s[o + 2], s[o + 3]
        for d in range(dim):
            v0, v1, v2, v3 = v[p0 + d], v[p1 + d], v[p2 + d], v[p3 + d]
            s[acc + d] += p00 * v0 + p01 * v1 + p02 * v2 + p03 * v3
            s[acc + dim + d] += p10 * v0 + p11 * v1 + p12 * v2 + p13 * v3
            s[acc + 2 * dim + d] += p20 * v0 + p21 * v1 + p22 * v2 + p23 * v3
