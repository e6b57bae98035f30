"""A GGUF file becomes a model directory that computes what the original computes, or a clear refusal."""

from __future__ import annotations

import contextlib
import math
import struct
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learnvllm.architecture.errors import ModelLoadError
from learnvllm.model_layers.loading.gguf_config import model_config
from learnvllm.model_layers.loading.gguf_convert import convert_gguf
from learnvllm.model_layers.loading.gguf_reader import GGUFFile
from tests.model_layers.paged_driver import PagedDriver, reference_logits
from tests.model_layers.test_models import load_exact
from tests.model_layers.tiny_gguf import Q, dequantized_copy, write_tiny_gguf
from tests.model_layers.tiny_models import make_tiny_model

TOKENS = [7, 300, 45, 46, 102, 9, 31, 250, 17, 88, 5, 6, 7, 8, 201, 202, 203, 19, 77, 140, 90, 3, 4]
# Gemma 3 in GGUF always has a global layer every sixth; sizes are multiples of a quantization block.
FOR_GGUF: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 128},
    "qwen2": {"intermediate_size": 128},
    "qwen3": {"intermediate_size": 128, "head_dim": 24},
    "gemma3": {
        "intermediate_size": 128,
        "num_hidden_layers": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "query_pre_attn_scalar": 32,
    },
}


def make_gguf(kind: str, folder: Path, quantization: Q = Q.F32, **extra: Any) -> tuple[Path, Any]:
    _, hf = make_tiny_model(kind, folder, **FOR_GGUF[kind])
    if quantization != Q.F32:
        dequantized_copy(hf, quantization)
    return write_tiny_gguf(kind, hf, folder / "model.gguf", quantization, extra), hf


def convert(source: Path) -> Path:
    directory = source.parent / "converted"
    directory.mkdir()
    convert_gguf(source, directory, progress=False)
    return directory


