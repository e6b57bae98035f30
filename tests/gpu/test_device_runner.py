"""On a GPU the device-resident runner starts its steps without waiting, and replays them from graphs."""

from __future__ import annotations

import pytest
import torch

from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.assembly import build_engine_core
from tests.engine.engines import make_config, random_prompts, run_core

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    "params",
    [{"temperature": 0.0}, {"temperature": 0.9, "seed": 3}, {"temperature": 0.9, "top_p": 0.8, "seed": 3}],
)
def test_no_step_waits_for_the_device(tiny_model, monkeypatch: pytest.MonkeyPatch, params) -> None:
    """torch makes an error of every wait while a step is started: prompts, decodes, filters."""
    model = tiny_model("qwen3")
    core = build_engine_core(
        make_config(model.directory, device="cuda", dtype="bfloat16", budget=32, async_scheduling=True)
    )
    runner = core.executor._worker.runner
    start_step, started = runner.start_step, []

    def strict(scheduler_output):  # type: ignore[no-untyped-def]
        torch.cuda.set_sync_debug_mode("error")
        try:
            started.append(scheduler_output.total_num_scheduled_tokens)
            return start_step(scheduler_output)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    try:
        prompts = random_prompts([40, 3, 9, 33, 1], model.vocab_size)
        wanted = SamplingParams(max_tokens=10, ignore_eos=True, **params)
        run_core(core, prompts, wanted)  # the filters' operators are loaded
        monkeypatch.setattr(runner, "start_step", strict)
        assert [len(tokens) for tokens in run_core(core, prompts, wanted)] == [10] * 5
        assert len(started) > 10
    finally:
        core.shutdown()


def test_decodes_and_small_mixed_batches_are_replayed(tiny_model, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("llama")
    core = build_engine_core(make_config(model.directory, device="cuda", async_scheduling=True))
    graphs = core.executor._worker.runner.graphs
    replayed, replay = [], graphs.replay
    monkeypatch.setattr(graphs, "replay", lambda key: (replayed.append(key), replay(key)))
    try:
        prompts = random_prompts([20, 3, 9], model.vocab_size)
        tokens = run_core(core, prompts, SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True))
        for prompt, found in zip(prompts, tokens):
            model.oracle.check(prompt, found, max_tokens=12, ignore_eos=True)
    finally:
        core.shutdown()
    assert [(key.num_reqs, key.num_tokens) for key in replayed] == [(8, 32), *[(4, 4)] * 11]


def test_nothing_is_compiled_after_warm_up(tiny_model) -> None:
    model = tiny_model("qwen3")
    config = make_config(
        model.directory, device="cuda", dtype="bfloat16", budget=2048, max_num_seqs=40, async_scheduling=True
    )
    core = build_engine_core(config)
    try:
        params = SamplingParams(temperature=0.7, max_tokens=6, ignore_eos=True)
        for lengths in ([1], [100] * 40, [64] * 32, [17, 5, 80], [3] * 16, [150] * 30, [128]):
            run_core(core, random_prompts(lengths, model.vocab_size), params)
        assert core.collective_rpc("late_compilations") == [[]]
    finally:
        core.shutdown()
