"""What a model is made of, read from its `config.json` without importing transformers.

The scheduler needs its length limit, the KV cache its layer types, the model its sizes: all read this one
frozen description. Upstream namesake: vllm/config/model_arch.py.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learnvllm.architecture.errors import ModelLoadError

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


@dataclass(frozen=True)
class ModelArchitecture:
    """Sizes and kinds of layers of a decoder-only model. Lengths are in tokens, sizes in elements."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    hidden_act: str
    tie_word_embeddings: bool
    attention_bias: bool
    """Bias on the q, k and v projections."""
    attention_out_bias: bool
    mlp_bias: bool
    rope: RopeConfig
    rope_local: RopeConfig | None
    """For sliding layers where they differ (Gemma 3)."""
    layer_types: tuple[str, ...]
    """full_attention or sliding_attention, one per layer."""
    sliding_window: int | None
    """Tokens a sliding layer sees, the current one included."""
    query_pre_attn_scalar: float | None
    """Gemma 3: attention scale is this to the power -1/2 instead of head_dim."""
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    torch_dtype: str

    @classmethod
    def from_directory(cls, path: Path) -> ModelArchitecture:
        """Read `path/config.json` (and `generation_config.json` for more end-of-sequence ids).

        Raises:
            ModelLoadError: no config, broken JSON, an unknown architecture or a missing field.
        """
        config_path = path / "config.json"
        if not config_path.is_file():
            raise ModelLoadError(
                f"{path} has no config.json, so it is not a model directory. Give a directory with "
                "config.json, tokenizer.json and *.safetensors, or a .gguf file.",
                parameter="model",
                value=str(path),
            )
        config = _read_json(config_path)
        generation = path / "generation_config.json"
        extra_eos = _read_json(generation).get("eos_token_id") if generation.is_file() else None
        try:
            return _parse(config, extra_eos)
        except KeyError as missing:
            raise ModelLoadError(
                f"{config_path} lacks the field {missing}.", parameter="model", value=str(path)
            ) from None
        except (TypeError, ValueError) as error:
            if isinstance(error, ModelLoadError):
                raise
            raise ModelLoadError(
                f"{config_path} has a field of the wrong type: {error}.", parameter="model", value=str(path)
            ) from None


SUPPORTED_MODEL_TYPES = ("llama", "qwen2", "qwen3", "gemma3_text")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(
            f"{path} cannot be read as JSON: {error}.", parameter="model", value=str(path)
        ) from None
    if not isinstance(data, dict):
        raise ModelLoadError(f"{path} must hold a JSON object.", parameter="model", value=str(path))
    return data


def _parse(config: dict[str, Any], extra_eos: Any) -> ModelArchitecture:
    model_type = config.get("model_type", "<missing>")
    if model_type not in SUPPORTED_MODEL_TYPES:
        raise ModelLoadError(
            f"model_type {model_type!r} is not implemented. Implemented: {', '.join(SUPPORTED_MODEL_TYPES)}.",
            parameter="model_type",
            value=model_type,
        )
    _refuse_unsupported(config)
    num_layers = int(config["num_hidden_layers"])
    heads = int(config["num_attention_heads"])
    hidden = int(config["hidden_size"])
    sliding_window = _sliding_window(config, model_type)
    rope, rope_local = _parse_rope(config, model_type)
    has_qkv_bias = model_type == "qwen2" or bool(config.get("attention_bias", False))
    arch = ModelArchitecture(
        model_type=model_type,
        vocab_size=int(config["vocab_size"]),
        hidden_size=hidden,
        intermediate_size=int(config["intermediate_size"]),
        num_layers=num_layers,
        num_attention_heads=heads,
        num_kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        max_position_embeddings=int(config["max_position_embeddings"]),
        rms_norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        hidden_act=_activation(config),
        tie_word_embeddings=bool(config.get("tie_word_embeddings", model_type == "gemma3_text")),
        attention_bias=has_qkv_bias,
        attention_out_bias=model_type != "qwen2" and bool(config.get("attention_bias", False)),
        mlp_bias=bool(config.get("mlp_bias", False)),
        rope=rope,
        rope_local=rope_local,
        layer_types=_layer_types(config, model_type, num_layers, sliding_window),
        sliding_window=sliding_window,
        query_pre_attn_scalar=config.get("query_pre_attn_scalar") if model_type == "gemma3_text" else None,
        eos_token_ids=_merge_ids(config.get("eos_token_id"), extra_eos),
        bos_token_id=config.get("bos_token_id"),
        torch_dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
    )
    _check_sizes(arch)
    return arch


def _check_sizes(arch: ModelArchitecture) -> None:
    sizes = {
        "vocab_size": arch.vocab_size,
        "hidden_size": arch.hidden_size,
        "intermediate_size": arch.intermediate_size,
        "num_hidden_layers": arch.num_layers,
        "num_attention_heads": arch.num_attention_heads,
        "num_key_value_heads": arch.num_kv_heads,
        "head_dim": arch.head_dim,
        "max_position_embeddings": arch.max_position_embeddings,
        "sliding_window": 1 if arch.sliding_window is None else arch.sliding_window,
    }
    for name, value in sizes.items():
        if value < 1:
            raise ModelLoadError(f"{name}={value}: {name} must be at least 1.", parameter=name, value=value)
    if arch.num_attention_heads % arch.num_kv_heads:
        raise ModelLoadError(
            f"num_attention_heads={arch.num_attention_heads} must be a multiple of "
            f"num_key_value_heads={arch.num_kv_heads}.",
            parameter="num_key_value_heads",
            value=arch.num_kv_heads,
        )


