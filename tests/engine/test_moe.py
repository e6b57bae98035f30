"""Experts through the whole engine: every back end and half precision give transformers' tokens."""

from dataclasses import replace

import pytest
import torch

from learnvllm.architecture.config import DeviceConfig, MoEBackendName
from learnvllm.architecture.errors import ModelLoadError
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.engine_core.build import build_engine_core
from tests.engine.engines import make_config, random_prompts, run_core

NEW_TOKENS = 10
PARAMS = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)


def with_backend(config, backend: MoEBackendName, kernels: str = "numba"):
    return replace(
        config,
        device_config=DeviceConfig(
            device="cpu",
            num_threads=1,
            moe_backend=backend,
            cpu_kernels=kernels,  # type: ignore[arg-type]
        ),
    )


@pytest.mark.parametrize("backend", ["auto", "cpu", "grouped_mm", "naive", "batched"])
def test_mod_02_every_back_end_gives_transformers_tokens(tiny_model, backend: MoEBackendName) -> None:
    model = tiny_model("qwen3_moe")
    core = build_engine_core(with_backend(make_config(model.directory, budget=24), backend))
    try:
        prompts = random_prompts([1, 9, 40, 33], model.vocab_size, seed=4)
        for prompt, tokens in zip(prompts, run_core(core, prompts, PARAMS), strict=True):
            model.oracle.check(prompt, tokens, max_tokens=NEW_TOKENS, ignore_eos=True, context=backend)
    finally:
        core.shutdown()


def test_half_precision_gives_the_tokens_of_the_rounded_model(tiny_model, tmp_path) -> None:
    """dtype auto on a CPU: what transformers says of the same weights, rounded (scores stay exact)."""
    from tests.engine.oracle import Oracle
    from tests.model_layers.tiny_models import make_tiny_model

    directory, theirs = make_tiny_model("qwen3_moe", tmp_path)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if parameter.dim() > 1 and not name.endswith("mlp.gate.weight"):
                parameter.copy_(parameter.half().float())
    core = build_engine_core(make_config(directory, dtype="auto"))
    oracle, prompts = Oracle(theirs), random_prompts([1, 9, 40], 320, seed=5)
    try:
        for prompt, tokens in zip(prompts, run_core(core, prompts, PARAMS), strict=True):
            oracle.check(prompt, tokens, max_tokens=NEW_TOKENS, ignore_eos=True)
    finally:
        core.shutdown()


def test_a_back_end_that_cannot_is_refused_when_the_engine_starts(
    tiny_model, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = with_backend(make_config(tiny_model("qwen3_moe").directory), "cpu", kernels="torch")
    with pytest.raises(
        ModelLoadError, match="moe_backend='cpu': compiled kernels are off.*Use auto, which takes naive"
    ):
        build_engine_core(config)
