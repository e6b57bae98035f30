"""A packed linear layer computes what F.linear computes, to the precision its mode promises."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from learnvllm.model_layers import linear_kernels, ops
from learnvllm.model_layers.linear_kernels import FbgemmLinear, OneDNNLinear, TorchLinear, make_linear
from learnvllm.model_layers.ops.cpu_linear import BLOCK, PANEL, CpuLinear, linear_kernel, pack
from learnvllm.model_layers.ops.huge_pages import CHUNK, HugePages
from learnvllm.model_layers.ops.jit import compiles_for

SHAPES = [(960, 576), (576, 1536), (7, 5), (1, 1), (33, 64)]
ROWS = [0, 1, 2, 3, 8, 17, 100]


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("out", "width"), SHAPES)
@pytest.mark.parametrize("mode", ["fp32", "fp16", "torch"])
def test_equals_f_linear_at_every_number_of_rows(mode, out: int, width: int, bias: bool) -> None:  # type: ignore[no-untyped-def]
    weight, b = randn(out, width), randn(out, seed=1) if bias else None
    layer = make_linear(weight, b, mode)
    assert (layer.in_features, layer.out_features) == (width, out)
    exact = weight.half().float() if mode == "fp16" else weight  # fp16 rounds the weight and nothing else
    for rows in ROWS:
        x = randn(rows, width, seed=2)
        torch.testing.assert_close(layer(x), F.linear(x, exact, b), atol=2e-4, rtol=1e-5)


def test_rows_taken_out_of_a_larger_tensor_are_fine() -> None:
    x = randn(8, 128)[:, 32:96]
    for mode in ("fp32", "fp16", "torch"):
        layer = make_linear(randn(32, 64, seed=1).half().float(), None, mode)  # type: ignore[arg-type]
        torch.testing.assert_close(
            layer(x), F.linear(x, randn(32, 64, seed=1).half().float()), atol=1e-4, rtol=1e-5
        )


def test_half_precision_takes_half_the_memory() -> None:
    weight, bias_bytes = randn(64, 64), 64 * 4  # a bias is always there, for sums start from it
    assert make_linear(weight, None, "fp32").weight_bytes == 64 * 64 * 4 + bias_bytes
    assert make_linear(weight, None, "fp16").weight_bytes == 64 * 64 * 2 + bias_bytes


@pytest.mark.parametrize("bad", [65520.0, -1e6, torch.inf, torch.nan])
def test_a_weight_beyond_half_precision_is_refused_in_fp16_and_fine_in_fp32(bad: float) -> None:
    weight = randn(4, 4)
    weight[2, 1] = bad
    with pytest.raises(ValueError, match="does not fit half precision"):
        make_linear(weight, None, "fp16")
    make_linear(weight, None, "fp32")


def test_the_largest_half_precision_weight_is_kept() -> None:
    layer = make_linear(torch.tensor([[65504.0, -65504.0]]), None, "fp16")
    assert layer(torch.tensor([[1.0, 0.0], [0.0, 1.0]])).tolist() == [[65504.0], [-65504.0]]


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"weight \[out, in\] and a bias \[out\], not \(4,\)"):
        make_linear(randn(4), None, "fp32")
    with pytest.raises(ValueError, match=r"not \(4, 3\) and \(3,\)"):
        make_linear(randn(4, 3), randn(3), "fp32")
    with pytest.raises(ValueError, match="unknown linear mode 'int3'"):
        make_linear(randn(4, 3), None, "int3")  # type: ignore[arg-type]


@given(
    rows=st.one_of(
        st.integers(1, 64), st.sampled_from([BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 2, 2 * BLOCK + 3])
    ),
    out=st.integers(1, 150),
    width=st.integers(1, 90),
    threads=st.integers(1, 3),
    dtype=st.sampled_from([torch.float16, torch.float32]),
    bias=st.booleans(),
)
def test_the_kernel_computes_the_same_product_for_every_shape_and_number_of_threads(
    rows: int, out: int, width: int, threads: int, dtype: torch.dtype, bias: bool
) -> None:
    weight, b, x = randn(out, width), randn(out, seed=1) if bias else None, randn(rows, width, seed=2)
    layer = CpuLinear(weight, b, dtype)
    expected = F.linear(x.double(), weight.to(dtype).double(), None if b is None else b.double()).float()
    torch.testing.assert_close(layer(x), expected, atol=2e-5, rtol=1e-5)
    y = torch.full((rows, layer.panels.shape[0] * PANEL), torch.nan)
    addresses = (x.data_ptr(), layer.panels.data_ptr(), layer._bias.data_ptr(), y.data_ptr())
    linear_kernel(8 * dtype.itemsize)(threads, *addresses, rows, width, len(layer.panels))
    torch.testing.assert_close(y[:, :out], expected, atol=2e-5, rtol=1e-5)
    assert (y[:, out:] == 0).all()  # features beyond the last


@given(out=st.integers(1, 70), width=st.integers(1, 40))
def test_packing_puts_every_weight_in_its_place(out: int, width: int) -> None:
    weight = randn(out, width)
    panels = pack(weight, torch.float32)
    back = panels.transpose(1, 2).reshape(-1, width)
    assert torch.equal(back[:out], weight)
    assert not back[out:].any()


def test_every_half_precision_number_is_converted_exactly() -> None:
    halves = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)
    finite = halves[halves.isfinite()].float()[:, None]  # denormals too
    assert torch.equal(CpuLinear(finite, None, torch.float16)(torch.ones(1, 1)), finite.T)


def test_weights_in_large_pages_do_not_overlap() -> None:
    pages, shape = HugePages(), (300, 1000)
    tensors = [pages.empty(shape, torch.float32).fill_(i) for i in range(2 * CHUNK // (300 * 1000 * 4))]
    tensors.append(pages.empty((CHUNK + 4,), torch.int8).fill_(-1))  # one larger than a chunk
    tensors.append(pages.empty((3,), torch.float16).fill_(-1))
    assert all((t == i).all() for i, t in enumerate(tensors[:-2]))
    assert all((t == -1).all() for t in tensors[-2:])
    assert all(t.data_ptr() % 64 == 0 for t in tensors)


def test_a_row_does_not_depend_on_the_rows_beside_it() -> None:
    layer, x = CpuLinear(randn(48, 40), None, torch.float16), randn(130, 40, seed=1)
    together = layer(x)
    for rows in (1, 2, 3, 7, 64):
        assert torch.equal(layer(x[:rows]), together[:rows])


def test_inputs_the_kernel_cannot_read_are_refused() -> None:
    layer = CpuLinear(randn(4, 6), None, torch.float16)
    for x in (randn(2, 5), randn(2, 6).double(), randn(6), randn(1, 2, 6), randn(2, 6).to("meta")):
        with pytest.raises(ValueError, match=r"x must be float32 \[T, 6\] on the CPU"):
            layer(x)


@pytest.mark.parametrize("shape", [(4, 0), (0, 4), (0, 0)])
def test_a_layer_without_weights_is_refused(shape: tuple[int, int]) -> None:
    for mode in ("fp16", "fp32", "torch"):
        with pytest.raises(ValueError, match="at least one weight"):
            make_linear(torch.empty(shape), None, mode)
    for weight in (torch.empty(shape), torch.empty(4, 6, device="meta")):
        with pytest.raises(ValueError, match="on the CPU and not empty"):
            CpuLinear(weight, None, torch.float32)


def test_without_our_kernel_torch_computes_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = randn(16, 8), randn(3, 8, seed=1)
    expected = make_linear(weight, None, "fp16")(x)
    kinds: list[type] = [CpuLinear]
    for module, name in (
        (ops, "cpu_kernels"),
        (linear_kernels, "has_fbgemm"),
        (linear_kernels, "has_onednn"),
    ):
        assert type(make_linear(weight, None, "fp16")) is kinds[-1]
        monkeypatch.setattr(module, name, lambda *_: None)
        layer = make_linear(weight, None, "fp16")
        kinds.append(type(layer))
        torch.testing.assert_close(layer(x), expected)
    assert kinds == [CpuLinear, FbgemmLinear, OneDNNLinear, TorchLinear]


def test_a_cpu_that_cannot_convert_halves_is_not_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = randn(16, 8), randn(3, 8, seed=1)
    expected = make_linear(weight, None, "fp16")(x)
    monkeypatch.setattr("learnvllm.model_layers.ops.cpu_linear.converts_halves", lambda: False)
    monkeypatch.setattr(linear_kernels, "has_fbgemm", lambda: False)
    layer = make_linear(weight, None, "fp16")
    assert isinstance(layer, CpuLinear)
    assert layer.panels.dtype is torch.float32
    torch.testing.assert_close(layer(x), expected)


def test_every_choice_explains_itself() -> None:
    weight = randn(4, 4)
    layers = [
        *(make_linear(weight, None, mode) for mode in ("fp32", "fp16", "torch")),  # type: ignore[arg-type]
        FbgemmLinear(weight, None),
        OneDNNLinear(weight, None),
        OneDNNLinear(weight, None, rounded=True),
    ]
    assert len({layer.explain() for layer in layers}) == len(layers)
    assert all(len(layer.explain()) > 20 for layer in layers)


@pytest.mark.skipif(not compiles_for("avx512f"), reason="this CPU has the narrow registers itself")
def test_the_tile_for_narrow_registers_computes_the_same_products() -> None:
    """What a CPU with AVX2 alone runs, run here: the tests above in a process that compiles for one."""
    env = os.environ | {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+f16c"}
    chosen = "equals_f_linear or same_product or packing or row_does_not or converted_exactly"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", chosen]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    code = "from learnvllm.model_layers.ops import cpu_linear; print(cpu_linear.PANEL, cpu_linear.ROWS)"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["16", "6"]


def test_the_benchmarks_last_lines_say_what_its_table_shows() -> None:
    benchmarks = Path(__file__).parents[2] / "benchmarks"
    script = runpy.run_path(str(benchmarks / "linear.py"))
    *lines, fp16, fp32 = (benchmarks / "results/linear.txt").read_text("utf-8").splitlines()
    table = {}
    for line in lines:
        if re.match(r" *\d+ +[\d.]+ ", line):
            rows, *cells = line.split()
            table[int(rows)] = dict(zip(script["KERNELS"], map(float, cells)))
    assert len(table) > 5
    assert [fp16, fp32] == [script["verdict"](mode, table) for mode in ("fp16", "fp32")]
