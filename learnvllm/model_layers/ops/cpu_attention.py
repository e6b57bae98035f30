"""Paged attention on a CPU: blocks are read where they lie, never gathered.

A decode reads its whole context once and computes little, so all query heads of a kv head share each key and
value they load, and the threads cut the *keys* of the batch into equal pieces, in the middle of a request if
need be; a request cut in two is put together by its softmax statistics (upstream: csrc/cpu/cpu_attn.cpp;
Flash-Decoding, Dao et al. 2023).
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from learnvllm.model_layers.ops.cpu import exp
from learnvllm.model_layers.ops.jit import (
    as_double,
    device,
    f32,
    i32,
    i64,
    kernel,
    num_threads,
    thread_num,
    threads_for,
)
from learnvllm.model_layers.ops.torch_ref import gather_kv

# Keys handled between two updates of the running softmax.
TILE = 64
# Requests with more query tokens than this go through torch's flash attention, see `paged_attention`.
MAX_ROWS = 8
# Key positions (times query heads) worth a thread of their own.
SCORES_PER_THREAD = 64

_LOWEST = np.float32(-3.4e38)

# ------------------------------------------------------------------------------------------- one tile of keys


@device
def _scores(q, q_at, k_cache, places, count, dim, scale, scores, s_at):  # type: ignore[no-untyped-def]
    """scores[s_at + j] = scale * q . key j, for the `count` keys at `places`; returns their maximum."""
    top = _LOWEST
    j = 0
    while j + 4 <= count:
        k0, k1, k2, k3 = places[j], places[j + 1], places[j + 2], places[j + 3]
        s0 = s1 = s2 = s3 = np.float32(0.0)
        for d in range(dim):
            x = q[q_at + d]
            s0 += x * k_cache[k0 + d]
            s1 += x * k_cache[k1 + d]
            s2 += x * k_cache[k2 + d]
            s3 += x * k_cache[k3 + d]
        scores[s_at + j] = s0 * scale
        scores[s_at + j + 1] = s1 * scale
        scores[s_at + j + 2] = s2 * scale
        scores[s_at + j + 3] = s3 * scale
        top = max(top, max(max(s0, s1), max(s2, s3)) * scale)
        j += 4
    while j < count:
        s = np.float32(0.0)
        for d in range(dim):
            s += q[q_at + d] * k_cache[places[j] + d]
        scores[s_at + j] = s * scale
        top = max(top, s * scale)
        j += 1
    return top


@device
def _add_values(p, p_at, v_cache, places, count, dim, acc, a_at):  # type: ignore[no-untyped-def]
    """acc[a_at : a_at + dim] += sum over j of p[p_at + j] * value j."""
    j = 0
    while j + 4 <= count:
        v0, v1, v2, v3 = places[j], places[j + 1], places[j + 2], places[j + 3]
        p0, p1, p2, p3 = p[p_at + j], p[p_at + j + 1], p[p_at + j + 2], p[p_at + j + 3]
        for d in range(dim):
            acc[a_at + d] += (
                p0 * v_cache[v0 + d] + p1 * v_cache[v1 + d] + p2 * v_cache[v2 + d] + p3 * v_cache[v3 + d]
            )
        j += 4
    while j < count:
        for d in range(dim):
            acc[a_at + d] += p[p_at + j] * v_cache[places[j] + d]
        j += 1


# ------------------------------------------------------------------------------------------------- the kernel


@kernel("q" * 21 + "d")
def _attend(args):  # type: ignore[no-untyped-def]
    q, k_cache, v_cache, out = f32(args[0]), f32(args[1]), f32(args[2]), f32(args[3])
    block_table, seq_lens, query_start_loc = i32(args[4]), i32(args[5]), i32(args[6])
    scratch, scratch_size, pieces = f32(args[7]), args[8], i64(args[9])
    requests, kv_heads, group, dim, block_size = args[10], args[11], args[12], args[13], args[14]
    q_stride, q_head, table_stride, block_stride = args[15], args[16], args[17], args[18]
    window, max_rows = args[19], args[20]
    scale = np.float32(as_double(args[21]))
    me, threads = thread_num(), num_threads()

    # My piece of the flattened work [request, query row, kv head, key].
    total = 0
    for r in range(requests):
        rows = query_start_loc[r + 1] - query_start_loc[r]
        if rows <= max_rows:
            for i in range(rows):
                total += kv_heads * min(seq_lens[r] - rows + i + 1, window)
    my_begin, my_end = total * me // threads, total * (me + 1) // threads

    # My scratch: the output, sum and maximum of up to two heads cut by my borders, then what one head needs.
    per_head = group * (dim + 2)
    mine = me * scratch_size
    scores = mine + 3 * per_head
    places = i64(args[7] + 4 * (scores + group * TILE))

    at = 0
    for r in range(requests):
        rows = query_start_loc[r + 1] - query_start_loc[r]
        if rows > max_rows:
            continue
        for i in range(rows):
            stop = seq_lens[r] - rows + i + 1
            start = max(0, stop - window)
            length = stop - start
            if at + kv_heads * length <= my_begin or at >= my_end:
                at += kv_heads * length
                continue
            row = query_start_loc[r] + i
            for h in range(kv_heads):
                begin, end = max(at, my_begin) - at, min(at + length, my_end) - at
                at += length
                if begin >= end:
                    continue
                whole = begin == 0 and end == length
                acc = mine  # a head cut at my first border; one cut at my last goes behind it
                if whole:
                    acc = mine + 2 * per_head
                elif begin == 0:
                    acc = mine + per_head
                sums, tops = acc + group * dim, acc + group * (dim + 1)
                for x in range(group * (dim + 1)):
                    scratch[acc + x] = np.float32(0.0)
                for g in range(group):
                    scratch[tops + g] = _LOWEST

                tile = start + begin
                while tile < start + end:
                    count = min(TILE, start + end - tile)
                    for j in range(count):
                        block = block_table[r * table_stride + (tile + j) // block_size]
                        places[j] = block * block_stride + (h * block_size + (tile + j) % block_size) * dim
                    for g in range(group):
                        q_at = row * q_stride + (h * group + g) * q_head
                        s_at = scores + g * TILE
                        top = _scores(q, q_at, k_cache, places, count, dim, scale, scratch, s_at)
                        if top > scratch[tops + g]:
                            shrink = exp(scratch[tops + g] - top)
                            scratch[tops + g] = top
                            scratch[sums + g] *= shrink
                            for d in range(dim):
                                scratch[acc + g * dim + d] *= shrink
                        top = scratch[tops + g]
                        total_p = np.float32(0.0)
                        for j in range(count):
                            p = exp(scratch[s_at + j] - top)
                            scratch[s_at + j] = p
                            total_p += p
                        scratch[sums + g] += total_p
                        _add_values(scratch, s_at, v_cache, places, count, dim, scratch, acc + g * dim)
                    tile += count

                if whole:
                    for g in range(group):
                        inverse = np.float32(1.0) / scratch[sums + g]
                        to = (row * kv_heads * group + h * group + g) * dim
                        for d in range(dim):
                            out[to + d] = scratch[acc + g * dim + d] * inverse
                elif begin == 0:
                    pieces[2 * me + 1] = row * kv_heads + h
                else:
                    pieces[2 * me] = row * kv_heads + h


@kernel("q" * 7)
def _combine(args):  # type: ignore[no-untyped-def]
    """Put together the heads that `_attend` cut between threads: pieces of one head follow each other."""
    out, scratch, scratch_size, pieces = f32(args[0]), f32(args[1]), args[2], i64(args[3])
    count, group, dim = args[4], args[5], args[6]
    per_head = group * (dim + 2)
    first = 0
    while first < count:
        head = pieces[first]
        last = first + 1
        while last < count and (pieces[last] == head or pieces[last] < 0):
            last += 1
        if head >= 0:
            for g in range(group):
                top = _LOWEST
                for i in range(first, last):
                    if pieces[i] >= 0:
                        top = max(
                            top, scratch[i // 2 * scratch_size + i % 2 * per_head + group * (dim + 1) + g]
                        )
                to = (head * group + g) * dim
                for d in range(dim):
                    out[to + d] = np.float32(0.0)
                total = np.float32(0.0)
                for i in range(first, last):
                    if pieces[i] >= 0:
                        acc = i // 2 * scratch_size + i % 2 * per_head
                        share = exp(scratch[acc + group * (dim + 1) + g] - top)
                        total += share * scratch[acc + group * dim + g]
                        for d in range(dim):
                            out[to + d] += share * scratch[acc + g * dim + d]
                for d in range(dim):
                    out[to + d] /= total
        first = last


def decode_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    scale: float,
    window: int,
    out: Tensor,
    max_rows: int = 1 << 30,
) -> None:
    """`paged_attention` for the requests with at most max_rows query tokens; the rows of others are left
    alone.
    """
    requests, (_, kv_heads, block_size, dim) = seq_lens.shape[0], k_cache.shape
    group = q.shape[1] // kv_heads
    # A guess without reading the lengths: at least a block's worth for each row.
    threads = threads_for(q.shape[0] * q.shape[1] * block_table.shape[1] * block_size, SCORES_PER_THREAD)
    scratch_size = -(-(3 * group * (dim + 2) + group * TILE + 2 * TILE) // 16) * 16
    scratch = torch.empty(threads * scratch_size)
    pieces = torch.full((2 * threads,), -1)  # which head a piece is of; -1: no piece
    _attend(
        threads,
        q.data_ptr(), k_cache.data_ptr(), v_cache.data_ptr(), out.data_ptr(),
        block_table.data_ptr(), seq_lens.data_ptr(), query_start_loc.data_ptr(),
        scratch.data_ptr(), scratch_size, pieces.data_ptr(),
        requests, kv_heads, group, dim, block_size,
        q.stride(0), q.stride(1), block_table.stride(0), k_cache.stride(0), window, max_rows, scale,
    )  # fmt: skip
    if threads > 1:
        _combine(
            1, out.data_ptr(), scratch.data_ptr(), scratch_size, pieces.data_ptr(), 2 * threads, group, dim
        )


# ------------------------------------------------------------------------------------------------ long chunks


def chunk_attention(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_row: Tensor, seq_len: int, scale: float, window: int
) -> Tensor:
    """A long prefill chunk of one request: gather its keys and values once, then torch's flash attention.

    q: [n, Hq, D], the last n of seq_len tokens -> [n, Hq, D]. Gathering costs n times less per query than for
    a decode.
    """
    n = q.shape[0]
    begin = max(0, seq_len - n + 1 - window)
    keys = gather_kv(k_cache, block_row, begin, seq_len)[None]
    values = gather_kv(v_cache, block_row, begin, seq_len)[None]
    queries = q.transpose(0, 1)[None]
    if seq_len == n and window >= n:
        out = F.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=scale, enable_gqa=True
        )
    else:
        pos = torch.arange(seq_len - n, seq_len)[:, None]
        key_pos = torch.arange(begin, seq_len)
        visible = (key_pos <= pos) & (key_pos > pos - window)
        out = F.scaled_dot_product_attention(queries, keys, values, visible, scale=scale, enable_gqa=True)
    return out[0].transpose(0, 1)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    scale: float,
    sliding_window: int | None,
    out: Tensor,
) -> Tensor:
    window = 1 << 30 if sliding_window is None else sliding_window
    requests = seq_lens.shape[0]
    if q.shape[0] <= requests:  # nothing but decodes, as in most steps
        decode_attention(q, k_cache, v_cache, block_table, seq_lens, query_start_loc, scale, window, out)
        return out
    starts = query_start_loc.tolist()
    decode_attention(
        q, k_cache, v_cache, block_table, seq_lens, query_start_loc, scale, window, out, MAX_ROWS
    )
    for r in range(requests):
        if starts[r + 1] - starts[r] > MAX_ROWS:
            rows = slice(starts[r], starts[r + 1])
            out[rows] = chunk_attention(
                q[rows], k_cache, v_cache, block_table[r], int(seq_lens[r]), scale, window
            )
    return out
