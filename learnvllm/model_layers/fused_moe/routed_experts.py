"""Every expert's weights of one layer, in the form that the chosen kernel reads. They compute nothing.

Checkpoints name them in one of two ways: three matrices an expert (`experts.7.gate_proj.weight`), or all
experts of a kind in one tensor (`experts.gate_up_proj`). Upstream namesake:
vllm/model_executor/layers/fused_moe/routed_experts.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from learnvllm.model_layers.fused_moe.modular_kernel import FusedMoEExperts, MoEKernelConfig
from learnvllm.model_layers.linear_kernels import check_fits_fp16
from learnvllm.model_layers.weights import Weights


class RoutedExperts:
    """E experts of hidden size H and inner size I, and S pieces of a shared expert behind them.

    Args:
        weights: the point of the name tree that has `experts`.
        experts: says in which form weights are to be held.
        config: its num_experts is E + S.
        shared: where a shared expert is that is to be computed with the routed ones. It becomes S experts of
            the routed ones' size, which is the same: its down projection is a sum over inner features.
    """

    def __init__(
        self,
        weights: Weights,
        experts: FusedMoEExperts[Any],
        config: MoEKernelConfig,
        num_shared: int = 0,
        shared: Weights | None = None,
    ) -> None:
        self.num_experts, self.num_shared = config.num_experts, num_shared
        self.num_routed = config.num_experts - num_shared
        sizes = config.hidden_size, config.intermediate_size
        gate_up, down = _gate_up(weights, self.num_routed, *sizes), _down(weights, self.num_routed, *sizes)
        if shared is not None:
            shared_gate_up, shared_down = _pieces_of(shared, num_shared, *sizes)
            gate_up, down = chain(gate_up, shared_gate_up), chain(down, shared_down)
        self.w13 = experts.pack(_checked(weights, gate_up), self.num_experts)
        self.w2 = experts.pack(_checked(weights, down), self.num_experts)
        weights.count(experts.num_bytes(self.w13) + experts.num_bytes(self.w2))


Named = Iterator[tuple[str, Tensor]]


def _checked(weights: Weights, named: Named) -> Iterator[Tensor]:
    """The matrices in the dtype they are to be held in; the one that does not fit it is refused by name."""
    for name, matrix in named:
        held = matrix.to(weights.dtype)
        if weights.linear_mode == "fp16" or weights.dtype is torch.float16:
            try:
                check_fits_fp16(held)
            except ValueError as error:
                raise weights.error(name, str(error)) from None
        yield held


def _gate_up(weights: Weights, num_experts: int, hidden: int, inner: int) -> Named:
    """(name, [2 * inner, hidden]) of each expert: rows of gate, then rows of up."""
    if weights.has("experts.gate_up_proj"):
        fused = weights.take("experts.gate_up_proj", num_experts, 2 * inner, hidden)
        yield from ((f"experts.gate_up_proj[{e}]", fused[e]) for e in range(num_experts))
        return
    for e in range(num_experts):
        names = (f"experts.{e}.gate_proj.weight", f"experts.{e}.up_proj.weight")
        yield f"experts.{e}.gate_proj+up_proj", torch.cat([weights.take(n, inner, hidden) for n in names])


def _down(weights: Weights, num_experts: int, hidden: int, inner: int) -> Named:
    """(name, [hidden, inner]) of each expert."""
    if weights.has("experts.down_proj"):
        fused = weights.take("experts.down_proj", num_experts, hidden, inner)
        yield from ((f"experts.down_proj[{e}]", fused[e]) for e in range(num_experts))
        return
    for e in range(num_experts):
        yield f"experts.{e}.down_proj", weights.take(f"experts.{e}.down_proj.weight", hidden, inner)


def _pieces_of(weights: Weights, count: int, hidden: int, inner: int) -> tuple[Named, Named]:
    """A shared expert of count * inner features cut along them, as `_gate_up` and `_down` give experts."""
    gate = weights.take("gate_proj.weight", count * inner, hidden)
    up = weights.take("up_proj.weight", count * inner, hidden)
    down = weights.take("down_proj.weight", hidden, count * inner)
    cuts = [slice(i * inner, (i + 1) * inner) for i in range(count)]
    name = weights.prefix.rstrip(".")
    gate_up = [(f"{name}.gate_proj+up_proj[{cut}]", torch.cat([gate[cut], up[cut]])) for cut in cuts]
    return iter(gate_up), iter([(f"{name}.down_proj[{cut}]", down[:, cut]) for cut in cuts])
