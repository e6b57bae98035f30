"""Sampling through the runner: rows are reused without a trace, logprobs belong to the right tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learnvllm.architecture.messages import LogprobsLists
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.executor_worker.sample.prompt_logprob import ROWS_AT_ONCE
from learnvllm.model_layers import ops
from tests.executor_worker.configs import make_config
from tests.executor_worker.driver import Driver
from tests.executor_worker.fake_model import expected_logits, greedy

PROMPT = [11, 12, 13, 14, 15, 16, 17]

EVERY_KIND = [
    SamplingParams(temperature=0.0),
    SamplingParams(seed=1),
    SamplingParams(top_p=0.6, temperature=2.0),
    SamplingParams(top_k=3, min_p=0.05, seed=9),
    SamplingParams(temperature=0.0, repetition_penalty=1.8, presence_penalty=0.5),
    SamplingParams(frequency_penalty=2.0, logprobs=3),
    SamplingParams(temperature=0.0, logit_bias={7: 5.0, 50: -100.0}, logprobs=0),
    SamplingParams(temperature=0.0, bad_words_token_ids=[[5], [6, 7], [40]]),
    SamplingParams(temperature=0.0, min_tokens=6, stop_token_ids=list(range(3, 60))),
    SamplingParams(prompt_logprobs=2, seed=0),
]


def alone(index: int, steps: int) -> list[int]:
    """The request's tokens with a fresh runner to itself."""
    driver = Driver(make_config())
    request = driver.add(f"request {index}", PROMPT, EVERY_KIND[index])
    driver.decode(steps)
    return request.output


ALONE = {index: alone(index, 8) for index in range(len(EVERY_KIND))}


def test_kinds_of_sampling_do_differ() -> None:
    """Or the tests below would show nothing."""
    assert len({tuple(tokens) for tokens in ALONE.values()}) >= 7


@pytest.mark.parametrize("second", range(len(EVERY_KIND)))
@pytest.mark.parametrize("first", range(len(EVERY_KIND)))
def test_a_reused_row_keeps_nothing_of_its_last_request(first: int, second: int) -> None:
    """One row, one request after the other: penalties, seeds, rules and logprobs of the first are gone."""
    driver = Driver(make_config(max_num_seqs=1))
    driver.add("before", PROMPT[::-1], EVERY_KIND[first])
    driver.decode(3)
    driver.finish("before")
    request = driver.add(f"request {second}", PROMPT, EVERY_KIND[second])
    driver.decode(8)
    assert request.output == ALONE[second]
    assert driver.last_output is not None
    assert set(driver.last_output.logprobs) == (
        {request.req_id} if EVERY_KIND[second].logprobs is not None else set()
    )
    assert driver.last_output.prompt_logprobs == {}


@settings(max_examples=25)
@given(data=st.data())
def test_any_schedule_gives_each_request_the_tokens_it_gets_alone(data: st.DataObject) -> None:
    """Random company, chunks, orders and preemptions, with every kind of sampling."""
    driver = Driver(make_config(max_num_seqs=5), seed=data.draw(st.integers(0, 5)))
    waiting = list(range(len(EVERY_KIND)))
    for _ in range(data.draw(st.integers(5, 40))):
        action = data.draw(st.sampled_from(["step", "step", "step", "step", "add", "preempt", "finish"]))
        names = list(driver.requests)
        if action == "add" and len(names) < 5 and waiting:
            index = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
            driver.add(f"request {index}", PROMPT, EVERY_KIND[index])
        elif action == "preempt" and names:
            driver.preempt(data.draw(st.sampled_from(names)))
        elif action == "finish" and names:
            request = driver.finish(data.draw(st.sampled_from(names)))
            assert request.output == ALONE[int(request.req_id.split()[1])][: len(request.output)]
        elif action == "step" and names:
            chosen = data.draw(st.permutations(names))
            going = [n for n in chosen if len(driver.requests[n].output) < 8]
            driver.step({n: data.draw(st.integers(1, driver.requests[n].remaining)) for n in going})
    for request in driver.requests.values():
        assert request.output == ALONE[int(request.req_id.split()[1])][: len(request.output)]


def log_softmax(tokens: list[int]) -> np.ndarray:
    logits = torch.from_numpy(expected_logits(tokens, make_config()))
    return logits.log_softmax(-1).numpy()


def check_row(lists: LogprobsLists, i: int, token: int, before: list[int], top: int) -> None:
    expected = log_softmax(before)
    best = np.argsort(-expected)[:top]
    assert lists.token_ids[i].tolist() == [token, *best]
    np.testing.assert_allclose(lists.logprobs[i], expected[[token, *best]], atol=1e-5)
    assert lists.ranks[i] == 1 + (expected > expected[token]).sum()


