"""Writes a tiny random model as the GGUF file that llama.cpp's converter would make of it.

An independent statement of the format: llama.cpp's names, its order of q and k rows, its 1 + weight norms.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.model_layers.tiny_models import CHAT_TEMPLATE, SPECIAL_TOKENS, tiny_tokenizer

_ARCH = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3"}
Q = gguf.GGMLQuantizationType


def write_tiny_gguf(
    kind: str,
    hf_model: Any,
    path: Path,
    quantization: Q = Q.F32,
    extra: dict[str, Any] | None = None,
    pre: str = "gpt-2",
    extra_tensors: dict[str, np.ndarray] | None = None,
) -> Path:
    """Save `hf_model` (a tiny model of tests.model_layers.tiny_models) at `path`; matrices in `quantization`.

    extra: more metadata, or metadata to overwrite (text, int, float or bool by type).
    """
    writer = gguf.GGUFWriter(path, _ARCH[kind])
    metadata = _metadata(kind, hf_model.config) | tokenizer_metadata(pre) | (extra or {})
    for key, value in metadata.items():
        _add(writer, key, value)
    names = gguf.get_tensor_name_map(_gguf_arch(kind), hf_model.config.num_hidden_layers)
    for name, parameter in hf_model.state_dict().items():
        if name == "lm_head.weight" and hf_model.config.tie_word_embeddings:
            continue
        values = parameter.detach().float().numpy()
        if kind == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = hf_model.config.num_attention_heads
            values = _permute(values, heads if "q_proj" in name else hf_model.config.num_key_value_heads)
        if kind == "gemma3" and name.endswith("norm.weight"):
            values = values + np.float32(1)
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert target is not None, name
        if values.ndim == 2 and quantization != Q.F32:
            data = gguf.quantize(values, quantization)
            writer.add_tensor(target, data, raw_dtype=quantization)
        else:
            writer.add_tensor(target, values)
    for name, values in (extra_tensors or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def dequantized_copy(hf_model: Any, quantization: Q) -> None:
    """Round the model's matrices, in place, to what the quantized file can express."""
    import torch

    for parameter in hf_model.parameters():
        if parameter.ndim == 2:
            values = gguf.dequantize(gguf.quantize(parameter.detach().numpy(), quantization), quantization)
            parameter.data.copy_(torch.from_numpy(values))


def _gguf_arch(kind: str) -> Any:
    return {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[_ARCH[kind]]


def _permute(weights: np.ndarray, num_heads: int) -> np.ndarray:
    """As LlamaModel.permute in llama.cpp's converter."""
    halves = weights.reshape(num_heads, 2, weights.shape[0] // num_heads // 2, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def _metadata(kind: str, config: Any) -> dict[str, Any]:
    arch = _ARCH[kind]
    rope = config.rope_parameters
    full = rope["full_attention"] if kind == "gemma3" else rope
    values: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(full["rope_theta"]),
    }
    if kind in ("qwen3", "gemma3"):
        values["attention.key_length"] = config.head_dim
        values["attention.value_length"] = config.head_dim
    if kind == "gemma3":
        values["attention.sliding_window"] = config.sliding_window
    return {f"{arch}.{key}": value for key, value in values.items()}


def tokenizer_metadata(pre: str) -> dict[str, Any]:
    tokenizer = tiny_tokenizer()
    model = tokenizer_model(tokenizer)
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if t in SPECIAL_TOKENS else 1 for t in tokens],
        "tokenizer.ggml.merges": [" ".join(m) for m in model["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def tokenizer_model(tokenizer: Any) -> dict[str, Any]:
    import json

    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
