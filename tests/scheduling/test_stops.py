"""A request ends at exactly the token that ends it, for the reason it ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnvllm.architecture.messages import FinishReason
from tests.scheduling.fake_runner import SchedulerLoop, make_config, oracle, prompt_of

PROMPT = prompt_of(6, 3)
GREEDY = oracle(PROMPT, 40)[0]


def run(prompt=PROMPT, max_tokens: int = 20, async_scheduling: bool = False, **options) -> SchedulerLoop:
    max_model_len = options.pop("max_model_len", 200)
    loop = SchedulerLoop(make_config(max_model_len=max_model_len), async_scheduling=async_scheduling)
    loop.add("a", prompt, max_tokens, **options)
    loop.run()
    return loop


both = pytest.mark.parametrize("async_scheduling", [False, True])


@both
@pytest.mark.parametrize("max_tokens", [1, 2, 3, 10])
def test_fault_10_max_tokens_is_the_number_of_tokens(max_tokens: int, async_scheduling: bool) -> None:
    loop = run(max_tokens=max_tokens, async_scheduling=async_scheduling)
    assert loop.tokens["a"] == GREEDY[:max_tokens]
    assert loop.finish_reasons["a"] == FinishReason.LENGTH


@both
def test_fault_10_no_token_is_computed_that_cannot_be_used(async_scheduling: bool) -> None:
    """The last token sampled is never computed, in flight or not."""
    loop = run(max_tokens=5, async_scheduling=async_scheduling)
    computed = sum(output.total_num_scheduled_tokens for output in loop.history)
    assert computed == len(PROMPT) + 4


@both
@pytest.mark.parametrize("length", [1, 13, 18, 19])
def test_fault_11_max_model_len_counts_prompt_and_output(length: int, async_scheduling: bool) -> None:
    loop = run(prompt_of(length), 100, async_scheduling, max_model_len=20)
    assert loop.tokens["a"] == oracle(prompt_of(length), 20 - length)[0]
    assert loop.finish_reasons["a"] == FinishReason.LENGTH


@both
def test_end_of_sequence_is_kept_and_stops(async_scheduling: bool) -> None:
    eos = GREEDY[4]
    loop = run(eos_token_ids=[eos], async_scheduling=async_scheduling)
    assert loop.tokens["a"] == GREEDY[: GREEDY.index(eos) + 1]
    assert loop.finish_reasons["a"] == FinishReason.STOP
    assert loop.outputs[-1].stop_reason is None


def test_any_of_several_end_tokens_stops() -> None:
    loop = run(eos_token_ids=[GREEDY[7], GREEDY[2]])
    assert len(loop.tokens["a"]) == min(GREEDY.index(GREEDY[7]), GREEDY.index(GREEDY[2])) + 1


@both
def test_ignore_eos_goes_on(async_scheduling: bool) -> None:
    loop = run(eos_token_ids=[GREEDY[2]], ignore_eos=True, async_scheduling=async_scheduling)
    assert loop.tokens["a"] == GREEDY[:20]


@both
def test_a_stop_token_stops_and_is_named(async_scheduling: bool) -> None:
    loop = run(stop_token_ids=[GREEDY[5]], async_scheduling=async_scheduling)
    assert loop.tokens["a"] == GREEDY[: GREEDY.index(GREEDY[5]) + 1]
    assert loop.finish_reasons["a"] == FinishReason.STOP
    assert loop.outputs[-1].stop_reason == GREEDY[5]


def test_a_stop_token_still_counts_when_end_of_sequence_is_ignored() -> None:
    loop = run(eos_token_ids=[GREEDY[2]], stop_token_ids=[GREEDY[2]], ignore_eos=True)
    assert loop.outputs[-1].stop_reason == GREEDY[2]


@both
def test_min_tokens_includes_the_token_itself(async_scheduling: bool) -> None:
    first = GREEDY.index(GREEDY[4])
    for min_tokens in (first, first + 1, first + 2):
        loop = run(eos_token_ids=[GREEDY[4]], min_tokens=min_tokens, async_scheduling=async_scheduling)
        expected, reason = oracle(PROMPT, 20, eos_token_ids=[GREEDY[4]], min_tokens=min_tokens)
        assert loop.tokens["a"] == expected
        assert loop.finish_reasons["a"] == reason
    assert len(expected) > first + 1


def test_min_tokens_does_not_outlast_the_length_limits() -> None:
    loop = run(prompt_of(6), 50, max_model_len=10, min_tokens=40)
    assert len(loop.tokens["a"]) == 4
    assert loop.finish_reasons["a"] == FinishReason.LENGTH


def test_the_last_allowed_token_being_a_stop_counts_as_a_stop() -> None:
    position = GREEDY.index(GREEDY[3])
    loop = run(max_tokens=position + 1, eos_token_ids=[GREEDY[3]])
    assert loop.finish_reasons["a"] == FinishReason.STOP


@given(
    length=st.integers(1, 20),
    max_tokens=st.integers(1, 20),
    min_tokens=st.integers(0, 10),
    eos=st.lists(st.integers(0, 49), max_size=4),
    stops=st.lists(st.integers(0, 49), max_size=4),
    max_model_len=st.integers(21, 40),
    async_scheduling=st.booleans(),
)
def test_stops_are_the_oracles(
    length, max_tokens, min_tokens, eos, stops, max_model_len, async_scheduling
) -> None:
    prompt = prompt_of(length, 1)
    min_tokens = min(min_tokens, max_tokens)
    loop = run(
        prompt,
        max_tokens,
        async_scheduling,
        eos_token_ids=eos,
        stop_token_ids=stops,
        min_tokens=min_tokens,
        max_model_len=max_model_len,
    )
    expected, reason = oracle(
        prompt,
        max_tokens,
        eos_token_ids=eos,
        stop_token_ids=stops,
        min_tokens=min_tokens,
        max_model_len=max_model_len,
    )
    assert (loop.tokens["a"], loop.finish_reasons["a"]) == (expected, reason)
