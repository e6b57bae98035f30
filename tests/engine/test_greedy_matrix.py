"""The one promise of the engine: greedy tokens are transformers', whatever the schedule.

Faults sit between features (anchors/engines.md 5.4), so the matrix covers every pair of values of every two
features for every architecture; the full product runs on one model among the slow tests.
"""

import itertools

import pytest

from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.architecture.tracing import RecordingTracer
from learnvllm.engine_core.build import build_engine_core
from tests.engine.engines import make_config, pairwise, random_prompts, run_core

FACTORS = {
    "budget": [7, 16, 64, 2048],
    "block_size": [1, 8, 16, 32],
    "batch": [1, 3, 16],
    "prefix_caching": [True, False],
    "preemption": [False, True],
    "async_scheduling": [False, True],
}
KINDS = ("llama", "qwen2", "qwen3", "qwen3_moe", "gemma3")
NEW_TOKENS = 12
PARAMS = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
LENGTHS = [64, 1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 48, 65, 70, 5, 20]


def make_prompts(batch: int, vocab_size: int) -> list[list[int]]:
    """Lengths around every block size; two prompts are equal, and some begin alike."""
    prompts = random_prompts(LENGTHS if batch == 16 else [64, *LENGTHS[4:8]], vocab_size)
    return [*prompts[:-2], prompts[0], prompts[0] + prompts[-1]]


def check_row(model, row: dict, kind: str) -> int:
    """Run one combination, twice where prefixes are cached; returns the number of preemptions."""
    prompts = make_prompts(row["batch"], model.vocab_size)
    longest = max(map(len, prompts)) + NEW_TOKENS
    groups = 4 if kind == "gemma3" else 1  # of its four layers, each is a group of its own
    tight = 1 + groups * (-(-longest // row["block_size"]) + 2)
    tracer = RecordingTracer()
    config = make_config(
        model.directory,
        budget=row["budget"],
        block_size=row["block_size"],
        max_num_seqs=row["batch"],
        prefix_caching=row["prefix_caching"],
        num_blocks=tight if row["preemption"] else None,
        async_scheduling=row["async_scheduling"],
    )
    core = build_engine_core(config, tracer)
    try:
        for repeat in range(2 if row["prefix_caching"] else 1):
            hits_before = sum(s.num_cached_tokens for e in tracer.events for s in e.scheduled)
            for prompt, tokens in zip(prompts, run_core(core, prompts, PARAMS), strict=True):
                model.oracle.check(
                    prompt, tokens, max_tokens=NEW_TOKENS, ignore_eos=True, context=f"{kind} {row} {repeat}"
                )
            hits = sum(s.num_cached_tokens for e in tracer.events for s in e.scheduled) - hits_before
            if row["prefix_caching"] and repeat and not row["preemption"]:
                assert hits > 0, "the repeated prompts were not found in the prefix cache"
            if not row["prefix_caching"]:
                assert hits == 0
    finally:
        core.shutdown()
    return sum(len(event.preempted) for event in tracer.events)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_are_transformers_in_every_pair_of_circumstances(tiny_model, kind: str) -> None:
    model = tiny_model(kind)
    preemptions = 0
    for row in pairwise(FACTORS):
        found = check_row(model, row, kind)
        assert row["preemption"] or not found
        preemptions += found
    assert preemptions > 0, "no row of the matrix preempted anybody"


@pytest.mark.slow
@pytest.mark.parametrize("async_scheduling", [False, True])
@pytest.mark.parametrize("budget", FACTORS["budget"])
def test_greedy_tokens_are_transformers_in_the_full_product(tiny_model, budget, async_scheduling) -> None:
    model = tiny_model("llama")
    rest = {k: v for k, v in FACTORS.items() if k not in ("budget", "async_scheduling")}
    for values in itertools.product(*rest.values()):
        row = {"budget": budget, "async_scheduling": async_scheduling, **dict(zip(rest, values))}
        check_row(model, row, "llama")


@pytest.mark.parametrize("kind", KINDS)
def test_teacher_forcing_says_what_generate_says(tiny_model, kind: str) -> None:
    """The oracle's two faces agree, so that the cheap one may stand for the other."""
    model = tiny_model(kind)
    for prompt in random_prompts([1, 9, 40], model.vocab_size, seed=2):
        tokens = model.oracle.generate(prompt, NEW_TOKENS, ignore_eos=True)
        model.oracle.check(prompt, tokens, max_tokens=NEW_TOKENS, ignore_eos=True)
        wrong = [*tokens[:-1], (tokens[-1] + 1) % model.vocab_size]
        with pytest.raises(AssertionError, match="greedy decoding gives"):
            model.oracle.check(prompt, wrong, max_tokens=NEW_TOKENS, ignore_eos=True)