def test_logprobs_belong_to_the_sampled_tokens() -> None:
    driver = Driver(make_config())
    a = driver.add("a", PROMPT, SamplingParams(seed=3, temperature=3.0, logprobs=2))
    driver.add("b", PROMPT[:3])
    c = driver.add("c", PROMPT[:2], SamplingParams(temperature=0.0, logprobs=0))
    for step in range(4):
        output = driver.step({r.req_id: r.remaining for r in (driver.requests["b"], a, c)})
        assert set(output.logprobs) == {"a", "c"}
        check_row(output.logprobs["a"], 0, a.output[step], a.tokens[:-1], 2)
        check_row(output.logprobs["c"], 0, c.output[step], c.tokens[:-1], 0)


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_prompt_logprobs_come_with_the_chunk_that_computes_them(chunk: int) -> None:
    driver = Driver(make_config())
    driver.add("other", PROMPT)
    driver.decode(1)
    request = driver.add("a", PROMPT, SamplingParams(temperature=0.0, prompt_logprobs=2))
    while not request.output:
        start, count = request.computed, min(chunk, request.remaining)
        output = driver.step({"other": 1, "a": count})
        lists = output.prompt_logprobs["a"]
        assert lists.token_ids.shape == (min(start + count, len(PROMPT) - 1) - start, 3)
        for i in range(len(lists.ranks)):
            check_row(lists, i, PROMPT[start + i + 1], PROMPT[: start + i + 1], 2)
    assert request.output == greedy(PROMPT, 1, driver.config)
    assert driver.step({"a": 1}).prompt_logprobs == {}


def test_prompt_logprobs_of_a_long_prompt_use_bounded_memory() -> None:
    """Never more rows of logits at once than ROWS_AT_ONCE."""
    config = make_config(max_model_len=256, max_num_batched_tokens=256)
    driver = Driver(config)
    prompt = [3 + i % 90 for i in range(200)]
    driver.add("a", prompt, SamplingParams(temperature=0.0, prompt_logprobs=0))
    driver.runner.model.logit_rows.clear()  # type: ignore[attr-defined]
    output = driver.step({"a": 200})
    assert max(driver.runner.model.logit_rows) == ROWS_AT_ONCE  # type: ignore[attr-defined]
    lists = output.prompt_logprobs["a"]
    assert len(lists.ranks) == 199
    for i in (0, 63, 64, 198):
        check_row(lists, i, prompt[i + 1], prompt[: i + 1], 0)


def test_a_prompt_of_one_token_has_no_prompt_logprobs_but_arrays() -> None:
    driver = Driver(make_config())
    driver.add("a", [5], SamplingParams(temperature=0.0, prompt_logprobs=3))
    lists = driver.step({"a": 1}).prompt_logprobs["a"]
    assert lists.token_ids.shape == (0, 4)
    assert lists.ranks.shape == (0,)


def test_prompt_logprobs_start_anew_after_a_preemption_within_the_prompt() -> None:
    driver = Driver(make_config())
    driver.add("a", PROMPT, SamplingParams(temperature=0.0, prompt_logprobs=1))
    assert driver.step({"a": 4}).prompt_logprobs["a"].token_ids[:, 0].tolist() == PROMPT[1:5]
    driver.preempt("a")
    assert driver.step({"a": 2}).prompt_logprobs["a"].token_ids[:, 0].tolist() == PROMPT[1:3]


def test_the_next_request_in_a_row_gets_no_prompt_logprobs_it_did_not_ask_for() -> None:
    driver = Driver(make_config(max_num_seqs=1))
    driver.add("a", PROMPT, SamplingParams(temperature=0.0, prompt_logprobs=1))
    driver.step({"a": 4})
    driver.finish("a")  # aborted within its prompt
    driver.add("b", PROMPT)
    assert driver.step({"b": 7}).prompt_logprobs == {}


def test_prompt_logprobs_are_not_repeated_once_there_is_output() -> None:
    driver = Driver(make_config())
    driver.add("a", PROMPT, SamplingParams(temperature=0.0, prompt_logprobs=1))
    driver.decode(2)
    driver.preempt("a")
    assert driver.step({"a": 9}).prompt_logprobs == {}


def test_nans_are_reported_for_the_request_that_has_them() -> None:
    driver = Driver(make_config())
    driver.add("a", PROMPT)
    driver.add("b", PROMPT[:3])
    compute_logits = driver.runner.model.compute_logits

    def broken(hidden: torch.Tensor) -> torch.Tensor:
        logits = compute_logits(hidden)
        logits[0, 4:6] = float("nan")
        return logits

    driver.runner.model.compute_logits = broken  # type: ignore[method-assign]
    output = driver.step({"a": 7, "b": 3})
    assert output.num_nans_in_logits == {"a": 2}
    assert driver.requests["b"].output == greedy(PROMPT[:3], 1, driver.config)


@pytest.mark.parametrize(
    ("flag", "variable", "kernels"),
    [("numba", "torch", True), ("torch", "numba", False), (None, "torch", False), (None, "numba", True)],
)
def test_flag_or_variable_decides_for_the_model_and_the_sampler_alike(
    flag: Literal["numba", "torch"] | None, variable: str, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEARNVLLM_CPU_KERNELS", variable)
    config = make_config()
    driver = Driver(replace(config, device_config=replace(config.device_config, cpu_kernels=flag)))
    assert driver.runner.sampler.use_kernels is kernels
    assert (ops.cpu_kernels("cpu") is not None) is kernels
    assert (ops.cpu_kernels("cpu_linear") is not None) is kernels


def test_the_torch_sampler_gives_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEARNVLLM_CPU_KERNELS", "torch")
    driver = Driver(make_config(max_num_seqs=16))
    assert not driver.runner.sampler.use_kernels
    for index, params in enumerate(EVERY_KIND):
        driver.add(f"request {index}", PROMPT, params)
    driver.decode(8)
    assert {int(r.req_id.split()[1]): r.output for r in driver.requests.values()} == ALONE
