"""Converts a GGUF file once into a model directory: config.json, tokenizer files, model.safetensors.

Reading GGUF takes seconds (quantized weights are widened, the tokenizer rebuilt); the directory then loads in
a fraction of one, and transformers reads it too. Weights keep every bit: quantized formats are widened to
fp32. vLLM has no namesake any more: its GGUF loader left for a plugin in the summer of 2026, before 0.33.0.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from learnvllm.architecture.errors import ModelLoadError
from learnvllm.model_layers.loading.gguf_config import model_config
from learnvllm.model_layers.loading.gguf_reader import GGUFFile, GGUFTensor
from learnvllm.model_layers.loading.gguf_tokenizer import convert_tokenizer

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_LAYER = _LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_IGNORED = {"rope_freqs.weight"}  # read by gguf_config

Transform = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class _Out:
    """One tensor to be written."""

    name: str
    source: GGUFTensor
    dtype: str
    transform: Transform | None

    @property
    def num_bytes(self) -> int:
        return math.prod(self.source.shape) * (4 if self.dtype == "F32" else 2)


def convert_gguf(source: Path, directory: Path, progress: bool = True) -> None:
    """Write the converted model into `directory`, which must exist and be empty.

    Raises:
        ModelLoadError: the file is truncated, or its architecture, rope or tokenizer is not implemented.
    """
    with GGUFFile(source) as gguf:
        config = model_config(gguf)
        plan = _plan(gguf, config)
        tokenizer, tokenizer_config = convert_tokenizer(gguf.metadata)
        tokenizer.save(str(directory / "tokenizer.json"))
        generation = {k: config[k] for k in ("bos_token_id", "eos_token_id") if k in config}
        for name, data in (
            ("config.json", config),
            ("tokenizer_config.json", tokenizer_config),
            ("generation_config.json", generation),
        ):
            (directory / name).write_text(
                json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
            )
        _write_safetensors(gguf, plan, directory / "model.safetensors", progress)


def converted_bytes(source: Path) -> int:
    """What `convert_gguf` will write, to a megabyte or so: 16-bit weights stay, quantized ones become fp32.

    Raises:
        ModelLoadError: as `convert_gguf`.
    """
    with GGUFFile(source) as gguf:
        weights = sum(out.num_bytes for out in _plan(gguf, model_config(gguf)))
    return weights + source.stat().st_size // 50 + 1_000_000  # and the tokenizer


def _plan(gguf: GGUFFile, config: dict[str, Any]) -> list[_Out]:
    """What every tensor of the file is called on our side, and what has to be done to its rows."""
    gemma = config["model_type"] == "gemma3_text"
    layer_names = _GEMMA_LAYER if gemma else _LAYER
    plan: list[_Out] = []
    for t in gguf.tensors.values():
        if t.name in _IGNORED:
            continue
        stem, _, kind = t.name.rpartition(".")
        match = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
        target = layer_names.get(match[2]) if match else _TOP.get(stem)
        if target is None:
            raise ModelLoadError(
                f"{gguf.path} has a tensor {t.name!r} that {config['model_type']} has no place for.",
                parameter="model",
                value=t.name,
            )
        name = f"model.layers.{match[1]}.{target}.{kind}" if match else f"{target}.{kind}"
        dtype = t.type_name if t.type_name in ("F16", "BF16") else "F32"
        plan.append(_Out(name, t, dtype, _transform(config, target)))
    return sorted(plan, key=lambda out: out.source.offset)


def _transform(config: dict[str, Any], target: str) -> Transform | None:
    if config["model_type"] == "llama" and target.endswith(("q_proj", "k_proj")):
        heads = config["num_attention_heads" if target.endswith("q_proj") else "num_key_value_heads"]
        return lambda rows: unpermute(rows, heads)
    if config["model_type"] == "gemma3_text" and target.endswith("norm"):
        return lambda weight: weight - np.float32(1)  # llama.cpp stores 1 + weight
    return None


def unpermute(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo llama.cpp's reordering of q and k for its other RoPE pairing (2i with 2i+1, not i with i+D/2).

    rows: [heads * head_dim, ...], for each head: first, middle+1st, second, middle+2nd row and so on.
    """
    paired = rows.reshape(num_heads, rows.shape[0] // num_heads // 2, 2, *rows.shape[1:])
    return paired.swapaxes(1, 2).reshape(rows.shape)


def _write_safetensors(gguf: GGUFFile, plan: list[_Out], path: Path, progress: bool) -> None:
    """Header, then tensor after tensor: at no time is more than one of them in memory."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for out in plan:
        begin, end = end, end + out.num_bytes
        header[out.name] = {"dtype": out.dtype, "shape": list(out.source.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data begins at a multiple of 8
    with (
        path.open("wb") as file,
        tqdm(total=end, unit="B", unit_scale=True, desc="Converting weights", disable=not progress) as bar,
    ):
        file.write(len(text).to_bytes(8, "little") + text)
        for out in plan:
            values, _ = gguf.read(out.source.name)
            if out.transform is not None:
                try:
                    values = out.transform(values)
                except ValueError:
                    raise ModelLoadError(
                        f"{gguf.path} has {out.source.name} of shape {list(out.source.shape)}, which does "
                        "not fit its number of heads.",
                        parameter="model",
                        value=out.source.name,
                    ) from None
            file.write(np.ascontiguousarray(values).data)
            bar.update(values.nbytes)
