"""Grader of config_checks: what cannot work is refused by name, what can stays as it is, hashes agree."""

import copy
import dataclasses
import os
import re
import subprocess
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.day01 import lesson, model_config
from support.refusal import refuses

from learnvllm.architecture import config
from learnvllm.architecture.config import CacheConfig, DeviceConfig
from learnvllm.architecture.errors import ConfigError
from learnvllm.scheduling.toy import toy_config
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
SchedulerConfig, EngineConfig = subject.SchedulerConfig, subject.EngineConfig


def refusal(build):
    """The ConfigError that `build` raises, or None."""
    try:
        build()
    except ConfigError as error:
        return error
    return None


def scheduler(**fields):
    return lambda: SchedulerConfig(**fields)


def engine(max_model_len=1000, blocks=None, **fields):
    return lambda: EngineConfig(
        model_config(max_model_len),
        cache_config=CacheConfig(num_gpu_blocks_override=blocks),
        scheduler_config=SchedulerConfig(**fields),
    )


def expect_refusal(build, parameter, value, case, why):
    error = refusal(build)
    assert error is not None, lesson(
        f"{case} must be refused: {why}", expected="ConfigError", got="accepted", read="configuration"
    )
    assert (error.parameter, error.value) == (parameter, value), lesson(
        "The error names the field to change, and its value (ConfigError's parameter and value).",
        case=case,
        expected=(parameter, value),
        got=(error.parameter, error.value),
        read="configuration",
    )


def expect_accepted(build, case, why):
    error = refusal(build)
    assert error is None, lesson(
        f"{case} must be accepted: {why}", expected="no error", got=error, read="configuration"
    )


LEAST = {
    "max_num_batched_tokens": 1,
    "max_num_seqs": 1,
    "max_num_queued_reqs": 1,
    "max_num_queued_tokens": 1,
    "long_prefill_token_threshold": 0,
    "prefill_tokens_per_decode": 0,
}


@pytest.mark.points(3)
@pytest.mark.parametrize("name", LEAST)
def test_each_field_has_a_least_value(name):
    least = LEAST[name]
    for value in (least - 1, -100):
        expect_refusal(
            scheduler(**{name: value}), name, value, f"{name}={value}", f"the least that works is {least}."
        )
    for value in (least, least + 1, 4000):
        expect_accepted(scheduler(**{name: value}), f"{name}={value}", f"the least that works is {least}.")


@pytest.mark.points(1)
def test_what_would_take_all_memory_or_do_nothing_is_refused_too():
    most = config.MAX_NUM_SEQS
    why = "each request that may run has rows of its own from the start."
    expect_refusal(
        scheduler(max_num_seqs=most + 1), "max_num_seqs", most + 1, f"max_num_seqs={most + 1}", why
    )
    expect_accepted(scheduler(max_num_seqs=most), f"max_num_seqs={most}", "it is the most that is allowed.")
    for share, accepted in ((None, True), (0, True), (4, False)):
        case = f"prefill_tokens_per_decode={share}, enable_chunked_prefill=False"
        build = scheduler(prefill_tokens_per_decode=share, enable_chunked_prefill=False)
        if accepted:
            expect_accepted(
                build, case, "None leaves it to the platform, 0 says that there is no such limit."
            )
        else:
            why = "it limits the pieces of prompts, and without chunked prefill there are none."
            expect_refusal(build, "prefill_tokens_per_decode", share, case, why)


@pytest.mark.points(1)
@pytest.mark.parametrize(
    "name", ["max_num_queued_reqs", "max_num_queued_tokens", "prefill_tokens_per_decode"]
)
def test_none_means_that_nobody_has_decided(name):
    expect_accepted(scheduler(**{name: None}), f"{name}=None", "it is the default.")


@pytest.mark.points(2)
@given(st.integers(-5, 5), st.sampled_from(sorted(LEAST)))
def test_an_error_says_what_where_and_what_to_do_in_one_line(value, name):
    assume(value < LEAST[name])
    error = refusal(scheduler(**{name: value}))
    assert error is not None, lesson(
        f"{name}={value} must be refused.", expected="ConfigError", got="accepted", read="configuration"
    )
    text = str(error)
    assert re.fullmatch(rf"{name}={value}: {name} \S.*\.", text), lesson(
        "An error reads `name=value: name rule.`, in one line, so that whoever reads it in a log knows "
        "which flag to change and how.",
        case=f"{name}={value}",
        expected=f"{name}={value}: {name} must be … .",
        got=text,
        read="configuration",
    )


@pytest.mark.points(2)
@given(st.integers(2, 1000), st.integers(1, 1200))
def test_without_chunking_the_longest_prompt_must_fit_a_step(max_model_len, budget):
    case = f"enable_chunked_prefill=False, max_num_batched_tokens={budget}, max_model_len={max_model_len}"
    build = engine(max_model_len, enable_chunked_prefill=False, max_num_batched_tokens=budget, max_num_seqs=1)
    if budget >= max_model_len:
        expect_accepted(build, case, "the longest prompt fits a step.")
        return
    why = "a prompt longer than the budget would never be scheduled, and block everybody behind it."
    expect_refusal(build, "max_num_batched_tokens", budget, case, why)
    text = str(refusal(build))
    assert str(max_model_len) in text.partition(":")[2], lesson(
        "The rule names the value that is at odds with this one.",
        case=case,
        expected=max_model_len,
        got=text,
        read="configuration",
    )


