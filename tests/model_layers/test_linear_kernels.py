"""A packed linear layer computes what F.linear computes, to the precision its mode promises."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from learnvllm.model_layers import linear_kernels
from learnvllm.model_layers.linear_kernels import FbgemmLinear, OneDNNLinear, TorchLinear, make_linear

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
    weight = randn(64, 64)
    assert make_linear(weight, None, "fp32").weight_bytes == 64 * 64 * 4
    if linear_kernels.has_fbgemm():
        assert make_linear(weight, None, "fp16").weight_bytes == 64 * 64 * 2


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


def test_a_build_without_the_fast_kernels_falls_back_to_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight, x = randn(16, 8), randn(3, 8, seed=1)
    expected = make_linear(weight, None, "fp16")(x)
    monkeypatch.setattr(linear_kernels, "has_fbgemm", lambda: False)
    layer = make_linear(weight, None, "fp16")
    assert isinstance(layer, OneDNNLinear)
    torch.testing.assert_close(layer(x), expected)
    monkeypatch.setattr(linear_kernels, "has_onednn", lambda: False)
    layer = make_linear(weight, None, "fp16")
    assert isinstance(layer, TorchLinear)
    torch.testing.assert_close(layer(x), expected)


def test_every_choice_explains_itself() -> None:
    weight = randn(4, 4)
    for mode, kind in (("fp32", OneDNNLinear), ("fp16", FbgemmLinear), ("torch", TorchLinear)):
        layer = make_linear(weight, None, mode)  # type: ignore[arg-type]
        assert isinstance(layer, kind)
        assert len(layer.explain()) > 20
