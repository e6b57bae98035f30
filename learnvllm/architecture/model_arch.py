"""What a model is made of, read from its `config.json` without importing transformers.

The scheduler needs its length limit, the KV cache its layer types, the model its sizes: all read this one
frozen description. Upstream namesake: vllm/config/model_arch.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learnvllm.architecture.errors import ModelLoadError
from learnvllm.architecture.json_fields import Fields, read_json
from learnvllm.architecture.moe_config import MoEConfig, parse_moe
from learnvllm.architecture.rope_config import FULL_ATTENTION, SLIDING_ATTENTION, RopeConfig, parse_rope

MODEL_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}
"""What is implemented: config.json's model_type -> the class in its `architectures`, which is also ours."""
MOST_LAYERS = 10_000


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
    torch_dtype: str
    moe: MoEConfig | None = None
    """The experts of its sparse layers; None for a dense model."""

    @classmethod
    def from_directory(cls, path: Path) -> ModelArchitecture:
        """Read `path/config.json` (and `generation_config.json` for more end-of-sequence ids).

        Raises:
            ModelLoadError: no config, broken JSON, an unknown architecture, a field that is missing or wrong.
        """
        config_path = path / "config.json"
        if not config_path.is_file():
            raise ModelLoadError(
                f"{path} has no config.json, so it is not a model directory. Give a directory with "
                "config.json, tokenizer.json and *.safetensors, or a .gguf file.",
                parameter="model",
                value=str(path),
            )
        generation = path / "generation_config.json"
        return cls.from_fields(
            read_json(config_path), read_json(generation) if generation.is_file() else None
        )

    @classmethod
    def from_fields(cls, config: Fields, generation: Fields | None = None) -> ModelArchitecture:
        """As `from_directory`, from what the two files hold."""
        model_type = _model_type(config)
        config = Fields({**_CLASS_DEFAULTS.get(model_type, {}), **config.values}, config.where)
        _refuse_unsupported(config)
        num_layers = config.integer("num_hidden_layers", most=MOST_LAYERS)
        heads = config.integer("num_attention_heads")
        hidden = config.integer("hidden_size")
        window = _sliding_window(config, model_type)
        rope, rope_local = parse_rope(config, model_type)
        gemma = model_type == "gemma3_text"
        has_bias = config.flag("attention_bias", False)
        arch = cls(
            model_type=model_type,
            vocab_size=config.integer("vocab_size"),
            hidden_size=hidden,
            intermediate_size=config.integer("intermediate_size"),
            num_layers=num_layers,
            num_attention_heads=heads,
            num_kv_heads=config.integer("num_key_value_heads", heads),
            head_dim=config.integer("head_dim", hidden // heads),
            max_position_embeddings=config.integer("max_position_embeddings"),
            rms_norm_eps=config.number("rms_norm_eps", 1e-6),
            hidden_act=_activation(config, model_type),
            tie_word_embeddings=config.flag("tie_word_embeddings", gemma),
            attention_bias=model_type == "qwen2" or has_bias,
            attention_out_bias=model_type != "qwen2" and has_bias,
            mlp_bias=config.flag("mlp_bias", False),
            rope=rope,
            rope_local=rope_local,
            layer_types=_layer_types(config, model_type, num_layers, window),
            sliding_window=window,
            query_pre_attn_scalar=config.optional_number("query_pre_attn_scalar") if gemma else None,
            eos_token_ids=_token_ids("eos_token_id", config, generation),
            torch_dtype=config.text("dtype", config.text("torch_dtype", "float32")),
            moe=parse_moe(config, model_type, num_layers),
        )
        _check_heads(config, arch)
        return arch


_CLASS_DEFAULTS: dict[str, dict[str, Any]] = {
    "qwen2": {"sliding_window": 4096, "num_key_value_heads": 32},
    "qwen3": {"sliding_window": 4096, "num_key_value_heads": 32, "head_dim": 128},
    "qwen3_moe": {"sliding_window": 4096, "num_key_value_heads": 4},
    "gemma3_text": {
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh",
    },
}
"""What a config.json means that does not name a field: transformers' defaults, where they differ by model."""


def _model_type(config: Fields) -> str:
    model_type = config.text("model_type", "<missing>")
    if model_type not in MODEL_CLASSES:
        raise ModelLoadError(
            f"model_type {model_type!r} is not implemented. Implemented: {', '.join(MODEL_CLASSES)}.",
            parameter="model_type",
            value=model_type,
        )
    return model_type


def _check_heads(config: Fields, arch: ModelArchitecture) -> None:
    if arch.num_attention_heads % arch.num_kv_heads:
        raise ModelLoadError(
            f"num_attention_heads={arch.num_attention_heads} must be a multiple of "
            f"num_key_value_heads={arch.num_kv_heads}.",
            parameter="num_key_value_heads",
            value=arch.num_kv_heads,
        )
    if arch.head_dim < 1 or arch.head_dim % 2:
        rule = "must be even and at least 2: rotary embedding pairs a head's elements"
        raise config.error("head_dim", arch.head_dim, rule)


_UNSUPPORTED = {
    "quantization_config": "quantized checkpoints come with Day 7",
    "attn_logit_softcapping": "capped attention scores are not implemented",
    "final_logit_softcapping": "capped logits are not implemented",
    "use_bidirectional_attention": "only causal attention is implemented",
}
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_pytorch_tanh"}


def _refuse_unsupported(config: Fields) -> None:
    """Settings that change what the model computes and that no layer here knows."""
    for name, why in _UNSUPPORTED.items():
        value = config.values.get(name)
        if value:
            raise ModelLoadError(f"config.json sets {name}: {why}.", parameter=name, value=value)


def _activation(config: Fields, model_type: str) -> str:
    name = config.text("hidden_act", "silu")
    if model_type == "gemma3_text":  # its own name for it; others leave such a field alone
        name = config.text("hidden_activation", name)
    if name not in _ACTIVATIONS:
        raise ModelLoadError(
            f"hidden_act {name!r} is not implemented. Implemented: {', '.join(_ACTIVATIONS)}.",
            parameter="hidden_act",
            value=name,
        )
    return _ACTIVATIONS[name]


def _sliding_window(config: Fields, model_type: str) -> int | None:
    if model_type == "llama":
        return None  # transformers' Llama has no window, whatever the config says
    if model_type.startswith("qwen") and not config.flag("use_sliding_window", False):
        return None  # these configs name a window even when it is switched off
    return config.optional_integer("sliding_window")


def _layer_types(config: Fields, model_type: str, num_layers: int, window: int | None) -> tuple[str, ...]:
    if model_type == "qwen3_moe":  # a window is every layer's; transformers asks no layer_types
        return (SLIDING_ATTENTION if window else FULL_ATTENTION,) * num_layers
    given = config.items("layer_types")
    if given:
        unknown = [kind for kind in given if kind not in (FULL_ATTENTION, SLIDING_ATTENTION)]
        if unknown:
            raise ModelLoadError(
                f"layer types {unknown[:3]} are not implemented.", parameter="layer_types", value=unknown
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
                value=config.values.get("sliding_window"),
            )
        return tuple(given)
    if window is None:
        return (FULL_ATTENTION,) * num_layers
    if model_type == "gemma3_text":
        pattern = config.integer("sliding_window_pattern", 6)
        return tuple(SLIDING_ATTENTION if (i + 1) % pattern else FULL_ATTENTION for i in range(num_layers))
    first_sliding = config.integer("max_window_layers", 28, least=0)
    return tuple(SLIDING_ATTENTION if i >= first_sliding else FULL_ATTENTION for i in range(num_layers))


def _token_ids(name: str, *sources: Fields | None) -> tuple[int, ...]:
    """A token id or a list of them, from every source, each once."""
    ids: list[int] = []
    for source in sources:
        value = None if source is None else source.values.get(name)
        for token in value if isinstance(value, list) else [value]:
            if source is not None and token is not None:
                ids.append(source.as_integer(name, token, least=0))
    return tuple(dict.fromkeys(ids))
