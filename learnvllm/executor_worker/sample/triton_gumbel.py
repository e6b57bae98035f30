"""Sampling on a GPU as Triton kernels: temperature, Gumbel noise and argmax in one pass over the logits.

The noise is gumbel.py's, a hash of (seed, position, token), so a GPU draws what a CPU draws and nothing
random is kept. No softmax is made: a logit is read once, its noise is added, the largest so far is kept. A
row is too long for one multiprocessor, so programs take parts of it and a second kernel picks among their
winners. Upstream: vllm/v1/worker/gpu/sample/gumbel.py. Twin: torch_ref.sample without filters, and argmax.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from learnvllm.executor_worker.sample import gumbel
from learnvllm.model_layers.ops.triton_kernels.launch import (
    power_of_two,
    start_next_kernel_early,
    starts_early,
    wait_for_inputs,
)

_GAMMA, _MIX_1, _MIX_2 = (tl.constexpr(c & (1 << 64) - 1) for c in (gumbel.GAMMA, gumbel.MIX_1, gumbel.MIX_2))
BLOCK, PART = 1024, 4096  # tokens at once, and of a program


@triton.jit
def mix64(x):  # type: ignore[no-untyped-def]
    """gumbel.mix64, on uint64."""
    x = (x ^ (x >> 30)) * _MIX_1
    x = (x ^ (x >> 27)) * _MIX_2
    return x ^ (x >> 31)


@triton.jit
def gumbel_noise(key, token):  # type: ignore[no-untyped-def]
    """-log(-log(1 - u)), u of gumbel.uniform, in fp32. key: mix64(mix64(seed) + position).

    u near 0 is what wins, so 1 - u must not be rounded away: log1p is made of log as W. Kahan did (the error
    of 1 - u divides out).
    """
    bits = mix64(key + (token + 1).to(tl.uint64) * _GAMMA) >> 11
    u = tl.minimum(bits.to(tl.float32) * 1.1102230246251565e-16, 0.99999994)  # 2**-53; below 1
    rest = 1.0 - u
    exponential = tl.where(rest == 1.0, u, -tl.log(rest) * (u / tl.where(rest == 1.0, 1.0, 1.0 - rest)))
    return -tl.log(tl.maximum(exponential, 1e-37))


@triton.jit
def _best(value, index):  # type: ignore[no-untyped-def]
    """The largest value and its index; of equal ones the lowest."""
    highest = tl.max(value, axis=0)
    return highest, tl.min(tl.where(value == highest, index, 0x7FFFFFFF), axis=0)


@triton.jit
def _sample_part_kernel(  # type: ignore[no-untyped-def]
    logits_ptr, temperature_ptr, seeds_ptr, positions_ptr, best_ptr, index_ptr, stride, vocab_size,
    PART: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """The winner among PART tokens of a row: its noisy logit and its id, or -1 if one of them is NaN."""
    start_next_kernel_early(EARLY)
    wait_for_inputs(EARLY)
    row, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    temperature = tl.load(temperature_ptr + row)
    seed, position = tl.load(seeds_ptr + row).to(tl.uint64), tl.load(positions_ptr + row).to(tl.uint64)
    key = mix64(mix64(seed) + position)
    best, index = tl.full([BLOCK], float("-inf"), tl.float32), tl.zeros([BLOCK], tl.int32)
    nans = tl.zeros([BLOCK], tl.int32)
    for first in range(0, PART, BLOCK):
        token = part * PART + first + tl.arange(0, BLOCK)
        x = tl.load(
            logits_ptr + row.to(tl.int64) * stride + token, mask=token < vocab_size, other=float("-inf")
        )
        x = x.to(tl.float32)
        nans |= (x != x).to(tl.int32)
        if temperature > 0.0:
            x = x / temperature + gumbel_noise(key, token)
        is_better = x > best
        best, index = tl.where(is_better, x, best), tl.where(is_better, token, index)
    highest, winner = _best(best, index)
    is_nan = tl.max(nans, axis=0) > 0
    tl.store(best_ptr + row * parts + part, tl.where(is_nan, float("inf"), highest))
    tl.store(index_ptr + row * parts + part, tl.where(is_nan, -1, winner))


@triton.jit
def _pick_kernel(  # type: ignore[no-untyped-def]
    best_ptr, index_ptr, out_ptr, parts, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    """The winner among a row's parts."""
    start_next_kernel_early(EARLY)
    wait_for_inputs(EARLY)
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    best = tl.load(best_ptr + row * parts + i, mask=i < parts, other=float("-inf"))
    index = tl.load(index_ptr + row * parts + i, mask=i < parts, other=0x7FFFFFFF)
    tl.store(out_ptr + row, _best(best, index)[1].to(tl.int64))


def sample(
    logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, out: Tensor | None = None
) -> Tensor:
    """Draw one token a row; nothing waits for the device.

    logits: [n, V], any float dtype, its last dimension contiguous; temperature: [n] float32, 0 = the most
    likely token; seeds, positions: [n] int64, as gumbel.uniform has them -> out, [n] int64. A row with a NaN
    gives -1, a row of only -inf gives 0.
    """
    rows, vocab_size = logits.shape
    out = torch.empty(rows, dtype=torch.int64, device=logits.device) if out is None else out
    if not rows:
        return out
    parts, early = triton.cdiv(vocab_size, PART), starts_early(logits.device)
    best = torch.empty(rows, parts, dtype=torch.float32, device=logits.device)
    index = torch.empty(rows, parts, dtype=torch.int32, device=logits.device)
    _sample_part_kernel[(rows, parts)](
        logits, temperature, seeds, positions, best, index, logits.stride(0), vocab_size,
        PART=PART, BLOCK=BLOCK, EARLY=early, num_warps=4, launch_pdl=early,
    )  # fmt: skip
    _pick_kernel[(rows,)](
        best, index, out, parts, BLOCK=power_of_two(parts), EARLY=early, num_warps=1, launch_pdl=early
    )
    return out
