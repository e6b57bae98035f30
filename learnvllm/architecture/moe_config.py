"""Mixture of experts as a config.json describes it: how many experts, how many a token sees, in which layers.

A sparse layer has many small feed-forward blocks and sends each token to a few of them, so a model holds more
than it computes with. Upstream: vllm/config/model_arch.py, vllm/model_executor/layers/fused_moe/config.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from learnvllm.architecture.json_fields import Fields

MOE_MODEL_TYPES = ("qwen3_moe",)
MOST_EXPERTS = 65_536


@dataclass(frozen=True)
class MoEConfig:
    """The sparse layers of a model; its other layers have one feed-forward block, as in a dense model."""

    num_experts: int
    top_k: int
    """Experts each token is sent to (num_experts_per_tok)."""
    intermediate_size: int
    """Of one expert."""
    renormalize: bool
    """Do the weights of a token's experts sum to 1 (norm_topk_prob), or to the share they had of all?"""
    sparse_layers: tuple[int, ...]
    """Indices of the layers that have experts."""


def parse_moe(config: Fields, model_type: str, num_layers: int) -> MoEConfig | None:
    """The experts of a model; None where no layer has any.

    Raises:
        ModelLoadError: a field is nonsense, or a token is to see more experts than there are.
    """
    if model_type not in MOE_MODEL_TYPES:
        return None
    name = "num_local_experts" if "num_local_experts" in config else "num_experts"  # transformers reads both
    num_experts = config.integer(name, 128, least=0, most=MOST_EXPERTS)
    top_k = config.integer("num_experts_per_tok", 8)
    step = config.integer("decoder_sparse_step", 1)
    dense = {
        config.as_integer("mlp_only_layers", index, least=0) for index in config.items("mlp_only_layers")
    }
    sparse = tuple(i for i in range(num_layers) if (i + 1) % step == 0 and i not in dense)
    if not num_experts or not sparse:
        return None
    if top_k > num_experts:
        raise config.error("num_experts_per_tok", top_k, f"must be at most {name}={num_experts}")
    return MoEConfig(
        num_experts=num_experts,
        top_k=top_k,
        intermediate_size=config.integer("moe_intermediate_size", 768),
        renormalize=config.flag("norm_topk_prob", False),
        sparse_layers=sparse,
    )
