"""The compiled CPU kernels say what their torch twins say, and the twins say what dense attention says."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learnvllm.model_layers import ops
from learnvllm.model_layers.ops import cpu, cpu_attention, jit, torch_ref

WIDTHS = [1, 7, 16, 64, 576]


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def fused_qkv(
    tokens: int, q_heads: int, kv_heads: int, dim: int, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v as a model has them: views into one [tokens, (Hq + 2 Hk) * D] tensor."""
    qkv = randn(tokens, (q_heads + 2 * kv_heads) * dim, seed=seed)
    parts = qkv.split([q_heads * dim, kv_heads * dim, kv_heads * dim], dim=-1)
    q, k, v = (p.view(tokens, p.shape[1] // dim, dim) for p in parts)
    return q, k, v


# ----------------------------------------------------------------------------------------- norms, activations


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [0, 1, 5, 64])
def test_rms_norm_equals_its_twin(rows: int, width: int) -> None:
    x, weight = randn(rows, width), randn(width, seed=1)
    torch.testing.assert_close(cpu.rms_norm(x, weight, 1e-5), torch_ref.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize("tokens", [1, 3, 300])
def test_rms_norm_of_query_heads_inside_a_fused_qkv_tensor(tokens: int) -> None:
    q, k, _ = fused_qkv(tokens, 4, 2, 16)
    weight = randn(16, seed=1)
    for x in (q, k):
        assert not x.is_contiguous() or tokens == 1
        torch.testing.assert_close(cpu.rms_norm(x, weight, 1e-6), torch_ref.rms_norm(x, weight, 1e-6))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("rows", [1, 5, 64])
def test_fused_add_rms_norm_equals_its_twin_and_updates_the_residual_in_place(rows: int, width: int) -> None:
    x, residual, weight = randn(rows, width), randn(rows, width, seed=1), randn(width, seed=2)
    mine, theirs = residual.clone(), residual.clone()
    normed, new_residual = cpu.fused_add_rms_norm(x, mine, weight, 1e-5)
    expected, _ = torch_ref.fused_add_rms_norm(x, theirs, weight, 1e-5)
    torch.testing.assert_close(normed, expected)
    assert new_residual is mine
    torch.testing.assert_close(mine, x + residual)


@pytest.mark.parametrize("name", ["silu_and_mul", "gelu_tanh_and_mul"])
@pytest.mark.parametrize(("rows", "width"), [(0, 8), (1, 1), (1, 1536), (3, 7), (33, 1536)])
def test_gated_activation_equals_its_twin(name: str, rows: int, width: int) -> None:
    x = randn(rows, 2 * width) * 5
    torch.testing.assert_close(getattr(cpu, name)(x), getattr(torch_ref, name)(x), atol=1e-5, rtol=1e-5)


def test_gated_activation_at_the_ends_of_the_range() -> None:
    gate = torch.tensor([-1e4, -200.0, -88.0, 0.0, 88.0, 200.0, 1e4])
    x = torch.cat([gate, torch.ones(7)])[None]
    for name in ("silu_and_mul", "gelu_tanh_and_mul"):
        torch.testing.assert_close(getattr(cpu, name)(x), getattr(torch_ref, name)(x), atol=1e-5, rtol=1e-5)


def test_nan_stays_nan() -> None:
    x = torch.full((2, 16), torch.nan)
    assert cpu.rms_norm(x, torch.ones(16), 1e-5).isnan().all()
    assert cpu.silu_and_mul(x).isnan().all()


# ------------------------------------------------------------------------------------------ RoPE, cache write


@pytest.mark.parametrize(("dim", "rot_dim"), [(64, 64), (64, 32), (10, 6), (16, 16)])
@pytest.mark.parametrize("tokens", [0, 1, 70])
def test_rotary_embedding_equals_its_twin(tokens: int, dim: int, rot_dim: int) -> None:
    table = randn(100, rot_dim, seed=3)
    positions = torch.randint(0, 100, (tokens,), generator=torch.Generator().manual_seed(4))
    q, k, v = fused_qkv(tokens, 4, 2, dim)
    q2, k2, v2 = fused_qkv(tokens, 4, 2, dim)
    cpu.rotary_embedding(positions, q, k, table)
    torch_ref.rotary_embedding(positions, q2, k2, table)
    torch.testing.assert_close((q, k, v), (q2, k2, v2))


@pytest.mark.parametrize("block_size", [1, 8, 16])
@pytest.mark.parametrize("operator", ["reshape_and_cache", "rope_and_cache"])
def test_cache_write_equals_its_twin_and_skips_slot_minus_one(block_size: int, operator: str) -> None:
    tokens, kv_heads, dim, blocks = 40, 3, 8, 64
    slots = torch.randperm(blocks * block_size, generator=torch.Generator().manual_seed(5))[:tokens]
    slots[[0, 7, 39]] = -1
    table, positions = randn(100, dim, seed=3), torch.arange(tokens)
    results = []
    for module in (cpu, torch_ref):
        q, k, v = fused_qkv(tokens, 6, kv_heads, dim)
        both = torch.zeros(
            blocks, 2, kv_heads, block_size, dim
        )  # k and v interleaved by block: strided caches
        k_cache, v_cache = both.unbind(1)
        if operator == "rope_and_cache":
            module.rope_and_cache(positions, q, k, v, table, k_cache, v_cache, slots)
        else:
            module.reshape_and_cache(k, v, k_cache, v_cache, slots)
        results.append((q, k, v, both))
    torch.testing.assert_close(results[0], results[1])
    assert (results[0][3] != 0).any(-1).sum() == (tokens - 3) * 2 * kv_heads


# -------------------------------------------------------------------------------------------- paged attention


class Batch:
    """A random mixed batch: per request (tokens in all, query tokens), blocks scattered over the pool."""

    def __init__(
        self, lens: list[tuple[int, int]], heads: tuple[int, int], dim: int, block_size: int, seed: int
    ):
        gen = torch.Generator().manual_seed(seed)
        per_request = [-(-total // block_size) for total, _ in lens]
        pool = torch.randperm(sum(per_request) + 2, generator=gen).int()
        self.block_table = torch.full((len(lens), max(per_request) + 1), -1, dtype=torch.int32)
        for r, (count, row) in enumerate(zip(per_request, pool.split([*per_request, 2]), strict=False)):
            self.block_table[r, :count] = row
        queries = [n for _, n in lens]
        self.k_cache, self.v_cache = torch.randn(
            2, len(pool), heads[1], block_size, dim, generator=gen
        )  # fmt: skip
        self.q, _, _ = fused_qkv(sum(queries), *heads, dim, seed=seed)
        self.seq_lens = torch.tensor([total for total, _ in lens], dtype=torch.int32)
        self.query_start_loc = torch.tensor([0, *queries]).cumsum(0).int()
        self.lens, self.scale = lens, dim**-0.5

    def run(self, attend, window: int | None) -> Tensor:  # type: ignore[no-untyped-def]
        return attend(
            self.q, self.k_cache, self.v_cache, self.block_table, self.seq_lens, self.query_start_loc,
            self.scale, window, torch.full(self.q.shape, torch.nan),
        )  # fmt: skip


lengths = st.integers(1, 90).flatmap(lambda total: st.tuples(st.just(total), st.integers(1, total)))
decodes = st.integers(1, 300).map(lambda total: (total, 1))


@settings(max_examples=80)
@given(
    lens=st.lists(st.one_of(decodes, lengths, st.just((5, 0))), min_size=1, max_size=6),
    heads=st.sampled_from([(9, 3), (4, 4), (4, 1), (6, 2)]),
    dim=st.sampled_from([64, 16, 10, 7]),
    block_size=st.sampled_from([1, 8, 16, 32]),
    window=st.one_of(st.none(), st.integers(1, 100)),
    seed=st.integers(0, 1000),
)
def test_paged_attention_equals_its_twin(lens, heads, dim, block_size, window, seed) -> None:  # type: ignore[no-untyped-def]
    batch = Batch(lens, heads, dim, block_size, seed)
    got, expected = (batch.run(m.paged_attention, window) for m in (cpu_attention, torch_ref))
    torch.testing.assert_close(got, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 1, 20, 64])
@pytest.mark.parametrize("module", [cpu_attention, torch_ref])
def test_paged_attention_equals_dense_attention(module, window: int | None) -> None:  # type: ignore[no-untyped-def]
    total, n = 70, 33
    batch = Batch([(total, n)], (4, 2), 16, 8, seed=0)
    keys, values = (
        torch_ref.gather_kv(c, batch.block_table[0], 0, total) for c in (batch.k_cache, batch.v_cache)
    )
    pos, key_pos = torch.arange(total - n, total)[:, None], torch.arange(total)
    mask = (key_pos <= pos) & (key_pos > pos - (window or total))
    expected = F.scaled_dot_product_attention(
        batch.q.transpose(0, 1)[None], keys[None], values[None], mask, enable_gqa=True
    )
    torch.testing.assert_close(batch.run(module.paged_attention, window), expected[0].transpose(0, 1))


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
@pytest.mark.parametrize("lens", [[(1, 1)], [(2000, 1)], [(700, 1), (1, 1), (64, 1)]])
def test_a_context_cut_between_threads_is_put_together_again(
    threads: int, lens: list[tuple[int, int]]
) -> None:
    batch = Batch(lens, (9, 3), 64, 16, seed=1)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        got = batch.run(cpu_attention.paged_attention, None)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(got, batch.run(torch_ref.paged_attention, None), atol=2e-6, rtol=1e-5)


def test_scores_of_any_size_do_not_overflow() -> None:
    batch = Batch([(200, 1), (40, 20)], (4, 2), 16, 16, seed=2)
    batch.q *= 1e4
    got, expected = (batch.run(m.paged_attention, None) for m in (cpu_attention, torch_ref))
    torch.testing.assert_close(got, expected, atol=1e-3, rtol=1e-3)


# --------------------------------------------------------------------------------------------------- dispatch


def test_half_precision_and_strided_last_dimensions_take_the_twin() -> None:
    x, weight = randn(4, 16), randn(16, seed=1)
    expected = torch_ref.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(ops.rms_norm(x.T.contiguous().T, weight, 1e-5), expected)
    assert ops.rms_norm(x.half(), weight, 1e-5).dtype == torch.float16


def test_public_paged_attention_makes_its_output_and_fills_one_it_is_given() -> None:
    batch = Batch([(30, 1), (30, 12)], (4, 2), 16, 8, seed=3)
    args = (batch.q, batch.k_cache, batch.v_cache, batch.block_table, batch.seq_lens, batch.query_start_loc)
    out = torch.zeros(batch.q.shape)
    made = ops.paged_attention(*args, batch.scale)
    assert ops.paged_attention(*args, batch.scale, out=out) is out
    torch.testing.assert_close(made, out)


def _ops_with_one_argument_changed(change):  # type: ignore[no-untyped-def]
    """(kernel module, operator, arguments): every tensor but the indices in turn as `change` has it."""
    batch = Batch([(30, 1), (30, 12)], (4, 2), 16, 8, seed=3)
    q, k, v = fused_qkv(4, 4, 2, 16)
    caches, table, tokens = (batch.k_cache, batch.v_cache), randn(10, 16), torch.arange(4)
    lens = (batch.block_table, batch.seq_lens, batch.query_start_loc)
    calls = [
        (cpu, "rms_norm", [randn(2, 8), randn(8), 1e-5]),
        (cpu, "fused_add_rms_norm", [randn(2, 8), randn(2, 8), randn(8), 1e-5]),
        (cpu, "silu_and_mul", [randn(2, 8)]),
        (cpu, "gelu_tanh_and_mul", [randn(2, 8)]),
        (cpu, "rotary_embedding", [tokens, q, k, table]),
        (cpu, "reshape_and_cache", [k, v, *caches, tokens]),
        (cpu, "rope_and_cache", [tokens, q, k, v, table, *caches, tokens]),
        (cpu_attention, "paged_attention", [batch.q, *caches, *lens, 0.25, None, torch.empty(batch.q.shape)]),
    ]
    for module, name, args in calls:
        for i, arg in enumerate(args):
            if isinstance(arg, Tensor) and arg.dtype is torch.float32:
                yield module, name, [change(a) if j == i else a for j, a in enumerate(args)]


@pytest.mark.parametrize("change", [lambda t: t.to("meta"), Tensor.double, lambda t: t[None, None]])
def test_tensors_elsewhere_of_another_dtype_or_dimension_never_reach_a_kernel(change, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    reached: list[str] = []
    for module, name, args in _ops_with_one_argument_changed(change):
        monkeypatch.setattr(module, name, lambda *_, name=name: reached.append(name))
        with contextlib.suppress(Exception):  # the twin says what does not fit, if anything
            getattr(ops, name)(*args)
        assert not reached, [a.shape if isinstance(a, Tensor) else a for a in args]


def test_indices_on_another_device_are_refused() -> None:
    q, k, _ = fused_qkv(4, 4, 2, 16)
    with pytest.raises(ValueError, match="positions must be .* on the CPU, not .* on meta"):
        ops.rotary_embedding(torch.arange(4, device="meta"), q, k, randn(10, 16))


def test_operators_take_sizes_of_zero() -> None:
    for rows, width in ((0, 8), (3, 0), (0, 0)):
        x = torch.empty(rows, width)
        assert ops.rms_norm(x, torch.empty(width), 1e-5).shape == (rows, width)
        assert ops.fused_add_rms_norm(x, x.clone(), torch.empty(width), 1e-5)[0].shape == (rows, width)
        assert ops.silu_and_mul(torch.empty(rows, 2 * width)).shape == (rows, width)
        assert ops.gelu_tanh_and_mul(torch.empty(rows, 2 * width)).shape == (rows, width)


def test_indices_of_another_dtype_or_length_are_refused() -> None:
    batch = Batch([(30, 1), (30, 12)], (4, 2), 16, 8, seed=3)
    args = [batch.q, batch.k_cache, batch.v_cache, batch.block_table, batch.seq_lens, batch.query_start_loc]
    for i, name in ((3, "block_table"), (4, "seq_lens"), (5, "query_start_loc")):
        wrong = [a.long() if j == i else a for j, a in enumerate(args)]
        with pytest.raises(ValueError, match=f"{name} must be contiguous torch.int32"):
            ops.paged_attention(*wrong, batch.scale)
    q, k, v = fused_qkv(4, 4, 2, 16)
    positions = torch.arange(4)
    with pytest.raises(
        ValueError,
        match=r"slot_mapping must be contiguous torch.int64 of 4 on the CPU, not torch.int64 \(3,\)",
    ):
        ops.reshape_and_cache(k, v, batch.k_cache, batch.v_cache, positions[:3])
    with pytest.raises(
        ValueError, match=r"positions must be contiguous torch.int64 of 4 on the CPU, not torch.int32"
    ):
        ops.rotary_embedding(positions.int(), q, k, randn(10, 16))


# ----------------------------------------------------------------------------------------- threads, the cache


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_kernels_run_on_the_threads_torch_has_already() -> None:
    print_growth = """
import psutil, torch
from learnvllm.model_layers.ops import cpu
torch.set_num_threads(2)
torch.randn(512, 512) @ torch.randn(512, 512)
before = psutil.Process().num_threads()
cpu.silu_and_mul(torch.randn(64, 4096))
print(psutil.Process().num_threads() - before)
"""
    assert run_python(print_growth) == "0"


def test_without_an_openmp_runtime_kernels_run_on_the_calling_thread() -> None:
    code = """
import ctypes, torch
import numba
CDLL = ctypes.CDLL
def no_process_symbols(name, *args, **options):
    if name is None: raise OSError
    return CDLL(name, *args, **options)
ctypes.CDLL = no_process_symbols
from learnvllm.model_layers.ops import cpu, jit, torch_ref
ctypes.CDLL = CDLL
x = torch.randn(64, 4096)
torch.testing.assert_close(cpu.silu_and_mul(x), torch_ref.silu_and_mul(x), atol=1e-5, rtol=1e-5)
print(jit._gomp_parallel)
"""
    assert run_python(code) == "None"


def test_the_environment_turns_kernels_off() -> None:
    code = """
import sys
from learnvllm.model_layers import ops
ops.warm_up_kernels()
print("numba" in sys.modules)
"""
    assert run_python(code, LEARNVLLM_CPU_KERNELS="torch") == "False"


@pytest.mark.slow
def test_processes_may_fill_the_cache_at_the_same_time(tmp_path: Path) -> None:
    code = """
import torch
from learnvllm.model_layers.ops import cpu, torch_ref
x, w = torch.randn(9, 64), torch.randn(64)
torch.testing.assert_close(cpu.rms_norm(x, w, 1e-5), torch_ref.rms_norm(x, w, 1e-5))
"""
    environment = {**os.environ, "LEARNVLLM_HOME": str(tmp_path)}
    for _ in range(2):  # once to compile, once to load
        processes = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(4)]
        assert [p.wait() for p in processes] == [0, 0, 0, 0]
    assert list(tmp_path.glob("kernels/*/**/*.nbc"))


@pytest.fixture
def prepare_cache(monkeypatch):
    """prepare_cache(home): what a process says with its kernels under `home`, and if it keeps them."""

    def prepare(home: Path) -> bool:
        monkeypatch.setenv("LEARNVLLM_HOME", str(home))
        jit._prepare_cache.cache_clear()
        return jit._prepare_cache()

    yield prepare
    jit._prepare_cache.cache_clear()


def test_compiling_is_announced_the_first_time(prepare_cache, tmp_path, caplog) -> None:
    caplog.set_level("INFO")
    assert prepare_cache(tmp_path)
    assert caplog.text.count("Compiling CPU kernels, once") == 1
    (jit.cache_directory() / "cpu").mkdir()
    (jit.cache_directory() / "cpu" / "f.nbi").touch()
    caplog.clear()
    assert prepare_cache(tmp_path)
    assert not caplog.text


def double(args) -> None:
    x = jit.f32(args[0])
    x[0] *= 2


@pytest.mark.parametrize("fault", ["full", "garbled"])
def test_a_cache_that_fails_later_is_done_without(
    prepare_cache, tmp_path, monkeypatch, caplog, fault: str
) -> None:
    def save(*args: object) -> None:
        raise OSError(28, "No space left on device")

    assert prepare_cache(tmp_path)
    monkeypatch.setattr(jit, "_broken_caches", [])
    if fault == "full":
        monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", save)
    else:
        jit.kernel("q")(double)
        (index,) = tmp_path.rglob("*.nbi")
        index.write_bytes(index.read_bytes()[:-9])
    for _ in range(2):
        values = torch.ones(1)
        jit.kernel("q")(double)(1, values.data_ptr())
        assert values.item() == 2
    assert caplog.text.count("cannot be kept") == 1


def test_kernels_that_cannot_be_kept_are_compiled_all_the_same_with_a_warning(
    prepare_cache, tmp_path, caplog
) -> None:
    (tmp_path / "file").touch()
    assert not prepare_cache(tmp_path / "file")
    assert "cannot be kept" in caplog.text
    assert "LEARNVLLM_HOME" in caplog.text

    def two(args):
        jit.i64(args[0])[0] = 2

    out = torch.zeros(1, dtype=torch.int64)
    jit.kernel("q")(two)(1, out.data_ptr())
    assert out.item() == 2
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1  # not one a kernel
