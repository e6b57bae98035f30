"""Building a step's inputs in one Triton kernel: a program for each request and KV cache group.

Each program reads its request's row and lengths, then walks over the request's tokens of this step (id,
position, slot) and over its block table. `inputs.prepare_torch` is its twin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

if TYPE_CHECKING:
    from learnvllm.executor_worker.device.inputs import StepInputs

TILE = 256


@triton.jit
def _prepare(  # type: ignore[no-untyped-def]
    row_ptr, starts_ptr, computed_ptr, sampling_ptr, arena_ptr, groups_ptr,
    input_ids_ptr, positions_ptr, slots_ptr, seq_lens_ptr, tables_ptr, logits_indices_ptr,
    spare_row, tokens_offset, max_tokens, slots_stride, tables_group_stride, tables_stride, num_sampling,
    TILE: tl.constexpr,
):  # fmt: skip
    request, group = tl.program_id(0), tl.program_id(1)
    row = tl.load(row_ptr + request).to(tl.int64)
    is_real = row != spare_row
    start, end = tl.load(starts_ptr + request), tl.load(starts_ptr + request + 1)
    computed = tl.load(computed_ptr + request)
    seq_len = computed + end - start
    table_ptr = arena_ptr + tl.load(groups_ptr + 3 * group) + row * tl.load(groups_ptr + 3 * group + 1)
    block_size = tl.load(groups_ptr + 3 * group + 2)
    lane = tl.arange(0, TILE)
    if group == 0:
        tl.store(seq_lens_ptr + request, tl.where(is_real, seq_len, 0))
        if request < num_sampling:  # here a program does what belongs to the request-th that samples
            sampler = tl.load(sampling_ptr + request)
            last = tl.load(starts_ptr + sampler + 1) - 1
            tl.store(logits_indices_ptr + request, last.to(tl.int64))
    for first in range(start, end, TILE):
        token = first + lane
        mask = token < end
        position = tl.where(is_real, computed + token - start, 0).to(tl.int64)  # padding may be long
        if group == 0:
            ids = tl.load(arena_ptr + tokens_offset + row * max_tokens + position, mask=mask)
            tl.store(input_ids_ptr + token, ids.to(tl.int64), mask=mask)
            tl.store(positions_ptr + token, position, mask=mask)
        block = tl.load(table_ptr + position // block_size, mask=mask).to(tl.int64)
        slot = tl.where(is_real, block * block_size + position % block_size, -1)
        tl.store(slots_ptr + group * slots_stride + token, slot, mask=mask)
    used = tl.where(is_real, (seq_len + block_size - 1) // block_size, 0)
    for first in range(0, used, TILE):
        entry = first + lane
        mask = entry < used
        block = tl.load(table_ptr + entry, mask=mask)
        tl.store(tables_ptr + group * tables_group_stride + request * tables_stride + entry, block, mask=mask)


def prepare(inputs: StepInputs, num_reqs: int, num_sampling: int) -> None:
    """Launch it for the step that `inputs` has been sent."""
    rows = inputs.rows
    _prepare[(num_reqs, len(rows.widths))](
        inputs.row, inputs.query_start_loc, inputs.computed, inputs.sampling, rows.arena, inputs.groups,
        inputs.input_ids, inputs.positions, inputs.slots, inputs.seq_lens, inputs.block_tables,
        inputs.logits_indices, rows.spare_row, rows.token_ids.storage_offset(), rows.max_tokens,
        inputs.slots.stride(0), inputs.block_tables.stride(0), inputs.block_tables.stride(1), num_sampling,
        TILE=TILE,
    )  # fmt: skip
