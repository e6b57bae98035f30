"""Paged attention on a CPU: blocks are read where they lie, never gathered. One kernel decodes and prefills.

The work is cut into items: up to 16 query tokens of a request and one kv head, whose query heads share every
key and value that is loaded. The threads cut the *keys* of all items into equal parts, in the middle of an
item if need be; one cut in two is put together by its softmax statistics. Upstream: csrc/cpu/cpu_attn.cpp.
Papers: FlashAttention (arXiv 2205.14135); Flash-Decoding cuts contexts likewise.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from learnvllm.model_layers.ops.cpu import exp
from learnvllm.model_layers.ops.cpu_attention_tile import (
    LOWEST,
    ROWS,
    TILE,
    ZERO,
    add_values,
    dot_products,
    softmax,
)
from learnvllm.model_layers.ops.jit import (
    Kernel,
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

# Query tokens of an item: more would reuse a tile of keys more often, but no longer fit the cache beside it.
QUERIES = 16
# Head sizes that get a kernel with the size built in: loops of known length run a quarter faster.
HEAD_DIMS = (64, 128, 256)
# Keys times query heads that are worth a thread of their own.
SCORES_PER_THREAD = 64


class Context(NamedTuple):
    """One request's keys and values of one kv head, as the kernels see them."""

    k: Tensor
    v: Tensor
    table: Tensor  # its row of the block table
    block_size: int
    block_stride: int
    head: int


# As in `cpu_attention_tile.py`: s is this thread's scratch memory, and other arguments are offsets into it.

# --------------------------------------------------------------------------------------------------- one item


@device
def _whole_rows(count):  # type: ignore[no-untyped-def]
    return (count + ROWS - 1) // ROWS * ROWS


@device
def _find(places, context, first, count, dim):  # type: ignore[no-untyped-def]
    """places[j]: where key first + j starts in the cache (and its value in the other one)."""
    for j in range(count):
        block, offset = (first + j) // context.block_size, (first + j) % context.block_size
        start = context.table[block] * context.block_stride
        places[j] = start + (context.head * context.block_size + offset) * dim


@device
def _attend_item(  # type: ignore[no-untyped-def]
    s, q, acc, stats, scores, places, others, context, rows, group, dim, begin, end, first_pos, window
):
    """Attention of `rows` query rows at s[q] over keys [begin, end). Row i is at first_pos + i // group."""
    for i in range(_whole_rows(rows)):
        s[stats + 2 * i], s[stats + 2 * i + 1] = LOWEST, ZERO
        for d in range(dim):
            s[acc + i * dim + d] = ZERO
    _find(places, context, begin, min(TILE, end - begin), dim)
    for tile in range(begin, end, TILE):
        count, next_count = min(TILE, end - tile), max(0, min(TILE, end - tile - TILE))
        _find(others, context, tile + TILE, next_count, dim)
        for i in range(0, rows, ROWS):
            first, last = first_pos + i // group, first_pos + min(i + ROWS - 1, rows - 1) // group
            if tile > last or tile + count <= first - window + 1:
                continue  # none of these rows sees any of these keys
            dot_products(s, q + i * dim, context.k, places, count, dim, scores, context.v, i == 0)
            for k in range(i, i + ROWS):
                pos = first_pos + min(k, rows - 1) // group
                low = min(max(pos - window + 1 - tile, 0), count)
                high = max(min(pos + 1 - tile, count), low)
                softmax(s, scores + (k - i) * TILE, count, low, high, stats + 2 * k, acc + k * dim, dim)
            fetched = next_count if i + ROWS >= rows else 0
            add_values(s, scores, context.v, places, count, dim, acc + i * dim, context.k, others, fetched)
        places, others = others, places


