"""The Triton kernels compiled, on a real GPU: the checks of triton_checks.py, and larger ones."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="needs triton")

from tests.model_layers import triton_checks as checks
from tests.model_layers.triton_checks import ATTENTION_CASES, Batch, Place

pytestmark = pytest.mark.gpu

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=DTYPES, ids=str)
def at(request: pytest.FixtureRequest) -> Place:
    return Place("cuda", request.param)


@pytest.mark.parametrize(("rows", "width"), [(0, 8), (1, 1), (3, 7), (2, 576), (1000, 1024), (33, 8192)])
def test_norms(at: Place, rows: int, width: int) -> None:
    checks.check_rms_norm(at, rows, width)
    checks.check_fused_add_rms_norm(at, rows, width)


def test_norm_of_heads_in_a_view(at: Place) -> None:
    checks.check_rms_norm_of_heads_in_a_view(at)


@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_tanh_and_mul"])
@pytest.mark.parametrize(("rows", "width"), [(1, 4), (3, 7), (2, 1500), (300, 3072)])
def test_activations(at: Place, name: str, rows: int, width: int) -> None:
    checks.check_activation(at, name, rows, width)


@pytest.mark.parametrize(
    "name", ["rotary_embedding", "reshape_and_cache", "rope_and_cache", "qk_norm_rope_and_cache"]
)
@pytest.mark.parametrize(
    ("heads", "dim", "rot_dim", "block_size"),
    [
        ((4, 2), 64, 64, 16), ((3, 3), 80, 32, 8), ((12, 2), 96, 96, 1), ((2, 1), 10, 6, 32),
        ((16, 8), 128, 128, 16),
    ],
)  # fmt: skip
def test_rope_and_cache(  # type: ignore[no-untyped-def]
    at: Place, name: str, heads, dim: int, rot_dim: int, block_size: int
) -> None:
    checks.check_rope_and_cache(at, name, heads, dim, rot_dim, block_size)


@pytest.mark.parametrize("around", ["", "norm", "add", "norm, silu", "gelu_tanh, add"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(10, 24), (1024, 2048), (1024, 3072), (4096, 1024), (6144, 1024)])
def test_linear_row(at: Place, shape: tuple[int, int], bias: bool, around: str) -> None:
    checks.check_linear_row(at, shape, bias, around)


@pytest.mark.parametrize("case", ATTENTION_CASES)
def test_paged_attention(at: Place, case: str) -> None:
    checks.check_paged_attention(at, case)


@pytest.mark.parametrize("heads", [(16, 8), (8, 1), (6, 6), (32, 8)])
@pytest.mark.parametrize("splits", [None, 1, 16])
@pytest.mark.parametrize("window", [None, 300])
def test_long_requests(at: Place, heads: tuple[int, int], splits: int | None, window: int | None) -> None:
    Batch(at, [(1500, 1), (700, 300), (1025, 1), (0, 1), (513, 513)], heads, 128, 16).check(splits, window)
    Batch(at, [(2000, 1), (3, 1), (0, 1)], heads, 128, 16).check(splits, window)


def test_a_graph_captured_at_a_bound_is_right_for_shorter_requests() -> None:
    """Lengths and tables are read on the device; only bounds went into the choice of the launch."""
    at = Place("cuda", torch.bfloat16)
    batch = Batch(at, [(900, 1), (70, 1), (0, 1)], (16, 8), 128, 16)
    out = torch.empty_like(batch.q)

    def attend() -> None:
        checks.triton_kernels.paged_attention(
            batch.q, batch.k_cache, batch.v_cache, batch.block_table, batch.seq_lens, batch.query_start_loc,
            batch.scale, None, out, 1, 4096,
        )  # fmt: skip

    attend()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        attend()
    for lens in ([900, 70, 0], [1, 33, 0], [513, 64, 0]):
        batch.seq_lens.copy_(torch.tensor(lens))
        batch.lens = [(n, 1) for n in lens]
        graph.replay()
        whole = batch.keys, batch.values
        batch.keys, batch.values = ([x[:n] for x, n in zip(xs, lens)] for xs in whole)
        checks.assert_near(out, batch.dense(None, None), at.dtype, times=2)
        batch.keys, batch.values = whole
