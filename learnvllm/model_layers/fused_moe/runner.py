"""The forward of a sparse layer: scores, choice, experts, and the shared expert that nobody need choose.

It owns the other parts and knows what none of them does: in which order they work. Upstream namesake:
vllm/model_executor/layers/fused_moe/runner/moe_runner.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.architecture.moe_config import MoEConfig
from learnvllm.model_layers.fused_moe.modular_kernel import FusedMoEKernel, MoEKernelConfig
from learnvllm.model_layers.fused_moe.oracle import UnquantizedMoEOracle
from learnvllm.model_layers.fused_moe.routed_experts import RoutedExperts
from learnvllm.model_layers.fused_moe.router import FusedTopKRouter, append_shared_experts
from learnvllm.model_layers.layernorm import RMSNorm
from learnvllm.model_layers.linear import Linear
from learnvllm.model_layers.weights import Weights


@dataclass(frozen=True)
class MoERunner:
    """[T, H] -> [T, H]."""

    gate: Callable[[Tensor], Tensor]
    """[T, H] -> [T, E], each expert's score."""
    router: FusedTopKRouter
    routed_experts: RoutedExperts
    kernel: FusedMoEKernel
    shared_expert: Callable[[Tensor], Tensor] | None = None
    """[T, H] -> [T, H] for every token, where it is not one of the routed experts' pieces."""

    def __call__(self, hidden: Tensor) -> Tensor:
        experts = self.routed_experts
        topk_weights, topk_ids = self.router.select_experts(self.gate(hidden))
        if experts.num_shared:
            topk_weights, topk_ids = append_shared_experts(
                topk_weights, topk_ids, experts.num_routed, experts.num_shared
            )
        out = self.kernel.apply(hidden, topk_weights, topk_ids, experts)
        return out if self.shared_expert is None else out + self.shared_expert(hidden)

    def add_to(self, stream: Tensor, norm: RMSNorm) -> None:
        """stream += self(norm(stream)), as a GPU's layers want it (see residual_stream.py)."""
        stream += self(norm(stream))


def make_moe(arch: ModelArchitecture, moe: MoEConfig, weights: Weights) -> MoERunner:
    """A sparse layer from the point of the name tree that has `gate` and `experts`.

    Raises:
        ModelLoadError: the checkpoint does not fit, or weights.moe_backend cannot compute it.
    """
    config = MoEKernelConfig(
        moe.num_experts,
        moe.top_k,
        arch.hidden_size,
        moe.intermediate_size,
        arch.hidden_act,
        weights.linear_mode,
        weights.dtype,
        weights.device.type,
    )
    oracle = UnquantizedMoEOracle()
    selection = oracle.select_backend(config, weights.moe_backend)
    kernel = oracle.make_kernel(selection.backend, config)
    weights.held.moe_kernels[f"{kernel.experts.explain()} ({selection})"] += 1
    weights.held.asks_host |= kernel.experts.asks_host
    # Scores decide who computes: rounding them would send tokens elsewhere, and they cost next to nothing.
    exact = replace(weights, linear_mode="fp32") if weights.linear_mode == "fp16" else weights
    gate = Linear(exact, [("gate", moe.num_experts)], arch.hidden_size)
    router = FusedTopKRouter(moe.top_k, moe.renormalize)
    return MoERunner(gate, router, RoutedExperts(weights, kernel.experts, config), kernel)
