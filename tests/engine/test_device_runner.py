"""The device-resident runner gives the simple runner's tokens, whatever the schedule and the sampling.

Here on the CPU, with the torch twins of its kernels; tests/gpu runs it where it belongs. Graphs
are recorded and replayed operator by operator (device/graph_recorder.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from learnvllm.architecture.config import MoEBackendName
from learnvllm.architecture.platforms import CpuPlatform
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.engine_core.build import build_engine_core
from learnvllm.engine_core.core import EngineCore
from learnvllm.executor_worker import worker as worker_module
from learnvllm.executor_worker.device.cuda_graphs import GraphKey, GraphSupport
from learnvllm.executor_worker.device.graph_recorder import RecorderBackend
from learnvllm.executor_worker.device.runner import DeviceModelRunner
from learnvllm.model_layers import ops
from learnvllm.model_layers.ops import torch_ref
from tests.engine.engines import make_config, make_request, pairwise, random_prompts, run_core
from tests.engine.test_greedy_matrix import FACTORS, check_row

PROMPTS = [9, 17, 1, 30, 5]


@pytest.fixture
def use_runner(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda name: monkeypatch.setenv("LEARNVLLM_MODEL_RUNNER", name)


def device_runner(core: EngineCore) -> DeviceModelRunner:
    runner = core.executor._worker.runner  # type: ignore[attr-defined]
    assert isinstance(runner, DeviceModelRunner)
    return runner


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_greedy_tokens_are_transformers_in_every_pair_of_circumstances(tiny_model, use_runner, kind) -> None:
    use_runner("device")
    model = tiny_model(kind)
    preemptions = sum(check_row(model, row, kind) for row in pairwise(FACTORS))
    assert preemptions > 0, "no row of the matrix preempted anybody"


SAMPLING: list[dict[str, Any]] = [
    {"temperature": 0.8, "seed": 1},
    {"temperature": 0.8, "top_k": 5, "seed": 1},
    {"temperature": 1.2, "top_p": 0.7, "min_p": 0.01, "seed": 2},
    {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
    {"temperature": 0.9, "presence_penalty": 0.8, "seed": 3},
    {"temperature": 0.0, "logit_bias": {5: 4.0}, "min_tokens": 3},
    {"temperature": 0.0, "bad_words": ["x"]},
    {"temperature": 0.0, "logprobs": 3, "prompt_logprobs": 2},
]


def mixed_requests(core: EngineCore, vocab_size: int) -> dict[str, list[Any]]:
    """Every kind of sampling at once, so that steps that wait follow steps that do not."""
    outputs: dict[str, list[Any]] = {}
    for i, prompt in enumerate(random_prompts(PROMPTS * 2, vocab_size)):
        wanted = dict(SAMPLING[i]) if i < len(SAMPLING) else {"temperature": 0.0}
        wanted.pop("bad_words", None)
        params = SamplingParams(max_tokens=3 + 3 * i, ignore_eos=True, **wanted)
        if i == 6:
            params.bad_words_token_ids = [[7, 8], [9]]
        outputs[str(i)] = []
        core.add_request(make_request(core, str(i), prompt, params))
    while core.has_work():
        stepped, _ = core.step()
        for output in stepped[0].outputs if stepped else []:
            outputs[output.request_id].extend(output.new_token_ids)
            if output.new_logprobs is not None:
                outputs[output.request_id].append(output.new_logprobs.logprobs)
    return outputs


def assert_equal(found: dict[str, list[Any]], expected: dict[str, list[Any]]) -> None:
    """The same tokens; log-probabilities up to rounding."""
    for name, values in expected.items():
        for ours, theirs in zip(found[name], values, strict=True):
            assert ours == (theirs if isinstance(theirs, int) else pytest.approx(theirs, abs=1e-4)), name


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("num_blocks", [None, 30])
def test_any_mix_of_sampling_gives_the_simple_runners_tokens(
    tiny_model, use_runner, async_scheduling: bool, num_blocks: int | None
) -> None:
    model = tiny_model("llama")
    config = make_config(
        model.directory, budget=20, block_size=8, num_blocks=num_blocks, async_scheduling=async_scheduling
    )
    found = []
    for name in ("simple", "device"):
        use_runner(name)
        core = build_engine_core(config)
        try:
            found.append(mixed_requests(core, model.vocab_size))
        finally:
            core.shutdown()
    assert_equal(*found)


# ------------------------------------------------------------------------------------------------- graphs


def attend_by_mask(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, seq_lens: Tensor,
    query_start_loc: Tensor, scale: float, sliding_window: int | None = None, *rest: Any, **more: Any,
) -> Tensor:  # fmt: skip
    """Attention without asking for a length: each token over its request's whole table, the rest masked."""
    token, ends = torch.arange(len(q), dtype=torch.int32), query_start_loc[1:]
    owner = torch.searchsorted(ends, token, right=True)
    position = (seq_lens[owner] - ends[owner] + token)[:, None, None]
    keys, values = (
        cache[block_table[owner].long()].transpose(1, 2).flatten(2, 3)
        .repeat_interleave(q.shape[1] // cache.shape[1], 1)
        for cache in (k_cache, v_cache)
    )  # fmt: skip
    scores = (keys @ q[..., None])[..., 0] * scale
    place = torch.arange(scores.shape[-1])
    hidden = place > position
    if sliding_window is not None:
        hidden = hidden | (place <= position - sliding_window)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1).nan_to_num(0.0)
    return (weights[:, :, None] @ values)[:, :, 0]


