"""Paged attention as a Triton kernel: prefill chunks and decodes of a batch in one launch.

A program takes a tile of one request's queries with all the query heads that share a kv head (that is what
grouped-query attention saves: each key is read once for the group), walks over the request's keys a tile at a
time, and keeps the softmax's maximum and sum as it goes (online softmax, arXiv 2112.05682, 2205.14135), so no
score is ever in memory. Upstream: vllm/v1/attention/ops/triton_unified_attention.py. Twin:
torch_ref.paged_attention. Who starts it: attention_launch.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from learnvllm.model_layers.ops.triton_kernels.launch import start_next_kernel_early, wait_for_inputs

LOG2_E = tl.constexpr(1.4426950408889634)  # exp2 is an instruction, exp is not: scores are in units of log 2


@triton.jit
def find_request(starts_ptr, num_requests, tile, QUERIES: tl.constexpr):  # type: ignore[no-untyped-def]
    """(request, its first query in this tile): request r's tiles of QUERIES queries begin at number
    starts[r] // QUERIES + r, which leaves each enough of them and needs no table. Binary search.
    """
    low, high = 0, num_requests
    while low < high:
        middle = (low + high) // 2
        if tl.load(starts_ptr + middle) // QUERIES + middle <= tile:
            low = middle + 1
        else:
            high = middle
    request = low - 1
    return request, (tile - (tl.load(starts_ptr + request) // QUERIES + request)) * QUERIES


@triton.jit
def attend_to_tile(  # type: ignore[no-untyped-def]
    q, highest, total, acc, key, end, position, k_ptr, v_ptr, table_ptr, block_stride, scale_log2, window,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    WINDOW: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Let keys [key, key + TILE) have their part in (highest score, sum, weighted values) of all rows."""
    keys, dim = key + tl.arange(0, TILE), tl.arange(0, DIM)
    is_key, in_dim = keys < end, dim < HEAD_DIM
    block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
    place = block * block_stride + keys % BLOCK_SIZE * HEAD_DIM
    mask = is_key[:, None] & in_dim[None, :]  # beyond the end lies anything, even NaN
    k = tl.load(k_ptr + place[:, None] + dim[None, :], mask=mask, other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
    if MASKED:
        visible = is_key[None, :] & (keys[None, :] <= position[:, None])
        if WINDOW:
            visible = visible & (keys[None, :] > position[:, None] - window)
        scores = tl.where(visible, scores, float("-inf"))
    new_highest = tl.maximum(highest, tl.max(scores, axis=1))
    base = tl.where(new_highest == float("-inf"), 0.0, new_highest)  # a row that has seen no key yet
    weights, shrink = tl.exp2(scores - base[:, None]), tl.exp2(highest - base)
    v = tl.load(v_ptr + place[:, None] + dim[None, :], mask=mask, other=0.0)
    acc = acc * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
    return new_highest, total * shrink + tl.sum(weights, axis=1), acc


@triton.jit
def attend(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, table_ptr, sinks_ptr, out_ptr, lse_ptr, seq_len, num_queries, first_query, kv_head,
    split, scale_log2, window, q_stride, q_head_stride, block_stride, num_heads,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, WINDOW: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """One tile of queries, split `split` of its keys. Row i: query i // GROUP, head i % GROUP."""
    QUERIES: tl.constexpr = ROWS // GROUP
    row, dim = tl.arange(0, ROWS), tl.arange(0, DIM)
    query, head = first_query + row // GROUP, kv_head * GROUP + row % GROUP
    is_row = (query < num_queries) & (row < QUERIES * GROUP)
    mask = is_row[:, None] & (dim < HEAD_DIM)[None, :]
    q = tl.load(
        q_ptr + query[:, None] * q_stride + head[:, None] * q_head_stride + dim[None, :], mask=mask, other=0.0
    )
    first_position = seq_len - num_queries + first_query
    position = first_position + row // GROUP
    # The keys that any row sees, whole tiles dealt out evenly to the splits.
    first_key = 0
    if WINDOW:
        first_key = tl.maximum(first_position - window + 1, 0) // TILE * TILE
    last_key = tl.minimum(seq_len, first_position + QUERIES)
    share = tl.cdiv(tl.cdiv(last_key - first_key, TILE), SPLITS) * TILE
    begin = first_key + split * share
    end = tl.minimum(last_key, begin + share)
    # Keys up to the first query's position are seen by all rows: no mask is needed for whole tiles of them.
    unmasked = begin
    if not WINDOW:
        unmasked += tl.maximum(tl.minimum(end, first_position + 1) - begin, 0) // TILE * TILE
    highest, total = tl.full([ROWS], float("-inf"), tl.float32), tl.zeros([ROWS], tl.float32)
    if SINKS:  # a score that takes part in the softmax and has no value: weight may go nowhere
        has_sink = is_row & (split == 0)
        highest = tl.load(sinks_ptr + head, mask=has_sink, other=float("-inf")).to(tl.float32) * LOG2_E
        total = tl.where(has_sink, 1.0, 0.0)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    for key in range(begin, unmasked, TILE):
        highest, total, acc = attend_to_tile(
            q, highest, total, acc, key, end, position, k_ptr, v_ptr, table_ptr, block_stride, scale_log2,
            window, HEAD_DIM, DIM, BLOCK_SIZE, TILE, WINDOW, False,
        )  # fmt: skip
    for key in range(unmasked, end, TILE):
        highest, total, acc = attend_to_tile(
            q, highest, total, acc, key, end, position, k_ptr, v_ptr, table_ptr, block_stride, scale_log2,
            window, HEAD_DIM, DIM, BLOCK_SIZE, TILE, WINDOW, True,
        )  # fmt: skip
    acc = acc / tl.where(total == 0.0, 1.0, total)[:, None]  # seq_len 0, a graph's padding: zeros

    place = (query * num_heads + head) * SPLITS + split
    tl.store(out_ptr + place[:, None] * HEAD_DIM + dim[None, :], acc.to(out_ptr.dtype.element_ty), mask=mask)
    if SPLITS > 1:
        tl.store(lse_ptr + place, highest + tl.log2(total), mask=is_row)  # -inf: this split had no keys


@triton.jit
def paged_attention_kernel(  # type: ignore[no-untyped-def]
    q_ptr, k_ptr, v_ptr, table_ptr, seq_lens_ptr, starts_ptr, sinks_ptr, out_ptr, lse_ptr, num_requests,
    scale_log2, window, q_stride, q_head_stride, block_stride, cache_head_stride, table_stride,
    num_heads, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    FEW_ROWS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
    WINDOW: tl.constexpr, SINKS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Program (tile, kv head, split). Rows are queries times GROUP: a decode fills FEW_ROWS, a chunk ROWS."""
    start_next_kernel_early(EARLY)
    wait_for_inputs(EARLY)
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    request, first_query = tile, 0
    if ROWS > FEW_ROWS:  # else each request is one tile
        request, first_query = find_request(starts_ptr, num_requests, tile, ROWS // GROUP)
    start = tl.load(starts_ptr + request).to(tl.int64)
    num_queries = (tl.load(starts_ptr + request + 1) - start).to(tl.int32)
    if first_query < num_queries:
        seq_len = tl.load(seq_lens_ptr + request)
        q_ptr += start * q_stride
        out_ptr += start * num_heads * SPLITS * HEAD_DIM
        if SPLITS > 1:
            lse_ptr += start * num_heads * SPLITS
        k_ptr += kv_head * cache_head_stride
        v_ptr += kv_head * cache_head_stride
        table_ptr += request.to(tl.int64) * table_stride
        for is_chunk in tl.static_range(0, 1 if ROWS == FEW_ROWS else 2):  # a path each through this kernel
            if (num_queries * GROUP > FEW_ROWS) == (is_chunk == 1):
                attend(
                    q_ptr, k_ptr, v_ptr, table_ptr, sinks_ptr, out_ptr, lse_ptr, seq_len, num_queries,
                    first_query, kv_head, split, scale_log2, window, q_stride, q_head_stride, block_stride,
                    num_heads, GROUP, HEAD_DIM, DIM, BLOCK_SIZE, ROWS if is_chunk == 1 else FEW_ROWS,
                    TILE, SPLITS, WINDOW, SINKS,
                )  # fmt: skip