@pytest.mark.parametrize("kind", FOR_GGUF)
def test_a_converted_file_computes_what_the_original_model_computes(kind: str, tmp_path: Path) -> None:
    source, hf = make_gguf(kind, tmp_path)
    model = load_exact(convert(source))
    logits = PagedDriver(model, block_size=8).step({"a": TOKENS})["a"]
    torch.testing.assert_close(logits, reference_logits(hf, TOKENS), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_transformers_reads_the_converted_directory_and_agrees(kind: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, hf = make_gguf(kind, tmp_path)
    directory = convert(source)
    again = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    torch.testing.assert_close(
        reference_logits(again, TOKENS), reference_logits(hf, TOKENS), rtol=1e-5, atol=1e-4
    )
    tokenizer = AutoTokenizer.from_pretrained(directory)
    assert tokenizer.eos_token_id == 2
    assert tokenizer.decode(tokenizer("hello the world ½")["input_ids"]) == "hello the world ½"


@pytest.mark.parametrize("quantization", [Q.Q8_0, Q.Q4_1, Q.F16, Q.BF16], ids=lambda q: q.name)
def test_quantized_weights_arrive_with_every_bit(quantization: Q, tmp_path: Path) -> None:
    source, hf = make_gguf("llama", tmp_path, quantization)
    directory = convert(source)
    from safetensors.torch import load_file

    tensors = load_file(directory / "model.safetensors")
    for name, parameter in hf.state_dict().items():
        assert torch.equal(tensors[name].float(), parameter), name
    wanted = {Q.F16: torch.float16, Q.BF16: torch.bfloat16}.get(quantization, torch.float32)
    assert tensors["model.layers.0.mlp.up_proj.weight"].dtype == wanted


def test_llama_3_frequencies_are_recognized_and_others_refused(tmp_path: Path) -> None:
    _, hf = make_tiny_model("llama", tmp_path, **FOR_GGUF["llama"])
    divisors = llama3_divisors(hf.config.head_dim, 10000.0, factor=32.0)
    path = tmp_path / "model.gguf"
    with GGUFFile(write_tiny_gguf("llama", hf, path, extra_tensors={"rope_freqs.weight": divisors})) as f:
        scaling = model_config(f)["rope_scaling"]
    assert (scaling["rope_type"], scaling["factor"]) == ("llama3", 32.0)
    other = {"rope_freqs.weight": divisors * np.float32(1.5)}
    write_tiny_gguf("llama", hf, path, extra_tensors=other)
    with GGUFFile(path) as f, pytest.raises(ModelLoadError, match="rope_freqs"):
        model_config(f)


def llama3_divisors(head_dim: int, theta: float, factor: float) -> np.ndarray:
    """As llama.cpp's converter writes rope_freqs.weight for Llama 3."""
    divisors = []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (i / head_dim)
        if wavelength < 8192 / 4:
            divisors.append(1.0)
        elif wavelength > 8192:
            divisors.append(factor)
        else:
            smooth = (8192 / wavelength - 1) / 3
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, dtype=np.float32)


# ------------------------------------------------------------------------------------------- refusals


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "rwkv7")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelLoadError, match=r"'rwkv7'.*Implemented: llama, qwen2, qwen3, gemma3\."):
        convert(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"tokenizer.ggml.pre": "tekken"}, "tekken.*Implemented: gpt-2, smollm, llama-bpe, qwen2"),
        ({"tokenizer.ggml.model": "rwkv"}, "tokenizer.ggml.model='rwkv'"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
        ({"llama.rope.dimension_count": 8}, "only part of each head"),
        ({"llama.attention.head_count": 0}, "head_count must be at least 1"),
        ({"llama.attention.head_count_kv": [2, 2]}, "head_count_kv must be a whole number"),
        ({"llama.attention.head_count_kv": 3}, "multiple of num_key_value_heads"),
        ({"llama.embedding_length": "64"}, "embedding_length must be a whole number"),
        ({"llama.rope.freq_base": 0.0}, "freq_base must be finite and above 0"),
        ({"llama.rope.scaling.type": 3}, "scaling.type must be a text"),
        (
            {"llama.attention.head_count": 5, "llama.attention.head_count_kv": 5},
            r"attn_[qk]\.weight of shape .* does not fit its number of heads",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_implemented_is_refused(extra: dict[str, Any], message: str, tmp_path: Path) -> None:
    source, _ = make_gguf("llama", tmp_path, **extra)
    with pytest.raises(ModelLoadError, match=message):
        convert(source)


def test_other_files_are_not_taken_for_gguf(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with pytest.raises(ModelLoadError, match="does not exist"):
        GGUFFile(path)
    path.write_bytes(b"")
    with pytest.raises(ModelLoadError, match="not a GGUF file"):
        GGUFFile(path)
    path.write_bytes(b"PK\x03\x04" + b"\0" * 100)
    with pytest.raises(ModelLoadError, match="not a GGUF file"):
        GGUFFile(path)
    path.write_bytes(b"GGUF\x03\0\0\0")
    with pytest.raises(ModelLoadError, match="truncated"):
        GGUFFile(path)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0) + b"\0" * 8)
    with pytest.raises(ModelLoadError, match="version 1"):
        GGUFFile(path)


@pytest.fixture(scope="module")
def small_gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    source, _ = make_gguf("llama", tmp_path_factory.mktemp("gguf"))
    return source.read_bytes()


@given(data=st.data())
def test_a_file_cut_anywhere_is_refused_as_truncated(data: st.DataObject, small_gguf: bytes) -> None:
    keep = data.draw(st.integers(4, len(small_gguf) - 1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cut.gguf"
        path.write_bytes(small_gguf[:keep])
        if keep >= end_of_data(small_gguf):
            return  # only padding was lost
        with pytest.raises(ModelLoadError, match="truncated"):
            GGUFFile(path)


@given(data=st.data())
def test_a_damaged_header_is_an_error_with_a_name_never_a_crash(
    data: st.DataObject, small_gguf: bytes
) -> None:
    damaged = bytearray(small_gguf)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(4, 4000))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged.gguf"
        path.write_bytes(bytes(damaged))
        with contextlib.suppress(
            ModelLoadError
        ):  # any other exception is a crash; harmless damage raises none
            GGUFFile(path)


def end_of_data(content: bytes) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "whole.gguf"
        path.write_bytes(content)
        with GGUFFile(path) as whole:
            return max(t.offset + t.num_bytes for t in whole.tensors.values())