def store_all(positions, q, k, v, cos_sin_cache, k_cache, v_cache, slot_mapping) -> None:  # type: ignore[no-untyped-def]
    """rope_and_cache without a choice by content: what is not to be stored goes to the null block."""
    torch_ref.rotary_embedding(positions, q, k, cos_sin_cache)
    slots = slot_mapping.clamp(min=0)
    k_cache[slots // k_cache.shape[2], :, slots % k_cache.shape[2]] = k
    v_cache[slots // k_cache.shape[2], :, slots % k_cache.shape[2]] = v


@pytest.fixture
def recorded_graphs(monkeypatch: pytest.MonkeyPatch, use_runner) -> list[GraphKey]:
    """An engine on the CPU that captures and replays; what it replayed."""
    use_runner("device")
    monkeypatch.setenv("LEARNVLLM_CPU_KERNELS", "torch")
    monkeypatch.setattr(CpuPlatform, "capabilities", frozenset({"cuda_graphs"}))
    monkeypatch.setattr(worker_module, "CudaBackend", RecorderBackend)
    monkeypatch.setattr(worker_module, "attention_support", lambda uses_triton: GraphSupport.ALWAYS)
    monkeypatch.setattr(ops, "paged_attention", attend_by_mask)
    monkeypatch.setattr(ops, "rope_and_cache", store_all)
    replayed: list[GraphKey] = []
    replay = worker_module.DeviceModelRunner.warm_up

    def warm_up(runner: DeviceModelRunner) -> None:
        replay(runner)
        really = runner.graphs.replay

        def spy(key: GraphKey) -> None:
            replayed.append(key)
            really(key)

        runner.graphs.replay = spy  # type: ignore[method-assign]

    monkeypatch.setattr(worker_module.DeviceModelRunner, "warm_up", warm_up)
    return replayed


@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("kind", ["qwen3", "gemma3"])
def test_replayed_steps_give_transformers_tokens(tiny_model, recorded_graphs, kind, async_scheduling) -> None:
    """Requests of many lengths end one after the other, so the batch shrinks through several sizes."""
    model = tiny_model(kind)
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    core = build_engine_core(
        make_config(model.directory, max_num_seqs=6, block_size=8, async_scheduling=async_scheduling)
    )
    try:
        prompts = random_prompts([33, 1, 8, 20, 5, 16, 2, 9, 40], model.vocab_size)
        for prompt, tokens in zip(prompts, run_core(core, prompts, params)):
            model.oracle.check(prompt, tokens, max_tokens=12, ignore_eos=True, context=kind)
    finally:
        core.shutdown()
    assert {GraphKey(4, 4, 1), GraphKey(6, 6, 1)} <= set(recorded_graphs)
    assert any(key.max_query_len > 1 for key in recorded_graphs)


def test_any_mix_of_sampling_is_the_same_beside_replayed_steps(tiny_model, recorded_graphs) -> None:
    model = tiny_model("llama")
    config = make_config(model.directory, budget=20, block_size=8, async_scheduling=True)
    core = build_engine_core(config)
    try:
        with_graphs = mixed_requests(core, model.vocab_size)
        device_runner(core).graphs._replays.clear()
        assert_equal(with_graphs, mixed_requests(core, model.vocab_size))
    finally:
        core.shutdown()
    assert recorded_graphs


@pytest.mark.parametrize(("backend", "is_captured"), [("batched", True), ("naive", False)])
def test_graphs_hold_experts_only_where_no_size_depends_on_routing(
    tiny_model, recorded_graphs, backend: MoEBackendName, is_captured: bool
) -> None:
    model = tiny_model("qwen3_moe")
    config = make_config(model.directory, max_num_seqs=4)
    device_config = replace(config.device_config, moe_backend=backend)
    core = build_engine_core(replace(config, device_config=device_config))
    params = SamplingParams(temperature=0.0, max_tokens=10, ignore_eos=True)
    try:
        assert is_captured or device_runner(core).graphs.explain() == "none: the model cannot be captured."
        prompts = random_prompts([3, 17, 30], model.vocab_size, seed=6)
        for prompt, tokens in zip(prompts, run_core(core, prompts, params), strict=True):
            model.oracle.check(prompt, tokens, max_tokens=10, ignore_eos=True, context=backend)
        assert bool(recorded_graphs) is is_captured
    finally:
        core.shutdown()
