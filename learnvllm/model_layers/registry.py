"""From a configuration to a loaded model: pick the architecture's class, then build it from its checkpoint.

A layer takes its tensors while it is built, so building is loading. Upstream namesakes:
vllm/model_executor/models/registry.py, vllm/model_executor/model_loader/.
"""

from __future__ import annotations

from collections.abc import Callable

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.errors import ModelLoadError
from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.model_layers.linear_kernels import LinearMode
from learnvllm.model_layers.loading.checkpoint import SafetensorsCheckpoint
from learnvllm.model_layers.model import DecoderModel
from learnvllm.model_layers.models.gemma3 import Gemma3ForCausalLM
from learnvllm.model_layers.models.llama import LlamaForCausalLM
from learnvllm.model_layers.models.qwen2 import Qwen2ForCausalLM
from learnvllm.model_layers.models.qwen3 import Qwen3ForCausalLM
from learnvllm.model_layers.weights import RandomTensors, Weights

MODELS: dict[str, Callable[[ModelArchitecture, Weights], DecoderModel]] = {
    "llama": LlamaForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "qwen3": Qwen3ForCausalLM,
    "gemma3_text": Gemma3ForCausalLM,
}


def load_model(config: EngineConfig) -> DecoderModel:
    """Build and load the model of `config`.

    Raises:
        ModelLoadError: the checkpoint does not fit its config, or the dtype is not implemented here.
    """
    model_config = config.model_config
    mode = linear_mode(model_config.dtype)
    if model_config.load_format == "dummy":
        source = RandomTensors(model_config.seed)
        return build_model(model_config.arch, Weights(source, mode, config.max_model_len))
    checkpoint = SafetensorsCheckpoint(model_config.path)
    model = build_model(model_config.arch, Weights(checkpoint, mode, config.max_model_len))
    checkpoint.finish(ignore=ignorable_tensors(model_config.arch))
    return model


def build_model(arch: ModelArchitecture, weights: Weights) -> DecoderModel:
    """A model of this architecture with its tensors taken from `weights`."""
    return MODELS[arch.model_type](arch, weights)


def linear_mode(dtype: str) -> LinearMode:
    """How linear weights are held on a CPU. Activations are fp32 in any case."""
    modes: dict[str, LinearMode] = {"auto": "fp16", "float16": "fp16", "float32": "fp32"}
    if dtype not in modes:
        raise ModelLoadError(
            f"dtype={dtype!r} is not implemented on a CPU. Use auto (weights in half precision, activations "
            "in fp32) or float32 (exact).",
            parameter="dtype",
            value=dtype,
        )
    return modes[dtype]


def ignorable_tensors(arch: ModelArchitecture) -> list[str]:
    """Tensors that checkpoints may hold and no layer needs: recomputed, or shared with the embedding."""
    return ["*.rotary_emb.inv_freq", *(["lm_head.weight"] if arch.tie_word_embeddings else [])]
