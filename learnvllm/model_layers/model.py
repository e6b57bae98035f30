"""What the model runner may ask of a model, whichever architecture it is.

A model computes hidden states for a flat batch of tokens and logits for the rows that need them; it keeps no
state between steps. Upstream namesake: vllm/model_executor/models/interfaces_base.py
(VllmModelForTextGeneration).
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.architecture.rope_config import SLIDING_ATTENTION
from learnvllm.kv_cache.interface import FullAttentionSpec, KVCacheSpec, SlidingWindowSpec
from learnvllm.model_layers.attention import StepContext
from learnvllm.model_layers.weights import HeldWeights


class DecoderModel(ABC):
    """A decoder-only language model. T tokens of any number of requests, H hidden size, V vocabulary."""

    arch: ModelArchitecture
    held: HeldWeights
    dtype: torch.dtype = torch.float32
    """Of activations, and so of what attention caches."""
    asks_host: bool = False
    """Does a forward wait for values from the device? Then no CUDA graph can hold it."""

    @abstractmethod
    def forward(self, input_ids: Tensor, positions: Tensor, ctx: StepContext) -> Tensor:
        """Run all layers and write this step's k and v into the cache. Both arguments [T] int64 -> [T, H]."""

    @abstractmethod
    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Scores of every token. hidden: [N, H], the rows that need them -> [N, V] in `dtype`."""

    @property
    def layer_names(self) -> list[str]:
        """The layers that need a KV cache: "layers.0", "layers.1" and so on."""
        return [f"layers.{i}" for i in range(self.arch.num_layers)]

    def kv_cache_specs(self, block_size: int) -> dict[str, KVCacheSpec]:
        """Each layer's needs of the KV cache, by layer name."""
        arch, dtype = self.arch, str(self.dtype).removeprefix("torch.")
        specs: dict[str, KVCacheSpec] = {}
        for name, layer_type in zip(self.layer_names, arch.layer_types):
            sizes = (block_size, arch.num_kv_heads, arch.head_dim, dtype)
            if layer_type == SLIDING_ATTENTION:
                assert arch.sliding_window is not None  # ModelArchitecture.from_directory refuses it
                specs[name] = SlidingWindowSpec(*sizes, sliding_window=arch.sliding_window)
            else:
                specs[name] = FullAttentionSpec(*sizes)
        return specs

    def weight_bytes(self) -> int:
        """Bytes of weights held in memory, in the form they are held."""
        return self.held.num_bytes
