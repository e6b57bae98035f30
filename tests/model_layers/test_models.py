"""Every architecture's logits equal transformers', however the tokens are cut into steps and blocks."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.model_layers.loading.checkpoint import SafetensorsCheckpoint
from learnvllm.model_layers.model import DecoderModel
from learnvllm.model_layers.registry import build_model, ignorable_tensors
from learnvllm.model_layers.weights import Weights
from tests.model_layers.paged_driver import PagedDriver, reference_logits
from tests.model_layers.tiny_models import KINDS, VOCAB_SIZE, make_tiny_model

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 64}
YARN_MSCALE = YARN | {
    "mscale": 0.7,
    "mscale_all_dim": 0.4,
    "beta_fast": 16,
    "beta_slow": 2,
    "truncate": False,
}
LINEAR = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 3.0}
GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
}
WINDOW = {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1, "num_hidden_layers": 3}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{kind: (kind, {}) for kind in KINDS},
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-mha": ("llama", {"num_key_value_heads": 4}),
    "llama-mqa-head-dim-20": ("llama", {"num_key_value_heads": 1, "head_dim": 20}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "llama-yarn-mscale": ("llama", {"rope_parameters": YARN_MSCALE}),
    "llama-linear": ("llama", {"rope_parameters": LINEAR}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-window": ("qwen2", WINDOW),
    "qwen3-biases": ("qwen3", {"attention_bias": True}),
    "qwen3-window": ("qwen3", WINDOW),
    "qwen3_moe-no-renormalize": ("qwen3_moe", {"norm_topk_prob": False, "num_experts_per_tok": 1}),
    "qwen3_moe-every-second": ("qwen3_moe", {"decoder_sparse_step": 2, "mlp_only_layers": []}),
    "qwen3_moe-all-experts": ("qwen3_moe", {"num_experts_per_tok": 8}),
    "qwen3_moe-dense": ("qwen3_moe", {"mlp_only_layers": [0, 1, 2]}),
    "qwen3_moe-window": ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 7}),
    "gemma3-rope": ("gemma3", {"rope_parameters": GEMMA_ROPE}),
    "gemma3-window-1": ("gemma3", {"sliding_window": 1}),
    "gemma3-untied": ("gemma3", {"tie_word_embeddings": False}),
}


class Case:
    """A tiny model on both sides, a prompt, and transformers' logits for it."""

    def __init__(self, name: str, folder: Path) -> None:
        kind, overrides = VARIANTS[name]
        self.directory, self.hf = make_tiny_model(kind, folder, **overrides)
        self.model = load_exact(self.directory)
        rng = random.Random(name)
        self.tokens = [rng.randrange(3, VOCAB_SIZE) for _ in range(75)]
        self.expected = reference_logits(self.hf, self.tokens)


def load_exact(directory: Path) -> DecoderModel:
    arch = ModelArchitecture.from_directory(directory)
    checkpoint = SafetensorsCheckpoint(directory)
    model = build_model(arch, Weights(checkpoint, "fp32"))
    checkpoint.finish(ignorable_tensors(arch))
    return model


@pytest.fixture(scope="module", params=VARIANTS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp("models"))


def assert_close(ours: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("block_size", [1, 8, 16])
def test_logits_of_a_whole_prompt_equal_transformers(case: Case, block_size: int) -> None:
    driver = PagedDriver(case.model, block_size)
    assert_close(driver.step({"a": case.tokens})["a"], case.expected)


@pytest.mark.parametrize(("block_size", "chunk"), [(1, 10), (8, 7), (16, 33)])
def test_chunks_then_single_tokens_give_the_same_logits(case: Case, block_size: int, chunk: int) -> None:
    driver = PagedDriver(case.model, block_size)
    prompt, rest = case.tokens[:60], case.tokens[60:]
    parts = [driver.step({"a": prompt[i : i + chunk]})["a"] for i in range(0, len(prompt), chunk)]
    parts += [driver.step({"a": [token]})["a"] for token in rest]
    assert_close(torch.cat(parts), case.expected)


def test_requests_in_one_batch_do_not_see_each_other(case: Case) -> None:
    driver = PagedDriver(case.model, block_size=8)
    long, short = case.tokens, case.tokens[30:50]
    expected_short = reference_logits(case.hf, short)
    # a decode, a chunk in the middle of a prompt, and a first chunk, all in one step
    first = driver.step({"long": long[:40], "short": short[:-1]})
    second = driver.step({"short": short[-1:], "long": long[40:], "again": short})
    assert_close(torch.cat([first["long"], second["long"]]), case.expected)
    assert_close(torch.cat([first["short"], second["short"]]), expected_short)
    assert_close(second["again"], expected_short)


def test_rotary_tables_equal_transformers_to_the_last_bit(case: Case) -> None:
    from learnvllm.architecture.rope_config import RopeConfig
    from learnvllm.model_layers.rotary_embedding import cos_sin_cache

    arch = case.model.arch
    positions = torch.arange(200)[None]
    rotary = case.hf.model.rotary_emb
    ropes: dict[str | None, RopeConfig] = {None: arch.rope}
    if arch.rope_local is not None:
        ropes = {"full_attention": arch.rope, "sliding_attention": arch.rope_local}
    for layer_type, rope in ropes.items():
        args = () if layer_type is None else (layer_type,)
        cos, sin = rotary(torch.zeros(1), positions, *args)
        half = arch.head_dim // 2
        ours = cos_sin_cache(rope, arch.head_dim, 200)
        assert torch.equal(ours, torch.cat((cos[0, :, :half], sin[0, :, :half]), dim=-1))
