"""Random numbers without a generator: noise is a hash of (seed, position, token), so nothing else can change
it.

A request draws the same noise whatever shares its batch, however often it is preempted, in whatever order
steps run. Sampling is then the Gumbel-max trick: argmax(log p + G). Upstream namesake:
vllm/v1/worker/gpu/sample/gumbel.py. Sources: Gumbel-max in arXiv 1411.0030; SplitMix64 in Steele, Lea, Flood,
"Fast splittable pseudorandom number generators" (OOPSLA 2014); counter-based generators in Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3".
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

# SplitMix64. torch and numpy have no unsigned 64-bit arithmetic to rely on, so these are the same bits as
# signed numbers.
GAMMA = 0x9E3779B97F4A7C15 - (1 << 64)
MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
MIX_2 = 0x94D049BB133111EB - (1 << 64)


def request_seed(engine_seed: int, req_id: str) -> int:
    """The seed of a request that brings none: the same after a preemption, different from every other
    request's."""
    digest = hashlib.blake2b(f"{engine_seed}\0{req_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def mix64(x: Tensor) -> Tensor:
    """SplitMix64's finalizer: every bit of the result depends on every bit of x. int64 in and out,
    wrapping."""
    x = (x ^ _shift_right(x, 30)) * MIX_1
    x = (x ^ _shift_right(x, 27)) * MIX_2
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's own copies the sign bit."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def uniform(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Uniform numbers in [0, 1) in steps of 2**-53. seeds, positions: [n] int64 -> [n, vocab_size] float64.

    positions: index of the output token that is drawn, counted from 0.
    """
    key = mix64(mix64(seeds) + positions)
    token = torch.arange(1, vocab_size + 1, dtype=torch.int64, device=seeds.device)
    bits = mix64(key[:, None] + token * GAMMA)
    return _shift_right(bits, 11).double() * 2.0**-53


def exponential(seeds: Tensor, positions: Tensor, vocab_size: int) -> Tensor:
    """Exponentially distributed numbers (mean 1), shaped as `uniform`. Gumbel noise is minus their
    logarithm."""
    return -torch.log1p(-uniform(seeds, positions, vocab_size))


def gumbel_argmax(log_weights: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Draw from the distribution whose unnormalised log-probabilities are given (-inf: never).

    argmax over tokens of log w + G, with G = -log E: no softmax, and the winner is token i with probability
    w_i / sum w. The CPU kernel takes the equivalent argmin of E / w, because there most logarithms need not
    be computed.

    log_weights: [n, V]; seeds, positions: [n] int64 -> [n] int64.
    """
    noise = -torch.log(exponential(seeds, positions, log_weights.shape[1]))
    return (log_weights.double() + noise).argmax(dim=-1)
