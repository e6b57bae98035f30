"""From a GGUF file's metadata to the `config.json` that the same model has in transformers.

Namesake: transformers' modeling_gguf_pytorch_utils.py. vLLM 0.33.0 reads GGUF only through a plugin.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from learnvllm.architecture.errors import ModelLoadError
from learnvllm.architecture.json_fields import Fields
from learnvllm.architecture.model_arch import MODEL_CLASSES, MOST_LAYERS, ModelArchitecture
from learnvllm.architecture.moe_config import MOE_MODEL_TYPES
from learnvllm.model_layers.loading.gguf_reader import GGUFFile

MODEL_TYPES = {
    model_type.removesuffix("_text"): model_type
    for model_type in MODEL_CLASSES
    if model_type not in MOE_MODEL_TYPES
}
"""GGUF's name of an architecture -> the model_type in config.json."""


def model_config(gguf: GGUFFile) -> dict[str, Any]:
    """The contents of config.json.

    Raises:
        ModelLoadError: the architecture or its rope is not implemented, or a value is missing or nonsense.
    """
    name = gguf.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in MODEL_TYPES:
        raise ModelLoadError(
            f"{gguf.path} is of architecture {name!r}, which is not implemented. "
            f"Implemented: {', '.join(MODEL_TYPES)}.",
            parameter="general.architecture",
            value=name,
        )
    if gguf.metadata.get(f"{name}.expert_count"):
        raise ModelLoadError(
            f"{gguf.path} is a mixture of experts, which is not implemented for GGUF.",
            parameter=f"{name}.expert_count",
            value=gguf.metadata[f"{name}.expert_count"],
        )
    config = _config(gguf, name, Fields(gguf.metadata, str(gguf.path)))
    ModelArchitecture.from_fields(Fields(config, str(gguf.path)))  # what it asks of a config.json holds here
    return config


def _config(gguf: GGUFFile, name: str, meta: Fields) -> dict[str, Any]:
    model_type = MODEL_TYPES[name]
    hidden, heads = meta.integer(f"{name}.embedding_length"), meta.integer(f"{name}.attention.head_count")
    head_dim = meta.integer(f"{name}.attention.key_length", hidden // heads)
    if "token_embd.weight" not in gguf.tensors or len(gguf.tensors["token_embd.weight"].shape) != 2:
        raise ModelLoadError(
            f"{gguf.path} has no token_embd.weight.", parameter="model", value=str(gguf.path)
        )
    config: dict[str, Any] = {
        "architectures": [MODEL_CLASSES[model_type]],
        "model_type": model_type,
        "vocab_size": gguf.tensors["token_embd.weight"].shape[0],
        "hidden_size": hidden,
        "intermediate_size": meta.integer(f"{name}.feed_forward_length"),
        "num_hidden_layers": meta.integer(f"{name}.block_count", most=MOST_LAYERS),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.integer(f"{name}.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": meta.integer(f"{name}.context_length"),
        "rms_norm_eps": _shortest(meta.number(f"{name}.attention.layer_norm_rms_epsilon")),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "rope_theta": _shortest(meta.number(f"{name}.rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(gguf, name, meta, head_dim),
        "attention_bias": model_type != "qwen2" and "blk.0.attn_q.bias" in gguf.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in gguf.tensors,
        "torch_dtype": "float32",
        **_special_ids(meta),
    }
    if model_type == "gemma3_text":
        config |= _gemma(meta, config)
    else:
        config["hidden_act"] = "silu"
    return {key: value for key, value in config.items() if value is not None}


def _shortest(value: float) -> float:
    """The shortest decimal that is this float32: the file's 9.999999747378752e-06 was somebody's 1e-05."""
    return float(str(np.float32(value)))


def _special_ids(meta: Fields) -> dict[str, Any]:
    def special(kind: str) -> int | None:
        return meta.optional_integer(f"tokenizer.ggml.{kind}_token_id", least=0)

    unique = list(dict.fromkeys(token for token in (special("eos"), special("eot")) if token is not None))
    return {
        "bos_token_id": special("bos"),
        "eos_token_id": unique[0] if len(unique) == 1 else unique or None,
        "pad_token_id": special("padding"),
    }


def _gemma(meta: Fields, config: dict[str, Any]) -> dict[str, Any]:
    layers, pattern = config["num_hidden_layers"], 6
    # Of all sizes only 27B scales scores by hidden_size / heads (llama.cpp: src/models/gemma3.cpp).
    scale_of = config["hidden_size"] // config["num_attention_heads"] if layers == 62 else config["head_dim"]
    scaling = config["rope_scaling"] or {"rope_type": "default"}
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": scale_of,
        "sliding_window": meta.integer("gemma3.attention.sliding_window"),
        "layer_types": [
            "sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(layers)
        ],
        "final_logit_softcapping": meta.optional_number("gemma3.final_logit_softcapping"),
        "rope_theta": None,
        "rope_scaling": None,
        "rope_parameters": {
            "full_attention": {**scaling, "rope_theta": config["rope_theta"]},
            "sliding_attention": {
                "rope_type": "default",
                "rope_theta": _shortest(meta.number("gemma3.rope.freq_base_swa", 10000.0)),
            },
        },
    }


def _rope_scaling(gguf: GGUFFile, name: str, meta: Fields, head_dim: int) -> dict[str, Any] | None:
    rotated = meta.integer(f"{name}.rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise ModelLoadError(
            f"{gguf.path} rotates only part of each head, which is not implemented.",
            parameter=f"{name}.rope.dimension_count",
            value=rotated,
        )
    if "rope_freqs.weight" in gguf.tensors:
        return _llama3_scaling(gguf, meta.number(f"{name}.rope.freq_base", 10000.0), head_dim)
    kind = meta.text(f"{name}.rope.scaling.type", "none")
    factor = meta.optional_number(f"{name}.rope.scaling.factor")
    if factor is None:
        factor = meta.optional_number(f"{name}.rope.scale_linear")
    if kind == "none" and factor in (None, 1.0):
        return None
    scaling: dict[str, Any] = {"rope_type": kind, "factor": _shortest(factor or 1.0)}
    if kind == "yarn":
        length = meta.integer(f"{name}.rope.scaling.original_context_length")
        scaling["original_max_position_embeddings"] = length
    elif kind != "linear":
        raise ModelLoadError(
            f"{gguf.path} scales its rope by {kind!r}, which is not implemented. Implemented: linear, yarn.",
            parameter=f"{name}.rope.scaling.type",
            value=kind,
        )
    return scaling


def _llama3_scaling(gguf: GGUFFile, theta: float, head_dim: int) -> dict[str, Any]:
    """Llama 3.1 and later: GGUF stores what each frequency is divided by, not the parameters that led to it.

    All releases use low 1, high 4 and 8192 trained tokens, and differ in the factor, which is the largest
    divisor. The parameters are accepted only when they give the file's numbers.
    """
    divisors, _ = gguf.read("rope_freqs.weight")
    factor, low, high, trained = float(divisors.max()), 1.0, 4.0, 8192
    wavelength = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    blend = np.clip((trained / wavelength - low) / (high - low), 0, 1)
    expected = 1 / ((1 - blend) / factor + blend)
    if divisors.shape != expected.shape or not np.allclose(divisors, expected, rtol=1e-3):
        raise ModelLoadError(
            f"{gguf.path} has rope_freqs that are not those of Llama 3.1; this scaling is not implemented.",
            parameter="rope_freqs.weight",
            value=factor,
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": trained,
    }
