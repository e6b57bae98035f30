"""Sampling without softmax or sort: argmax of logit / temperature + Gumbel noise, in two Triton kernels.

The vocabulary is cut into tiles, so that even one request's row keeps many multiprocessors busy; each program
finds its tile's best, the second kernel the best of those, and appends it to the request's row. Noise is the
hash of `sample/gumbel.py`, computed where it is used and never stored. `sampling.sample_torch` is the twin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from learnvllm.executor_worker.device.sampling import DeviceSampler

TILE, BLOCK = 4096, 1024  # tokens of a program, and at once
_GAMMA = tl.constexpr(0x9E3779B97F4A7C15)
_GAMMA_OF_BLOCK = tl.constexpr(0x9E3779B97F4A7C15 * BLOCK & (1 << 64) - 1)


@triton.jit
def _mix64(x):  # type: ignore[no-untyped-def]
    """gumbel.mix64, on uint64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def _minus_log_exponential(counter):  # type: ignore[no-untyped-def]
    """Gumbel noise -log(E), E = -log(1 - u), for u uniform: what matters is precision where u is small."""
    u = (_mix64(counter) >> 11).to(tl.float32) * (1.0 / 9007199254740992.0)  # 2**-53
    small = u * (1.0 + u * (0.5 + u * (0.33333334 + u * 0.25)))
    return -tl.log(tl.where(u < 0.015625, small, -tl.log(1.0 - u)))


@triton.jit
def _best_of_tile(  # type: ignore[no-untyped-def]
    logits_ptr, row_ptr, sampling_ptr, seq_lens_ptr, seeds_ptr, temperature_ptr, prompt_ptr,
    keys_ptr, tokens_ptr, nans_ptr, vocab_size, logits_stride, num_tiles,
    TILE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    s, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    request = tl.load(sampling_ptr + s)
    row = tl.load(row_ptr + request)
    temperature = tl.load(temperature_ptr + row)
    inverse = 1.0 / tl.where(temperature > 0, temperature, 1.0)
    seed = tl.load(seeds_ptr + row).to(tl.uint64)
    position = (tl.load(seq_lens_ptr + request) - tl.load(prompt_ptr + row)).to(tl.uint64)
    lane = tl.arange(0, BLOCK)
    # A token's counter is key + (token + 1) * gamma: the next block's are a constant further on.
    counters = _mix64(_mix64(seed) + position) + (tile * TILE + lane + 1).to(tl.uint64) * _GAMMA
    best, best_token = tl.full([BLOCK], float("-inf"), tl.float32), tile * TILE + lane
    num_nans = tl.zeros([BLOCK], tl.int32)
    for first in range(tile * TILE, tile * TILE + TILE, BLOCK):
        token = first + lane
        place = logits_ptr + s * logits_stride + token
        x = tl.load(place, mask=token < vocab_size, other=float("-inf")).to(tl.float32)
        num_nans += (x != x).to(tl.int32)
        if temperature > 0:
            x = x * inverse + _minus_log_exponential(counters)
        counters += _GAMMA_OF_BLOCK
        is_better = x > best  # false of a NaN
        best, best_token = tl.where(is_better, x, best), tl.where(is_better, token, best_token)
    highest = tl.max(best, axis=0)
    place = s * num_tiles + tile
    tl.store(keys_ptr + place, highest)
    # Of equal logits the first wins: 16 bits have many.
    tl.store(tokens_ptr + place, tl.min(tl.where(best == highest, best_token, 0x7FFFFFFF), axis=0))
    tl.store(nans_ptr + place, tl.sum(num_nans, axis=0))


@triton.jit
def _best_of_row(  # type: ignore[no-untyped-def]
    keys_ptr, tokens_ptr, nans_ptr, row_ptr, sampling_ptr, seq_lens_ptr, token_ids_ptr, chosen_ptr,
    num_tiles, max_tokens, chosen_stride, TILES: tl.constexpr,
):  # fmt: skip
    s = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, TILES)
    mask = lane < num_tiles
    keys = tl.load(keys_ptr + s * num_tiles + lane, mask=mask, other=float("-inf"))
    token = tl.load(tokens_ptr + s * num_tiles + tl.argmax(keys, axis=0))
    num_nans = tl.sum(tl.load(nans_ptr + s * num_tiles + lane, mask=mask, other=0), axis=0)
    request = tl.load(sampling_ptr + s)
    row = tl.load(row_ptr + request).to(tl.int64)
    tl.store(chosen_ptr + s, token)
    tl.store(chosen_ptr + chosen_stride + s, num_nans)
    tl.store(token_ids_ptr + row * max_tokens + tl.load(seq_lens_ptr + request), token)


def sample(sampler: DeviceSampler, logits: Tensor) -> None:
    """DeviceSampler.sample. logits: [S, V], of any float dtype, rows contiguous."""
    inputs, rows = sampler.inputs, sampler.rows
    count, vocab_size = logits.shape
    tiles = triton.cdiv(vocab_size, TILE)
    keys = torch.empty(count, tiles, dtype=torch.float32, device=logits.device)
    tokens = torch.empty(count, tiles, dtype=torch.int32, device=logits.device)
    nans = torch.empty(count, tiles, dtype=torch.int32, device=logits.device)
    _best_of_tile[(count, tiles)](
        logits, inputs.row, inputs.sampling, inputs.seq_lens, rows.seeds, rows.temperature,
        rows.num_prompt_tokens, keys, tokens, nans, vocab_size, logits.stride(0), tiles,
        TILE=TILE, BLOCK=BLOCK,
    )  # fmt: skip
    _best_of_row[(count,)](
        keys, tokens, nans, inputs.row, inputs.sampling, inputs.seq_lens, rows.token_ids, sampler.chosen,
        tiles, rows.max_tokens, sampler.chosen.stride(0), TILES=triton.next_power_of_2(tiles),
    )  # fmt: skip
