"""Rotary position embedding: a table of cosines and sines, one row a position, computed once.

The scaled variants for long contexts only change the frequencies the table is made from. Every step below is
done in fp32 in the order transformers does it, so that tables agree to the last bit. Upstream namesake:
vllm/model_executor/layers/rotary_embedding/. Papers: arXiv 2104.09864 (RoPE), 2309.00071 (YaRN).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from learnvllm.architecture.errors import ModelLoadError
from learnvllm.architecture.rope_config import RopeConfig


def cos_sin_cache(rope: RopeConfig, head_dim: int, max_positions: int) -> Tensor:
    """The table: [max_positions, head_dim] fp32, each row head_dim/2 cosines, then head_dim/2 sines.

    Raises:
        ModelLoadError: head_dim is odd, so its elements cannot be paired.
    """
    if head_dim % 2:
        raise ModelLoadError(
            f"head_dim={head_dim}: rotary embedding pairs elements, so head_dim must be even.",
            parameter="head_dim",
            value=head_dim,
        )
    inv_freq, scale = inverse_frequencies(rope, head_dim)
    angles = torch.arange(max_positions).float()[:, None] * inv_freq  # [max_positions, head_dim/2]
    return torch.cat((angles.cos() * scale, angles.sin() * scale), dim=-1)


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """Radians a token turns each pair of elements by, [head_dim/2], and a factor on the cosines and sines."""
    exponents = torch.arange(0, head_dim, 2).float() / head_dim
    inv_freq = 1.0 / (rope.theta**exponents)
    if rope.rope_type == "linear":  # positions squeezed into the trained range
        return inv_freq / rope.factor, 1.0
    if rope.rope_type == "llama3":
        return _llama3(rope, inv_freq), 1.0
    if rope.rope_type == "yarn":
        return _yarn(rope, head_dim), _yarn_attention_factor(rope)
    return inv_freq, 1.0


def _llama3(rope: RopeConfig, inv_freq: Tensor) -> Tensor:
    """Llama 3.1: slow frequencies are divided by `factor`, fast ones kept, those between are blended."""
    assert rope.original_max_position is not None
    old_length, low, high = rope.original_max_position, rope.low_freq_factor, rope.high_freq_factor
    wavelength = 2 * math.pi / inv_freq
    scaled = torch.where(wavelength > old_length / low, inv_freq / rope.factor, inv_freq)
    blend = (old_length / wavelength - low) / (high - low)
    blended = (1 - blend) * scaled / rope.factor + blend * scaled
    between = ~(wavelength < old_length / high) & ~(wavelength > old_length / low)
    return torch.where(between, blended, scaled)


def _yarn(rope: RopeConfig, head_dim: int) -> Tensor:
    """YaRN: pairs that turn often within the trained length are kept, those that turn rarely interpolated."""
    frequencies = rope.theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    low, high = (_pair_that_turns(n, rope, head_dim) for n in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    kept = 1 - ramp
    return 1.0 / (rope.factor * frequencies) * (1 - kept) + 1.0 / frequencies * kept


def _pair_that_turns(rotations: float, rope: RopeConfig, head_dim: int) -> float:
    """Index of the pair that makes this many full turns within the trained length."""
    assert rope.original_max_position is not None
    turns = rope.original_max_position / (rotations * 2 * math.pi)
    return head_dim * math.log(turns) / (2 * math.log(rope.theta))


def _yarn_attention_factor(rope: RopeConfig) -> float:
    """YaRN sharpens attention over long contexts; the factor rides on the cosines and sines."""
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return _mscale(rope.factor, rope.mscale) / _mscale(rope.factor, rope.mscale_all_dim)
    return _mscale(rope.factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
