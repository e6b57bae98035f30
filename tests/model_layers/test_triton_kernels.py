"""The Triton kernels, interpreted on the CPU: they compute what their torch twins and dense attention do.

The interpreter takes about 0.1 ms a program and cannot do bfloat16, so sizes are small and dtypes float32 and
float16; tests/gpu/test_kernels.py runs the same checks compiled.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton", reason="needs triton (pip install triton): Linux only")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("this machine has a GPU: tests/gpu runs these checks compiled", allow_module_level=True)

from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.model_layers import ops
from learnvllm.model_layers.loading.checkpoint import SafetensorsCheckpoint
from learnvllm.model_layers.ops import triton_kernels
from learnvllm.model_layers.ops.triton_kernels import attention_launch
from learnvllm.model_layers.registry import build_model
from learnvllm.model_layers.weights import Weights
from tests.model_layers import triton_checks as checks
from tests.model_layers.paged_driver import PagedDriver, reference_logits
from tests.model_layers.tiny_models import VOCAB_SIZE, make_tiny_model
from tests.model_layers.triton_checks import ATTENTION_CASES, Place

DTYPES = [torch.float32, torch.float16]


@pytest.fixture(params=DTYPES, ids=str)
def at(request: pytest.FixtureRequest) -> Place:
    return Place("cpu", request.param)


@pytest.mark.parametrize(("rows", "width"), [(0, 8), (1, 1), (3, 7), (2, 576)])
def test_norms(at: Place, rows: int, width: int) -> None:
    checks.check_rms_norm(at, rows, width)
    checks.check_fused_add_rms_norm(at, rows, width)


def test_norm_of_heads_in_a_view(at: Place) -> None:
    checks.check_rms_norm_of_heads_in_a_view(at)


@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_tanh_and_mul"])
@pytest.mark.parametrize(("rows", "width"), [(1, 4), (3, 7), (2, 1500)])
def test_activations(at: Place, name: str, rows: int, width: int) -> None:
    checks.check_activation(at, name, rows, width)


@pytest.mark.parametrize(
    "name", ["rotary_embedding", "reshape_and_cache", "rope_and_cache", "qk_norm_rope_and_cache"]
)
@pytest.mark.parametrize(
    ("heads", "dim", "rot_dim", "block_size"),
    [((4, 2), 64, 64, 16), ((3, 3), 80, 32, 8), ((12, 2), 96, 96, 1), ((2, 1), 10, 6, 32)],
)
def test_rope_and_cache(  # type: ignore[no-untyped-def]
    at: Place, name: str, heads, dim: int, rot_dim: int, block_size: int
) -> None:
    checks.check_rope_and_cache(at, name, heads, dim, rot_dim, block_size)


@pytest.mark.parametrize("around", ["", "norm", "add", "norm, silu", "gelu_tanh, add"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(10, 24), (6, 1500)])
def test_linear_row(at: Place, shape: tuple[int, int], bias: bool, around: str) -> None:
    checks.check_linear_row(at, shape, bias, around)


@pytest.mark.parametrize("case", ATTENTION_CASES)
def test_paged_attention(at: Place, case: str) -> None:
    checks.check_paged_attention(at, case)


def test_a_lengths_bound_decides_how_many_splits() -> None:
    splits = attention_launch.num_splits
    assert [splits(8, n, 528) for n in (31, 64, 300, 4096)] == [1, 2, 8, 32]  # keys enough for each
    assert [splits(8 * r, 4096, 528) for r in (1, 4, 8, 32, 256)] == [32, 16, 8, 2, 1]  # programs enough


def test_tiles_are_chosen_by_what_a_batch_has_most_of() -> None:
    choose = attention_launch.choose_tiles
    assert choose(torch.bfloat16, True, 9, 9) is attention_launch.DECODES
    assert choose(torch.bfloat16, False, 16384, 16) is attention_launch.CHUNKS
    assert choose(torch.bfloat16, False, 1024, 1) is attention_launch.MIXED
    assert choose(torch.bfloat16, False, 8192, 250) is attention_launch.MIXED
    assert choose(torch.float32, False, 16384, 16) is attention_launch.FP32


def test_a_gpus_tensors_go_to_the_kernels_unless_torch_is_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGPU:
        is_cuda = True

        def stride(self, _: int) -> int:
            return 1

    ops._triton_kernels.cache_clear()
    assert ops.gpu_kernels(OnGPU()).__name__ == "learnvllm.model_layers.ops.triton_kernels"  # type: ignore[arg-type, union-attr]
    assert ops.gpu_kernels(torch.ones(1)) is None
    monkeypatch.setenv("LEARNVLLM_GPU_KERNELS", "torch")
    ops._triton_kernels.cache_clear()
    assert ops.gpu_kernels(OnGPU()) is None  # type: ignore[arg-type]
    ops._triton_kernels.cache_clear()


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("qwen3", {}),
        ("gemma3", {}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_models_computed_by_the_kernels_equal_transformers(
    kind: str, overrides: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU: a chunk, a mixed step, single rows; layers add to the residual stream themselves."""
    monkeypatch.setattr(ops, "gpu_kernels", lambda x: triton_kernels)
    directory, hf = make_tiny_model(kind, tmp_path, **overrides)
    weights = Weights(SafetensorsCheckpoint(directory), "torch")
    driver = PagedDriver(build_model(ModelArchitecture.from_directory(directory), weights), block_size=8)
    tokens = random.Random(kind).sample(range(3, VOCAB_SIZE), 10)
    got = [driver.step({"a": tokens[:8]})["a"], driver.step({"a": tokens[8:9], "b": tokens[:3]})["a"]]
    got.append(driver.step({"a": tokens[9:]})["a"])
    torch.testing.assert_close(torch.cat(got), reference_logits(hf, tokens), rtol=1e-5, atol=1e-4)
