"""Rotary position embedding as a config.json describes it, in the spelling of every year.

Which base frequency, and for long contexts how frequencies are rescaled; `rotary_embedding.py` makes the
table of it. Upstream: vllm/transformers_utils/config.py (patch_rope_parameters).
"""

from __future__ import annotations

from dataclasses import dataclass

from learnvllm.architecture.errors import ModelLoadError
from learnvllm.architecture.json_fields import Fields

FULL_ATTENTION = "full_attention"
SLIDING_ATTENTION = "sliding_attention"


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: base frequency and, for long contexts, how frequencies are rescaled."""

    theta: float = 10000.0
    rope_type: str = "default"
    """default, linear, llama3 or yarn."""
    factor: float = 1.0
    original_max_position: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


def parse_rope(config: Fields, model_type: str) -> tuple[RopeConfig, RopeConfig | None]:
    """Both spellings: `rope_parameters` (transformers >= 5) and `rope_theta` + `rope_scaling` (before)."""
    gemma = model_type == "gemma3_text"
    theta = config.number("rope_theta", 1_000_000.0 if gemma else 10_000.0)
    local_theta = config.number("rope_local_base_freq", 10_000.0)
    parameters, scaling = config.section("rope_parameters"), config.section("rope_scaling")
    if FULL_ATTENTION in parameters or SLIDING_ATTENTION in parameters:  # one set per layer type
        full, local = parameters.section(FULL_ATTENTION), parameters.section(SLIDING_ATTENTION)
        full = Fields({**full.values, **scaling.values}, config.where)
        return _one_rope(full, config, theta), _one_rope(local, config, local_theta)
    # Where both are there, the older is what somebody has added by hand, as models' cards tell one to.
    # Gemma 3's parameters are by layer type: transformers reads no others.
    given = scaling if scaling.values or gemma else parameters
    return _one_rope(given, config, theta), RopeConfig(theta=local_theta) if gemma else None


def _one_rope(p: Fields, config: Fields, default_theta: float) -> RopeConfig:
    rope_type = p.text("rope_type", p.text("type", "default"))
    if rope_type not in ("default", "linear", "llama3", "yarn"):
        raise ModelLoadError(
            f"rope_type {rope_type!r} is not implemented. Implemented: default, linear, llama3, yarn.",
            parameter="rope_type",
            value=rope_type,
        )
    partial = p.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise ModelLoadError(
            f"partial_rotary_factor={partial}: rotating part of a head is not implemented.",
            parameter="partial_rotary_factor",
            value=partial,
        )
    name, max_position = "original_max_position_embeddings", config.integer("max_position_embeddings")
    original = config.optional_integer(name) or p.optional_integer(name)
    if rope_type in ("llama3", "yarn"):
        original = original or max_position
    no_factor = {"default": 1.0, "yarn": max_position / (original or max_position)}
    rope = RopeConfig(
        theta=p.number("rope_theta", default_theta),
        rope_type=rope_type,
        factor=p.number("factor", no_factor.get(rope_type)),
        original_max_position=original,
        low_freq_factor=p.number("low_freq_factor", 1.0),
        high_freq_factor=p.number("high_freq_factor", 4.0),
        beta_fast=p.number("beta_fast", 32.0),
        beta_slow=p.number("beta_slow", 1.0),
        attention_factor=p.optional_number("attention_factor"),
        mscale=p.optional_number("mscale"),
        mscale_all_dim=p.optional_number("mscale_all_dim"),
        truncate=p.flag("truncate", True),
    )
    if rope.theta <= 1:
        raise p.error("rope_theta", rope.theta, "must be above 1: its powers are the wavelengths")
    if rope.low_freq_factor >= rope.high_freq_factor:
        raise p.error("low_freq_factor", rope.low_freq_factor, "must be below high_freq_factor")
    return rope
