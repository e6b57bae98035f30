"""Where a layer gets its tensors while it is being built: a checkpoint seen from one point of its name tree.

A layer *takes* its tensors by name and expected shape, so missing, wrong-shaped and left-over tensors are
found by construction, and only one layer at a time is in memory twice. vLLM builds the layers first and
streams the checkpoint into them afterwards (vllm/model_executor/models/utils.py: AutoWeightsLoader).
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from learnvllm.architecture.errors import ModelLoadError
from learnvllm.model_layers.linear_kernels import LinearMode

CPU = torch.device("cpu")


class TensorSource(Protocol):
    """A checkpoint: tensors by name."""

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor in the dtype it is stored in. It may be a view of a file: copy before writing to it.

        Raises:
            ModelLoadError: there is no such tensor, or its shape is another.
        """
        ...

    def has(self, name: str) -> bool:
        """Is there a tensor of this name? For what checkpoints store in one of several ways."""
        ...


class RandomTensors:
    """Seeded random tensors of any shape asked for (--load-format dummy): benchmarks without a checkpoint."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Normal with std 0.02, norm weights around 1. The same name always gives the same tensor."""
        generator = torch.Generator().manual_seed(self.seed + zlib.crc32(name.encode()))
        values = torch.randn(shape, generator=generator) * 0.02
        return values + 1.0 if name.endswith("norm.weight") else values

    def has(self, name: str) -> bool:
        """Layers ask for the rarer of two names: it has the common ones."""
        return False


@dataclass
class HeldWeights:
    """What the model keeps, counted as its layers are built."""

    num_bytes: int = 0
    kernels: Counter[str] = field(default_factory=Counter)
    """Which kernels compute its linear layers and why (`LinearKernel.explain`), and how many layers each."""
    moe_kernels: Counter[str] = field(default_factory=Counter)
    """Likewise for its layers of experts, with the reasons against others."""
    asks_host: bool = False
    """Does any layer wait for values from the device (`DecoderModel.asks_host`)?"""


@dataclass(frozen=True)
class Weights:
    """A checkpoint seen from one point of its name tree, and the form in which weights are to be held."""

    source: TensorSource
    linear_mode: LinearMode = "fp32"
    """fp32: exact. fp16: linear weights rounded to half precision, activations stay fp32. torch: weights and
    activations in `dtype`, on any device."""
    max_positions: int | None = None
    """Rotary tables need not be longer than this. None: the model's own limit."""
    device: torch.device = CPU
    """Where the model is to compute: `take` moves what it takes there."""
    dtype: torch.dtype = torch.float32
    """Of activations, and of linear weights that are used as they are (`linear_mode` torch)."""
    moe_backend: str = "auto"
    """What computes experts (--moe-backend)."""
    prefix: str = ""
    held: HeldWeights = field(default_factory=HeldWeights)

    def at(self, name: str) -> Weights:
        """The same checkpoint one level down: `weights.at("mlp").take("up_proj.weight", rows, cols)`."""
        return replace(self, prefix=f"{self.prefix}{name}.")

    def take(self, name: str, *shape: int) -> Tensor:
        """The tensor `prefix + name`, exactly of this shape, in its stored dtype, on `device`.

        Raises:
            ModelLoadError: it is missing, or its shape is another.
        """
        return self.source.take(self.prefix + name, shape).to(self.device)

    def has(self, name: str) -> bool:
        """Is there a tensor `prefix + name`?"""
        return self.source.has(self.prefix + name)

    def error(self, name: str, what: str) -> ModelLoadError:
        """The tensor `prefix + name` cannot be held in the form that was asked for."""
        return ModelLoadError(f"{self.prefix}{name}: {what}.", parameter="dtype", value=self.linear_mode)

    def count(self, num_bytes: int) -> None:
        """Add to the bytes the model reports as held (`DecoderModel.weight_bytes`)."""
        self.held.num_bytes += num_bytes
