"""On a GPU the engine gives what it gives on a CPU: greedy tokens, whatever the schedule and precision."""

from __future__ import annotations

import pytest
import torch

from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.assembly import build_engine_core
from tests.engine.engines import make_config, random_prompts, run_core

pytestmark = pytest.mark.gpu

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
LENGTHS = [64, 1, 2, 7, 16, 17, 33, 5]
KINDS = ["llama", "qwen2", "qwen3", "gemma3"]


def generate(directory, prompts, params=GREEDY, **options):  # type: ignore[no-untyped-def]
    core = build_engine_core(make_config(directory, device="cuda", **options))
    try:
        return run_core(core, prompts, params)
    finally:
        core.shutdown()


@pytest.fixture(autouse=True)
def _exact_products():  # type: ignore[no-untyped-def]
    """TF32 would round the fp32 products to ten bits."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_fp32_gives_transformers_greedy_tokens(tiny_model, kind: str, async_scheduling: bool) -> None:
    model = tiny_model(kind)
    prompts = random_prompts(LENGTHS, model.vocab_size)
    options = {"budget": 24, "block_size": 8, "async_scheduling": async_scheduling}
    for tight in (None, 40):  # the second time somebody is preempted
        for prompt, tokens in zip(prompts, generate(model.directory, prompts, num_blocks=tight, **options)):
            model.oracle.check(prompt, tokens, max_tokens=12, ignore_eos=True, context=kind)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_agree_with_fp32_where_the_choice_is_clear(tiny_model, dtype: str) -> None:
    """The same greedy token, unless fp32's best two lie closer together than 16 bits can tell."""
    model = tiny_model("qwen3")
    prompts = random_prompts(LENGTHS, model.vocab_size)
    for prompt, tokens in zip(prompts, generate(model.directory, prompts, dtype=dtype, block_size=8)):
        logits = model.oracle.logits(prompt + tokens[:-1], last=len(tokens))
        spread = logits.std().item()
        for row, token in zip(logits, tokens):
            assert row.max().item() - row[token].item() < 0.1 * spread


def test_seeded_samples_do_not_depend_on_the_batch(tiny_model) -> None:
    model = tiny_model("llama")
    params = SamplingParams(temperature=1.0, seed=7, max_tokens=12, ignore_eos=True)
    prompts = random_prompts(LENGTHS, model.vocab_size)
    together = generate(model.directory, prompts, params)
    assert [generate(model.directory, [p], params)[0] for p in prompts[:3]] == together[:3]


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.8, "top_k": 5, "seed": 1},
        {"temperature": 0.8, "top_p": 0.7, "min_p": 0.01, "seed": 1},
        {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
        {"temperature": 0.0, "logit_bias": {5: 4.0}, "min_tokens": 3},
        {"temperature": 0.0, "logprobs": 3, "prompt_logprobs": 2},
    ],
)
def test_sampling_parameters_do_on_a_gpu_what_they_do_on_a_cpu(tiny_model, params) -> None:
    model = tiny_model("llama")
    wanted = SamplingParams(max_tokens=8, ignore_eos=True, **params)
    prompts = random_prompts([9, 17], model.vocab_size)
    core = build_engine_core(make_config(model.directory))
    try:
        assert generate(model.directory, prompts, wanted) == run_core(core, prompts, wanted)
    finally:
        core.shutdown()


def test_memory_is_measured_by_the_allocator(tiny_model) -> None:
    """The cache gets what the profile leaves of the share that was asked for."""
    from dataclasses import replace

    model = tiny_model("llama")
    config = make_config(model.directory, device="cuda")
    cache = replace(config.cache_config, num_gpu_blocks_override=None, gpu_memory_utilization=0.2)
    core = build_engine_core(replace(config, cache_config=cache))
    try:
        report = core.collective_rpc("memory_report")[0]
        total = torch.cuda.get_device_properties(0).total_memory
        assert 0.1 * total < report["kv_cache_bytes"] < 0.2 * total
        assert torch.cuda.memory_allocated() >= report["kv_cache_bytes"]
    finally:
        core.shutdown()
