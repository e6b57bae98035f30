"""Sampling parameters: what can be served passes, what cannot is refused with its name and value."""

import copy
import pickle
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnvllm.architecture.errors import ValidationError
from learnvllm.architecture.sampling_params import RequestOutputKind, SamplingParams

NAN, INF = float("nan"), float("inf")

BAD: dict[str, list[Any]] = {
    "n": [0, -1, 129, 1.5, True, None],
    "temperature": [-0.1, NAN, INF, "hot", None, True, 1e300, 10**400],
    "top_p": [0.0, -0.1, 1.1, NAN],
    "top_k": [-2, 3.0, 2**31, 2**70, "5", True, NAN],
    "min_p": [-0.1, 1.1, NAN],
    "presence_penalty": [-2.1, 2.1, NAN],
    "frequency_penalty": [-2.1, 2.1, NAN],
    "repetition_penalty": [0.0, -1.0, INF, NAN, 1e300, 1e-300],
    "seed": [2**63, -(2**63) - 1, "1", "\ud800", True],
    "stop": [{}, "", "\ud800", "x" * 513, [""], ["x"] * 17, ["x" * 513], [5], [None], ["\ud800"]],
    "stop_token_ids": [["a"], 5, [2**31], [2**70], [1.0], [True], [5] * 513],
    "max_tokens": [0, -1, 1.5, 2**31, 2**70, True],
    "min_tokens": [-1, 2**70, 1.0],
    "logprobs": [-1, True, 2**70],
    "prompt_logprobs": [-1, 2**70],
    "bad_words": [[""], "word", ["\udfff"], ["x"] * 257, ["x" * 65]],
    "bad_words_token_ids": [[[2**70]], [[1.0]], [5], [[5]] * 513],
    "logit_bias": [
        dict.fromkeys(range(513), 1.0),
        {5: 101.0},
        {5: -101.0},
        {5: NAN},
        {"x": 1.0},
        {"\ud800": 1.0},
        {2**70: 1.0},
    ],
    "stream_interval": [0, 2**70, 1.5, True],
    "output_kind": [7],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_a_bad_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        SamplingParams(**{name: value}).verify()
    assert caught.value.parameter == name
    assert str(caught.value).startswith(f"{name}=")
    str(caught.value).encode()  # it can be printed, whatever was given


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("bad_words", "word", "Expected `list`, got `str`"),
        ("logit_bias", [5], "Expected `dict`, got `list`"),
        ("n", None, "Expected `int`, got `None`"),
    ],
)
def test_a_wrong_type_is_named_as_python_names_it(name: str, value: Any, rule: str) -> None:
    with pytest.raises(ValidationError, match=rule):
        SamplingParams(**{name: value}).verify()


@pytest.mark.parametrize("name", ["stop", "stop_token_ids", "bad_words", "bad_words_token_ids", "logit_bias"])
def test_none_means_none_of_them(name: str) -> None:
    assert SamplingParams(**{name: None}).verify() == SamplingParams()


def test_one_stop_string_may_come_bare_and_lists_as_tuples() -> None:
    assert SamplingParams(stop="END").verify().stop == ["END"]
    params = SamplingParams(bad_words=("a",), bad_words_token_ids=((1, 2),)).verify()  # type: ignore[arg-type]
    assert (params.bad_words, params.bad_words_token_ids) == (["a"], [[1, 2]])


GOOD: dict[str, list[Any]] = {
    "n": [1, 128],
    "temperature": [0, 0.0, 1e-9, 2.5],
    "top_p": [1, 0.01],
    "top_k": [-1, 0, 1, 10**6],
    "min_p": [0, 1],
    "presence_penalty": [-2, 2],
    "repetition_penalty": [0.01, 1.0, 5.0],
    "seed": [None, 0, -(2**63), 2**63 - 1],
    "stop": [[], ["a"] * 16, ["x" * 512]],
    "max_tokens": [None, 1, 10**9],
    "logprobs": [None, 0, 20],
    "logit_bias": [{}, {5: 100, 6: -100.0}, dict.fromkeys(range(512), 1.0)],
    "stop_token_ids": [[5] * 512],
    "bad_words": [["x" * 64] * 256],
    "output_kind": list(RequestOutputKind),
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in GOOD.items() for value in values]
)
def test_values_at_the_limits_pass(name: str, value: Any) -> None:
    params = SamplingParams(**{name: value})
    assert params.verify() is params


def test_values_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"min_tokens=5: min_tokens must not exceed max_tokens \(4\)"):
        SamplingParams(min_tokens=5, max_tokens=4).verify()
    with pytest.raises(ValidationError, match="needs detokenize=True"):
        SamplingParams(stop=["x"], detokenize=False).verify()


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=2)  # type: ignore[call-arg]


@given(temperature=st.floats(0, 3), other=st.integers(0, 10))
def test_greedy_means_temperature_zero_or_as_good_as_zero(temperature: float, other: int) -> None:
    assert SamplingParams(temperature=temperature, top_k=other).greedy == (temperature < 1e-5)


def test_parameters_of_two_requests_share_nothing() -> None:
    first, second = SamplingParams(), SamplingParams()
    first.stop.append("x")
    first.logit_bias[3] = 1.0
    assert (second.stop, second.logit_bias) == ([], {})


def test_parameters_survive_every_way_across_a_process() -> None:
    params = SamplingParams(temperature=0.5, stop=["a"], logit_bias={7: -1.5}, seed=3, logprobs=0)
    assert pickle.loads(pickle.dumps(params)) == params
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
    assert copy.deepcopy(params) == params
    assert len(msgspec.msgpack.encode(SamplingParams())) < 4  # defaults are not sent
