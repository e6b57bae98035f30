"""From a configuration to a loaded model: pick the architecture's class, then build it from its checkpoint.

A layer takes its tensors while it is built, so building is loading. Upstream namesakes:
vllm/model_executor/models/registry.py, vllm/model_executor/model_loader/.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable

import torch

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.errors import ModelLoadError
from learnvllm.architecture.model_arch import MODEL_CLASSES, ModelArchitecture
from learnvllm.model_layers.linear_kernels import LinearMode
from learnvllm.model_layers.loading.checkpoint import SafetensorsCheckpoint
from learnvllm.model_layers.model import DecoderModel
from learnvllm.model_layers.weights import CPU, RandomTensors, TensorSource, Weights

logger = logging.getLogger(__name__)


def load_model(config: EngineConfig, device: torch.device = CPU) -> DecoderModel:
    """Build and load the model of `config`; the log says what it weighs and what computes its products.

    Raises:
        ModelLoadError: the checkpoint does not fit its config, or the dtype is not implemented here.
    """
    model_config, arch = config.model_config, config.model_config.arch
    mode, dtype = compute_types(model_config.dtype, arch, device)
    checkpoint = None if model_config.load_format == "dummy" else SafetensorsCheckpoint(model_config.path)
    source: TensorSource = checkpoint or RandomTensors(model_config.seed)
    moe_backend = config.device_config.moe_backend
    weights = Weights(source, mode, config.max_model_len, device, dtype, moe_backend)
    model = build_model(arch, weights)
    if checkpoint is not None:
        checkpoint.finish(ignore=ignorable_tensors(arch))
    logger.info("Loaded %s: %.0f MB of weights.", model_config.model, model.weight_bytes() / 1e6)
    for kernel, count in model.held.kernels.items():
        logger.info("%d linear layers: %s.", count, kernel)
    for kernel, count in model.held.moe_kernels.items():
        logger.info("%d layers of experts: %s.", count, kernel)
    return model


def model_class(model_type: str) -> Callable[[ModelArchitecture, Weights], DecoderModel]:
    """What builds models of this type: `models/gemma3.py:Gemma3ForCausalLM` for gemma3_text, and so on."""
    module = importlib.import_module(f"learnvllm.model_layers.models.{model_type.removesuffix('_text')}")
    found: Callable[[ModelArchitecture, Weights], DecoderModel] = getattr(module, MODEL_CLASSES[model_type])
    return found


def build_model(arch: ModelArchitecture, weights: Weights) -> DecoderModel:
    """A model of this architecture with its tensors taken from `weights`."""
    model = model_class(arch.model_type)(arch, weights)
    model.dtype, model.asks_host = weights.dtype, weights.held.asks_host
    return model


def compute_types(
    dtype: str, arch: ModelArchitecture, device: torch.device
) -> tuple[LinearMode, torch.dtype]:
    """How linear weights are held, and the dtype of activations.

    A CPU computes in fp32 and gains from half weights only by their bytes; a GPU's matrix units want both
    operands in 16 bits. float32 everywhere means the exact path.
    """
    if device.type != "cpu":
        stored = arch.torch_dtype if arch.torch_dtype in ("float16", "bfloat16") else "bfloat16"
        return "torch", getattr(torch, stored if dtype == "auto" else dtype)
    modes: dict[str, LinearMode] = {"auto": "fp16", "float16": "fp16", "float32": "fp32"}
    if dtype not in modes:
        raise ModelLoadError(
            f"dtype={dtype!r} is not implemented on a CPU. Use auto (weights in half precision, "
            "activations in fp32) or float32 (exact).",
            parameter="dtype",
            value=dtype,
        )
    return modes[dtype], torch.float32


def ignorable_tensors(arch: ModelArchitecture) -> list[str]:
    """Tensors that checkpoints may hold and no layer needs: recomputed, or shared with the embedding."""
    return ["*.rotary_emb.inv_freq", *(["lm_head.weight"] if arch.tie_word_embeddings else [])]
