"""Chooses what computes the experts, and says why: every way that was not taken has its reason.

What --moe-backend asks for is honoured or refused, never quietly replaced. Without a wish the first of the
device's list that can do it is taken. Upstream namesake:
vllm/model_executor/layers/fused_moe/oracle/unquantized.py; its contract is base.py's (MoEKernelOracle).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from learnvllm.architecture.errors import ModelLoadError
from learnvllm.model_layers.fused_moe.experts.batched import BatchedExperts
from learnvllm.model_layers.fused_moe.experts.cpu import CPUExperts
from learnvllm.model_layers.fused_moe.experts.grouped_mm import GroupedMMExperts
from learnvllm.model_layers.fused_moe.experts.naive import NaiveExperts
from learnvllm.model_layers.fused_moe.modular_kernel import (
    ActivationFormat,
    FusedMoEExperts,
    FusedMoEKernel,
    MoEKernelConfig,
    PrepareFinalize,
)
from learnvllm.model_layers.fused_moe.prepare_finalize import BatchedPrepareFinalize, LocalPrepareFinalize


class MoEBackend(Enum):
    """What --moe-backend may name, besides auto."""

    CPU = "cpu"
    GROUPED_MM = "grouped_mm"
    NAIVE = "naive"
    BATCHED = "batched"


_EXPERTS: dict[MoEBackend, type[FusedMoEExperts[Any]]] = {
    MoEBackend.CPU: CPUExperts,
    MoEBackend.GROUPED_MM: GroupedMMExperts,
    MoEBackend.NAIVE: NaiveExperts,
    MoEBackend.BATCHED: BatchedExperts,
}
_PREPARE_FINALIZE: dict[ActivationFormat, type[PrepareFinalize]] = {
    ActivationFormat.STANDARD: LocalPrepareFinalize,
    ActivationFormat.BATCHED: BatchedPrepareFinalize,
}


@dataclass(frozen=True)
class Selection:
    """The chosen back end, and why each before it in the list was not."""

    backend: MoEBackend
    wished: bool
    rejected: tuple[tuple[MoEBackend, str], ...] = ()

    def __str__(self) -> str:
        why = "as --moe-backend asks" if self.wished else "the first that can"
        return "; ".join([f"{self.backend.value}: {why}", *(f"not {b.value}: {r}" for b, r in self.rejected)])


class UnquantizedMoEOracle:
    """The choice for weights in 16 or 32 bits. Quantised ones get an oracle of their own."""

    def get_priority_backends(self, config: MoEKernelConfig) -> list[MoEBackend]:
        """The fastest first. On a CPU torch's grouped product is slower than a loop of packed linear layers
        (benchmarks/results/moe.txt). batched comes last: it computes all tokens for all experts."""
        if config.device_type == "cpu":
            return [MoEBackend.CPU, MoEBackend.NAIVE, MoEBackend.GROUPED_MM, MoEBackend.BATCHED]
        return [MoEBackend.GROUPED_MM, MoEBackend.NAIVE, MoEBackend.BATCHED]

    def map_backend(self, name: str) -> MoEBackend | None:
        """What --moe-backend names; None for auto.

        Raises:
            ModelLoadError: nothing is called that.
        """
        if name == "auto":
            return None
        try:
            return MoEBackend(name)
        except ValueError:
            known = ", ".join(backend.value for backend in MoEBackend)
            raise _refusal(name, f"there is none of that name. Use auto or one of {known}") from None

    def select_backend(self, config: MoEKernelConfig, name: str = "auto") -> Selection:
        """Honour the wish, or find the first in order of priority.

        Raises:
            ModelLoadError: the wish cannot be honoured.
        """
        wish = self.map_backend(name)
        if wish is not None:
            reason = _EXPERTS[wish].unsupported_reason(config)
            if reason is not None:
                taken = self.select_backend(config).backend.value
                raise _refusal(name, f"{reason}. Use auto, which takes {taken} here")
            return Selection(wish, wished=True)
        rejected: list[tuple[MoEBackend, str]] = []
        for backend in self.get_priority_backends(config):
            reason = _EXPERTS[backend].unsupported_reason(config)
            if reason is None:
                return Selection(backend, False, tuple(rejected))
            rejected.append((backend, reason))
        raise AssertionError("naive computes everything")

    def make_kernel(self, backend: MoEBackend, config: MoEKernelConfig) -> FusedMoEKernel:
        """The experts, and what brings them tokens in their layout."""
        experts = _EXPERTS[backend](config)
        return FusedMoEKernel(_PREPARE_FINALIZE[experts.activation_format](), experts)


def _refusal(name: str, why: str) -> ModelLoadError:
    return ModelLoadError(f"moe_backend={name!r}: {why}.", parameter="moe_backend", value=name)
