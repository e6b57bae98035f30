"""A MoE kernel is two parts that fit together: one moves tokens to experts and back, the other computes.

Whether experts live here or on other ranks is the first part's affair (`PrepareFinalize`); how they multiply
is the second's (`FusedMoEExperts`). They agree on a layout of tokens, so any two of one layout go together.
Upstream namesake: vllm/model_executor/layers/fused_moe/modular_kernel.py (FusedMoEKernel).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor

from learnvllm.model_layers.linear_kernels import LinearMode

if TYPE_CHECKING:
    from learnvllm.model_layers.fused_moe.routed_experts import RoutedExperts

W = TypeVar("W")


class ActivationFormat(Enum):
    """How the tokens lie that experts get, and what they give back."""

    STANDARD = "tokens one after the other, each with the ids of its experts"
    """[T, H] in; [T, H] out, weighted and summed over the experts that computed here."""
    BATCHED = "a table for each expert, of as many rows as any could get"
    """[E, C, H] in; [E, C, H] out, neither weighted nor summed."""


@dataclass(frozen=True)
class MoEKernelConfig:
    """All that a choice of kernel may depend on."""

    num_experts: int
    """Held here, fused shared experts included."""
    top_k: int
    """Experts a token is sent to, fused shared experts included."""
    hidden_size: int
    intermediate_size: int
    hidden_act: str
    linear_mode: LinearMode
    dtype: torch.dtype
    """Of activations."""
    device_type: str


@dataclass
class PreparedTokens:
    """What experts get, in the layout of `ActivationFormat`."""

    hidden: Tensor
    topk_weights: Tensor
    """[T, K] fp32, of the tokens as they came in."""
    topk_ids: Tensor
    """[T, K] int64, likewise."""
    num_tokens: int
    """T."""
    rows: Tensor | None = None
    """[T, K] BATCHED: in which row of its expert's table a token lies."""


class PrepareFinalize(Protocol):
    """Brings tokens to the experts' rank in the experts' layout, and results home.

    An all-to-all one would send tokens and their choices in `prepare`, and send back and sum in `finalize`;
    nothing else in a layer would notice.
    """

    activation_format: ActivationFormat

    def prepare(
        self, hidden: Tensor, topk_weights: Tensor, topk_ids: Tensor, num_experts: int
    ) -> PreparedTokens:
        """hidden: [T, H]; the others [T, K]."""
        ...

    def finalize(self, expert_output: Tensor, prepared: PreparedTokens) -> Tensor:
        """-> [T, H], weighted and summed over all experts of each token."""
        ...


class FusedMoEExperts(Protocol[W]):
    """down(act(gate(x)) * up(x)) for tokens of many experts. W: the form it wants weights in."""

    activation_format: ActivationFormat
    asks_host: bool
    """Does `apply` wait for values from the device? Then no CUDA graph can hold it."""

    def __init__(self, config: MoEKernelConfig) -> None: ...

    @staticmethod
    def unsupported_reason(config: MoEKernelConfig) -> str | None:
        """Why it cannot compute this; None if it can."""
        ...

    def pack(self, matrices: Iterator[Tensor], num_experts: int) -> W:
        """Every expert's [out, in], one after the other -> the form `apply` reads. Each may be dropped then.

        Raises:
            ValueError: one cannot be held in that form.
        """
        ...

    def num_bytes(self, packed: W) -> int: ...

    def apply(self, tokens: PreparedTokens, w13: W, w2: W) -> Tensor:
        """w13: gate and up stacked, [2 * I, H] for each expert; w2: down, [H, I]."""
        ...

    def explain(self) -> str:
        """One sentence: what computes, and why."""
        ...


@dataclass(frozen=True)
class FusedMoEKernel:
    """Two parts of one layout.

    Raises:
        ValueError: their layouts differ.
    """

    prepare_finalize: PrepareFinalize
    experts: FusedMoEExperts[Any]

    def __post_init__(self) -> None:
        ours, theirs = self.prepare_finalize.activation_format, self.experts.activation_format
        if ours is not theirs:
            raise ValueError(
                f"{type(self.prepare_finalize).__name__} brings {ours.value}, but "
                f"{type(self.experts).__name__} takes {theirs.value}"
            )

    def apply(
        self,
        hidden: Tensor,
        topk_weights: Tensor,
        topk_ids: Tensor,
        weights: RoutedExperts,
    ) -> Tensor:
        """hidden: [T, H], topk_weights and topk_ids: [T, K] -> [T, H]."""
        prepared = self.prepare_finalize.prepare(hidden, topk_weights, topk_ids, weights.num_experts)
        output = self.experts.apply(prepared, weights.w13, weights.w2)
        return self.prepare_finalize.finalize(output, prepared)