@pytest.mark.points(1)
@given(st.integers(1, 300), st.integers(1, 300))
def test_without_chunking_a_step_must_hold_a_token_of_everybody(budget, seqs):
    case = (
        f"enable_chunked_prefill=False, max_num_batched_tokens={budget}, max_num_seqs={seqs}, max_model_len=2"
    )
    assume(budget >= 2)
    build = engine(2, enable_chunked_prefill=False, max_num_batched_tokens=budget, max_num_seqs=seqs)
    if budget >= seqs:
        expect_accepted(build, case, "everybody gets a token in each step.")
    else:
        expect_refusal(build, "max_num_seqs", seqs, case, "some of them would be left out of every step.")


@pytest.mark.points(1)
def test_with_chunking_prompts_are_cut_and_neither_rule_holds():
    case = "max_num_batched_tokens=16, max_num_seqs=64, max_model_len=1000"
    expect_accepted(
        engine(max_num_batched_tokens=16, max_num_seqs=64), case, "prompts are cut to the budget."
    )


@pytest.mark.points(1)
def test_a_pool_needs_a_block_beside_the_null_block():
    expect_refusal(
        engine(blocks=1),
        "num_gpu_blocks_override",
        1,
        "num_gpu_blocks_override=1",
        "block 0 is never handed out.",
    )
    for blocks in (2, 100, None):
        expect_accepted(
            engine(blocks=blocks), f"num_gpu_blocks_override={blocks}", "one block can be handed out."
        )


@pytest.mark.points(2)
def test_what_is_accepted_is_what_was_asked_for():
    asked = {
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 3,
        "enable_chunked_prefill": False,
        "long_prefill_token_threshold": 5000,
        "prefill_tokens_per_decode": 0,
        "max_num_queued_reqs": 7,
    }
    built = engine(**asked)()
    got = {name: getattr(built.scheduler_config, name) for name in asked}
    assert got == asked, lesson(
        "A check refuses or accepts; it changes nothing. What runs is what was asked for.",
        expected=asked,
        got=got,
        read="configuration",
    )
    refuses(
        dataclasses.FrozenInstanceError,
        lambda: setattr(built.scheduler_config, "max_num_seqs", 4),
        "A configuration does not change: setting scheduler_config.max_num_seqs must raise "
        "FrozenInstanceError.",
    )


@pytest.mark.points(1)
def test_every_field_counts_in_the_hash():
    def build(max_model_len=1000, device=None, **fields):
        return EngineConfig(
            model_config(max_model_len),
            cache_config=CacheConfig(**{k: v for k, v in fields.items() if k in ("block_size", "watermark")}),
            scheduler_config=SchedulerConfig(**{k: v for k, v in fields.items() if k == "policy"}),
            device_config=DeviceConfig(num_threads=device),
        )

    variants = {
        "as it is": build(),
        "max_model_len": build(500),
        "block_size": build(block_size=8),
        "watermark": build(watermark=0.5),
        "policy": build(policy="priority"),
        "num_threads": build(device=3),
    }
    seen = {}
    for name, variant in variants.items():
        digest = variant.config_hash()
        assert digest not in seen, lesson(
            "Configurations that differ in any field of any part have different hashes.",
            case=f"{seen.get(digest)} / changed: {name}",
            expected="two hashes",
            got=digest,
            read="fingerprint",
        )
        seen[digest] = name
    again = copy.deepcopy(variants["as it is"])
    assert again.config_hash() == variants["as it is"].config_hash(), lesson(
        "A copy has the hash of the original, and asking twice gives the same.",
        expected=variants["as it is"].config_hash(),
        got=again.config_hash(),
        read="fingerprint",
    )


def hash_elsewhere(seed):
    """The hash of one configuration in a process of its own, with its own salt for text."""
    code = (
        "import importlib.util, sys\n"
        "spec = importlib.util.spec_from_file_location('subject', sys.argv[1])\n"
        "subject = sys.modules['subject'] = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(subject)\n"
        "from learnvllm.scheduling.toy import toy_config\n"
        "print(subject.EngineConfig(toy_config().model_config).config_hash())\n"
    )
    environ = {k: v for k, v in os.environ.items() if k != "LEARNVLLM_OVERLAY"}
    done = subprocess.run(
        [sys.executable, "-c", code, subject.__file__],
        capture_output=True,
        text=True,
        env={**environ, "PYTHONHASHSEED": str(seed)},
        timeout=30,
    )
    assert done.returncode == 0, f"config_hash() failed in a process of its own:\n{done.stderr[-600:]}"
    return done.stdout.strip()


@pytest.mark.points(2)
def test_the_hash_is_the_same_in_every_process():
    subject.EngineConfig(toy_config().model_config).config_hash()  # what is not written says so here
    first, second = hash_elsewhere(1), hash_elsewhere(2)
    assert first == second, lesson(
        "The front end and the engine compare this hash when they shake hands: the same configuration must "
        "give the same text in every process. (Python salts hash() of text anew in each.)",
        expected=first,
        got=second,
        read="fingerprint",
    )
    assert re.fullmatch("[0-9a-f]{64}", first), lesson(
        "64 hexadecimal digits: SHA-256.", expected="64 digits", got=first, read="fingerprint"
    )