_MEANT_TO_BE_UNSET = {
    "quantization_config": "quantized checkpoints come with Day 7",
    "attn_logit_softcapping": "capped attention scores are not implemented",
    "final_logit_softcapping": "capped logits are not implemented",
    "use_bidirectional_attention": "only causal attention is implemented",
}
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_pytorch_tanh"}


def _refuse_unsupported(config: dict[str, Any]) -> None:
    """Settings that change what the model computes and that no layer here knows."""
    for name, why in _MEANT_TO_BE_UNSET.items():
        if config.get(name):
            raise ModelLoadError(f"config.json sets {name}: {why}.", parameter=name, value=config[name])


def _activation(config: dict[str, Any]) -> str:
    name = str(config.get("hidden_activation") or config.get("hidden_act") or "silu")
    if name not in _ACTIVATIONS:
        raise ModelLoadError(
            f"hidden_act {name!r} is not implemented. Implemented: {', '.join(_ACTIVATIONS)}.",
            parameter="hidden_act",
            value=name,
        )
    return _ACTIVATIONS[name]


def _sliding_window(config: dict[str, Any], model_type: str) -> int | None:
    if model_type == "llama":
        return None  # transformers' Llama has no window, whatever the config says
    window = config.get("sliding_window")
    if model_type in ("qwen2", "qwen3") and not config.get("use_sliding_window", False):
        return None  # these configs name a window even when it is switched off
    return int(window) if window else None


def _layer_types(
    config: dict[str, Any], model_type: str, num_layers: int, window: int | None
) -> tuple[str, ...]:
    given = config.get("layer_types")
    if given:
        unknown = sorted(set(given) - {FULL_ATTENTION, SLIDING_ATTENTION})
        if unknown:
            raise ModelLoadError(
                f"layer types {unknown} are not implemented.", parameter="layer_types", value=unknown
            )
        if len(given) != num_layers:
            raise ModelLoadError(
                f"layer_types names {len(given)} layers but num_hidden_layers is {num_layers}.",
                parameter="layer_types",
                value=len(given),
            )
        if SLIDING_ATTENTION in given and window is None:
            raise ModelLoadError(
                "layer_types names sliding_attention but config.json sets no sliding_window.",
                parameter="sliding_window",
                value=config.get("sliding_window"),
            )
        return tuple(given)
    if window is None:
        return (FULL_ATTENTION,) * num_layers
    if model_type == "gemma3_text":
        pattern = int(config.get("sliding_window_pattern") or 6)
        return tuple(SLIDING_ATTENTION if (i + 1) % pattern else FULL_ATTENTION for i in range(num_layers))
    first_sliding = int(config.get("max_window_layers", 28))
    return tuple(SLIDING_ATTENTION if i >= first_sliding else FULL_ATTENTION for i in range(num_layers))


def _parse_rope(config: dict[str, Any], model_type: str) -> tuple[RopeConfig, RopeConfig | None]:
    """Both spellings: `rope_parameters` (transformers >= 5) and `rope_theta` + `rope_scaling` (before)."""
    gemma = model_type == "gemma3_text"
    theta = float(config.get("rope_theta") or (1_000_000.0 if gemma else 10_000.0))
    local_theta = float(config.get("rope_local_base_freq") or 10_000.0)
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if FULL_ATTENTION in given or SLIDING_ATTENTION in given:  # one set per layer type
        full, local = given.get(FULL_ATTENTION) or {}, given.get(SLIDING_ATTENTION) or {}
        return _one_rope(full, config, theta), _one_rope(local, config, local_theta)
    return _one_rope(given, config, theta), RopeConfig(theta=local_theta) if gemma else None


def _one_rope(p: dict[str, Any], config: dict[str, Any], default_theta: float) -> RopeConfig:
    rope_type = p.get("rope_type") or p.get("type") or "default"
    if rope_type not in ("default", "linear", "llama3", "yarn"):
        raise ModelLoadError(
            f"rope_type {rope_type!r} is not implemented. Implemented: default, linear, llama3, yarn.",
            parameter="rope_type",
            value=rope_type,
        )
    partial = p.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise ModelLoadError(
            f"partial_rotary_factor={partial}: rotating part of a head is not implemented.",
            parameter="partial_rotary_factor",
            value=partial,
        )
    original = config.get("original_max_position_embeddings") or p.get("original_max_position_embeddings")
    if rope_type in ("llama3", "yarn"):
        original = original or config["max_position_embeddings"]
    factor = p.get("factor")
    if factor is None and rope_type == "yarn":
        factor = config["max_position_embeddings"] / original
    elif factor is None and rope_type != "default":
        raise KeyError("factor")
    return RopeConfig(
        theta=float(p.get("rope_theta") or default_theta),
        rope_type=rope_type,
        factor=float(factor or 1.0),
        original_max_position=int(original) if original else None,
        low_freq_factor=float(p.get("low_freq_factor", 1.0)),
        high_freq_factor=float(p.get("high_freq_factor", 4.0)),
        beta_fast=float(p.get("beta_fast") or 32.0),
        beta_slow=float(p.get("beta_slow") or 1.0),
        attention_factor=p.get("attention_factor"),
        mscale=p.get("mscale"),
        mscale_all_dim=p.get("mscale_all_dim"),
        truncate=bool(p.get("truncate", True)),
    )


def _merge_ids(*sources: Any) -> tuple[int, ...]:
    ids: list[int] = []
    for source in sources:
        for token in source if isinstance(source, list) else [source]:
            if token is not None and token not in ids:
                ids.append(int(token))
    return tuple(ids)
