"""What is read from a model directory is exactly what its config asks for; all else is named and refused."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from learnvllm.architecture.config import EngineConfig, ModelConfig
from learnvllm.architecture.errors import ModelLoadError
from learnvllm.architecture.model_arch import MODEL_CLASSES, ModelArchitecture
from learnvllm.kv_cache.interface import FullAttentionSpec, SlidingWindowSpec
from learnvllm.model_layers.model import DecoderModel
from learnvllm.model_layers.registry import load_model, model_class
from tests.model_layers.paged_driver import PagedDriver
from tests.model_layers.tiny_models import make_tiny_model

TOKENS = [7, 300, 45, 46, 102, 9, 31, 250, 17, 88]


def engine_config(directory: Path, **model: object) -> EngineConfig:
    arch = ModelArchitecture.from_directory(directory)
    return EngineConfig(ModelConfig("tiny", directory, arch, **model))  # type: ignore[arg-type]


def load(directory: Path, dtype: str = "float32", **model: object) -> DecoderModel:
    return load_model(engine_config(directory, dtype=dtype, **model))


def logits_of(model: DecoderModel) -> torch.Tensor:
    return PagedDriver(model, block_size=8).step({"a": TOKENS})["a"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return make_tiny_model("llama", tmp_path)[0]


def edit_tensors(directory: Path, **changes: torch.Tensor | None) -> None:
    """Replace, add (or, with None, remove) tensors; keyword `a__b` is tensor `a.b`."""
    path = directory / "model.safetensors"
    tensors = load_file(path)
    for key, value in changes.items():
        name = key.replace("__", ".")
        if value is None:
            del tensors[name]
        else:
            tensors[name] = value
    save_file(tensors, path)


# ------------------------------------------------------------------------------------------ whole checkpoints


def test_a_sharded_checkpoint_is_the_same_model(directory: Path) -> None:
    whole = logits_of(load(directory))
    tensors = load_file(directory / "model.safetensors")
    (directory / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {}
    for i in range(3):
        file = f"model-{i + 1:05}-of-00003.safetensors"
        save_file({n: tensors[n] for n in names[i::3]}, directory / file)
        weight_map |= dict.fromkeys(names[i::3], file)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert torch.equal(logits_of(load(directory)), whole)
    (directory / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"model-00002-of-00003.safetensors does not exist"):
        load(directory)
    index.write_text('{"weight_map": 3}')
    with pytest.raises(ModelLoadError, match="not a safetensors index"):
        load(directory)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_16_bit_checkpoints_load_and_keep_their_table_in_16_bits(
    directory: Path, stored: torch.dtype
) -> None:
    path = directory / "model.safetensors"
    rounded = {n: t.to(stored) for n, t in load_file(path).items()}
    save_file({n: t.float() for n, t in rounded.items()}, path)
    expected = load(directory)
    save_file(rounded, path)
    model = load(directory)
    torch.testing.assert_close(logits_of(model), logits_of(expected), rtol=0, atol=0)
    assert model.weight_bytes() < expected.weight_bytes()


def test_the_default_dtype_on_a_cpu_rounds_weights_to_half_precision(directory: Path) -> None:
    exact, half = load(directory, "float32"), load(directory, "auto")
    difference = (logits_of(exact) - logits_of(half)).abs().max()
    assert 0 < difference < 0.15  # logits reach about 15
    assert half.weight_bytes() < exact.weight_bytes()


def test_a_weight_beyond_half_precision_is_named_and_exact_mode_recommended(directory: Path) -> None:
    edit_tensors(directory, model__layers__1__mlp__up_proj__weight=torch.full((112, 64), 1e5))
    with pytest.raises(ModelLoadError, match=r"layers\.1\.mlp\.gate_proj\+up_proj.*float32"):
        load(directory, "auto")
    load(directory, "float32")


def test_a_table_beyond_half_precision_is_refused_like_any_weight(directory: Path) -> None:
    edit_tensors(directory, model__embed_tokens__weight=torch.full((320, 64), -1e5))  # the head has its own
    with pytest.raises(ModelLoadError, match=r"model\.embed_tokens\.weight: .*100000.*float32"):
        load(directory, "auto")
    load(directory, "float32")


def test_the_log_says_once_which_kernel_computes_how_many_layers(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "learnvllm.model_layers.registry"):
        model = load(directory)
    (explanation,) = {model.lm_head.kernel.explain()}  # type: ignore[attr-defined]
    layers = 4 * model.arch.num_layers + 1  # qkv, o, gate and up, down; the head
    lines = [record.getMessage() for record in caplog.records]
    assert lines[1:] == [f"{layers} linear layers: {explanation}."]
    assert f"{model.weight_bytes() / 1e6:.0f} MB" in lines[0]


def test_every_model_type_that_a_config_may_name_can_be_built() -> None:
    """One table says what is implemented; the refusals of config.json and of GGUF print it."""
    for model_type, name in MODEL_CLASSES.items():
        assert callable(model_class(model_type)), name


def test_bfloat16_on_a_cpu_is_refused_with_the_alternatives(directory: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"bfloat16.*auto.*float32"):
        load(directory, "bfloat16")


def test_dummy_weights_need_no_checkpoint_and_are_repeatable(directory: Path) -> None:
    (directory / "model.safetensors").unlink()
    first = logits_of(load(directory, load_format="dummy", seed=3))
    assert torch.isfinite(first).all()
    assert torch.equal(first, logits_of(load(directory, load_format="dummy", seed=3)))
    assert not torch.equal(first, logits_of(load(directory, load_format="dummy", seed=4)))


def test_tied_checkpoints_may_hold_a_head_and_old_ones_their_frequencies(tmp_path: Path) -> None:
    directory, _ = make_tiny_model("llama", tmp_path, tie_word_embeddings=True)
    before = logits_of(load(directory))
    edit_tensors(
        directory,
        lm_head__weight=torch.zeros(320, 64),
        model__layers__0__self_attn__rotary_emb__inv_freq=torch.zeros(8),
    )
    assert torch.equal(logits_of(load(directory)), before)


def test_the_rotary_table_is_no_longer_than_max_model_len(directory: Path) -> None:
    model = load(directory, max_model_len=100)
    assert model.layers[0].self_attn.attn.cos_sin_cache.shape == (100, 16)  # type: ignore[attr-defined]


def test_specs_name_every_layer_and_tell_windows_from_full_attention(tmp_path: Path) -> None:
    directory, _ = make_tiny_model("gemma3", tmp_path)
    specs = load(directory).kv_cache_specs(block_size=8)
    assert list(specs) == ["layers.0", "layers.1", "layers.2", "layers.3"]
    assert specs["layers.0"] == SlidingWindowSpec(8, 2, 32, "float32", sliding_window=16)
    assert specs["layers.3"] == FullAttentionSpec(8, 2, 32, "float32")


# ------------------------------------------------------------------------------------------------- refusals


def test_a_missing_tensor_is_named(directory: Path) -> None:
    edit_tensors(directory, model__layers__1__self_attn__k_proj__weight=None)
    with pytest.raises(ModelLoadError, match=r"no tensor 'model\.layers\.1\.self_attn\.k_proj\.weight'"):
        load(directory)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(directory: Path) -> None:
    edit_tensors(directory, model__layers__0__mlp__down_proj__weight=torch.zeros(64, 100))
    with pytest.raises(ModelLoadError, match=re.escape("down_proj.weight' with shape [64, 100], but")):
        load(directory)


def test_a_tensor_that_no_layer_takes_is_refused_not_dropped(directory: Path) -> None:
    edit_tensors(directory, model__layers__0__self_attn__q_proj__bias=torch.zeros(64))
    with pytest.raises(ModelLoadError, match=r"knows nothing of: model\.layers\.0\.self_attn\.q_proj\.bias"):
        load(directory)


def test_integer_weights_are_refused(directory: Path) -> None:
    edit_tensors(directory, model__norm__weight=torch.ones(64, dtype=torch.int32))
    with pytest.raises(ModelLoadError, match=r"'model\.norm\.weight' in torch\.int32"):
        load(directory)


@pytest.mark.parametrize("keep", [0, 4, 100, 5000, -1])
def test_a_truncated_file_is_refused_by_name(directory: Path, keep: int) -> None:
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors .* is truncated or not a safetensors file"):
        load(directory)


def test_pickles_are_never_opened(directory: Path) -> None:
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")
    with pytest.raises(ModelLoadError, match=r"only as pickles \(pytorch_model\.bin\)"):
        load(directory)
    (directory / "pytorch_model.bin").unlink()
    with pytest.raises(ModelLoadError, match=r"no \*\.safetensors"):
        load(directory)


def test_a_tensor_in_two_files_is_refused(directory: Path) -> None:
    (directory / "copy.safetensors").write_bytes((directory / "model.safetensors").read_bytes())
    with pytest.raises(ModelLoadError, match=r"twice: in copy\.safetensors and model\.safetensors"):
        load(directory)