@device
def _take_queries(s, to, q, row, q_stride, q_head, first_head, rows, group, dim, scale):  # type: ignore[no-untyped-def]
    """Copy an item's query rows to s[to], scaled; the last again and again to make whole groups of ROWS."""
    for x in range(_whole_rows(rows)):
        y = min(x, rows - 1)
        source = (row + y // group) * q_stride + (first_head + y % group) * q_head
        for d in range(dim):
            s[to + x * dim + d] = q[source + d] * scale


@device
def _write_result(s, acc, stats, out, row, first_head, heads, rows, group, dim):  # type: ignore[no-untyped-def]
    """out[row, head] = the weighted sum of values over the sum of weights."""
    for x in range(rows):
        to = ((row + x // group) * heads + first_head + x % group) * dim
        inverse = np.float32(1.0) / s[stats + 2 * x + 1]
        for d in range(dim):
            out[to + d] = s[acc + x * dim + d] * inverse


# ------------------------------------------------------------------------------------------------- the kernel


@cache
def attention_kernel(head_dim: int) -> Kernel:
    """The kernel for one head size, or with 0 for any. Compiled (4 s) or loaded (10 ms) on first use."""

    @kernel("q" * 20 + "d")
    def _attend(args):  # type: ignore[no-untyped-def]
        q, k_cache, v_cache, out = f32(args[0]), f32(args[1]), f32(args[2]), f32(args[3])
        seq_lens, query_start_loc, pieces = i32(args[5]), i32(args[6]), i64(args[9])
        requests, kv_heads, group, block_size = args[10], args[11], args[12], args[14]
        q_stride, q_head, table_stride, block_stride, window = (
            args[15],
            args[16],
            args[17],
            args[18],
            args[19],
        )
        dim = head_dim or args[13]
        scale = np.float32(as_double(args[20]))
        me, threads = thread_num(), num_threads()
        for i in range(6 * me, 6 * me + 6):
            pieces[i] = -1
        if me == 0:
            pieces[-1] = 2 * threads  # in front of them: how many there may be

        # The work: of each item its keys times its groups of rows. My part of it is [my_begin, my_end).
        work = 0
        for r in range(requests):
            n = query_start_loc[r + 1] - query_start_loc[r]
            for i in range(0, n, QUERIES):
                tokens, first_pos = min(QUERIES, n - i), seq_lens[r] - n + i
                keys = first_pos + tokens - max(0, first_pos - window + 1)
                work += kv_heads * keys * (_whole_rows(tokens * group) // ROWS)
        my_begin, my_end = work * me // threads, work * (me + 1) // threads

        # My scratch: three results (of the item cut by my first border, of the one cut by my last, of whole
        # ones), then the scores and the packed queries of one tile.
        most_rows = _whole_rows(QUERIES * group)
        result_size = most_rows * (dim + 2)
        mine = args[7] + 4 * me * args[8]
        s, scores = f32(mine), 3 * result_size
        queries = scores + ROWS * TILE
        indices = mine + 4 * (queries + most_rows * dim)
        places, others = i64(indices), i64(indices + 8 * TILE)

        at = 0
        for r in range(requests):
            n = query_start_loc[r + 1] - query_start_loc[r]
            table = i32(args[4] + 4 * r * table_stride)
            for i in range(0, n, QUERIES):
                tokens, row, first_pos = min(QUERIES, n - i), query_start_loc[r] + i, seq_lens[r] - n + i
                rows, start, stop = tokens * group, max(0, first_pos - window + 1), first_pos + tokens
                weight = _whole_rows(rows) // ROWS
                for h in range(kv_heads):
                    begin = start + max(0, (my_begin - at + weight - 1) // weight)
                    end = min(stop, start + (my_end - at + weight - 1) // weight)
                    at += (stop - start) * weight
                    if begin >= end:
                        continue
                    acc = 0  # where the result goes
                    if begin == start:
                        acc = 2 * result_size if end == stop else result_size
                    stats = acc + most_rows * dim
                    context = Context(k_cache, v_cache, table, block_size, block_stride, h)
                    _take_queries(s, queries, q, row, q_stride, q_head, h * group, rows, group, dim, scale)
                    _attend_item(
                        s, queries, acc, stats, scores, places, others,
                        context, rows, group, dim, begin, end, first_pos, window,
                    )  # fmt: skip
                    if begin == start and end == stop:
                        _write_result(s, acc, stats, out, row, h * group, kv_heads * group, rows, group, dim)
                    else:
                        piece = 3 * (2 * me + (1 if begin == start else 0))
                        pieces[piece], pieces[piece + 1], pieces[piece + 2] = row, h, tokens

    return _attend


@kernel("q" * 7)
def _combine(args):  # type: ignore[no-untyped-def]
    """Put together the items that `_attend` cut between threads: the pieces of one item follow each other.

    A piece has a maximum m, a sum l of exp(score - m) and a weighted sum a of values. With M the largest m,
    the result is (sum of a * exp(m - M)) / (sum of l * exp(m - M)).
    """
    out, s, scratch_size, pieces = f32(args[0]), f32(args[1]), args[2], i64(args[3])
    kv_heads, group, dim = args[4], args[5], args[6]
    number = pieces[-1]
    most_rows = _whole_rows(QUERIES * group)
    result_size = most_rows * (dim + 2)
    first = 0
    while first < number:
        row, h, tokens = pieces[3 * first], pieces[3 * first + 1], pieces[3 * first + 2]
        last = first + 1
        while last < number and (
            pieces[3 * last] < 0 or (pieces[3 * last] == row and pieces[3 * last + 1] == h)
        ):
            last += 1
        for x in range(tokens * group if row >= 0 else 0):
            top, total = LOWEST, ZERO
            to = ((row + x // group) * kv_heads * group + h * group + x % group) * dim
            for d in range(dim):
                out[to + d] = ZERO
            for i in range(first, last):
                if pieces[3 * i] >= 0:
                    top = max(top, s[i // 2 * scratch_size + i % 2 * result_size + most_rows * dim + 2 * x])
            for i in range(first, last):
                if pieces[3 * i] >= 0:
                    acc = i // 2 * scratch_size + i % 2 * result_size
                    stats = acc + most_rows * dim + 2 * x
                    share = exp(s[stats] - top)
                    total += share * s[stats + 1]
                    for d in range(dim):
                        out[to + d] += share * s[acc + x * dim + d]
            for d in range(dim):
                out[to + d] /= total
        first = last


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
    """See `learnvllm.model_layers.ops.paged_attention`. fp32, out contiguous, both caches laid out alike."""
    window = 1 << 30 if sliding_window is None else sliding_window
    requests, (_, kv_heads, block_size, dim) = seq_lens.shape[0], k_cache.shape
    (tokens, heads, _), (q_stride, q_head, _) = q.shape, q.stride()
    group = heads // kv_heads
    # How long the contexts are is known only in the kernel; the block table's width bounds it.
    threads = threads_for(tokens * heads * block_table.shape[1] * block_size, SCORES_PER_THREAD)
    most_rows = -(-QUERIES * group // ROWS) * ROWS
    floats = 3 * most_rows * (dim + 2) + ROWS * TILE + most_rows * dim + 4 * TILE
    scratch_size = -(-floats // 16) * 16  # whole cache lines
    # Behind it, of each cut item its first row, kv head and tokens.
    scratch = torch.empty(threads * scratch_size + 2 * (1 + 6 * threads))
    address = scratch.data_ptr()
    pieces = address + 4 * threads * scratch_size + 8
    attention_kernel(dim if dim in HEAD_DIMS else 0)(
        threads,
        q.data_ptr(), k_cache.data_ptr(), v_cache.data_ptr(), out.data_ptr(),
        block_table.data_ptr(), seq_lens.data_ptr(), query_start_loc.data_ptr(),
        address, scratch_size, pieces,
        requests, kv_heads, group, dim, block_size,
        q_stride, q_head, block_table.stride(0), k_cache.stride(0), window, scale,
    )  # fmt: skip
    if threads > 1:
        _combine(1, out.data_ptr(), address, scratch_size, pieces, kv_heads, group, dim)
    return out
