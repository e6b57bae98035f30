"""The door: what is let in is complete, what is not is refused with the field, the value and a way out."""

import pytest

from learnvllm.architecture.errors import ValidationError
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.engine_core.input_processor import InputProcessor
from tests.engine_core.parts import EOS, VOCAB_SIZE, byte_level_tokenizer, make_config

TOKENIZER = byte_level_tokenizer()
ALL_THERE_IS = SamplingParams(max_tokens=None)


def processor(kv_cache_tokens: int = 1000, tokenizer=TOKENIZER, **config) -> InputProcessor:
    return InputProcessor(make_config(**config), tokenizer, kv_cache_tokens)


def accept(prompt, params=None, door=None, **kwargs):
    return (door or processor()).process_inputs("r", prompt, params or ALL_THERE_IS, **kwargs)


def refuse(prompt, params=None, door=None, **kwargs) -> ValidationError:
    with pytest.raises(ValidationError) as caught:
        accept(prompt, params, door, **kwargs)
    return caught.value


def test_text_is_tokenized_and_its_text_kept() -> None:
    text, request = accept("hello world")
    assert text == "hello world"
    assert request.prompt_token_ids == TOKENIZER.encode("hello world")
    assert request.eos_token_ids == [EOS]
    assert request.arrival_time > 0


@pytest.mark.parametrize("prompt", [[5, 6, 7], {"prompt_token_ids": [5, 6, 7]}])
def test_token_ids_pass_as_they_are(prompt) -> None:
    text, request = accept(prompt)
    assert text is None
    assert request.prompt_token_ids == [5, 6, 7]


def test_text_may_come_by_name() -> None:
    assert accept({"prompt": "hello"})[0] == "hello"


def test_the_callers_objects_are_left_alone() -> None:
    prompt, params = [5, 6], SamplingParams(bad_words=["hello"])
    _, request = accept(prompt, params)
    request.prompt_token_ids.append(9)
    assert prompt == [5, 6]
    assert (params.max_tokens, params.bad_words_token_ids) == (16, [])


# -------------------------------------------------------------------------------------------- the prompt


@pytest.mark.parametrize("prompt", ["", [], {"prompt": ""}, {"prompt_token_ids": []}])
def test_fault_11_an_empty_prompt_is_refused(prompt) -> None:
    error = refuse(prompt)
    assert error.parameter == "prompt"
    assert "empty" in str(error)


@pytest.mark.parametrize("token_id", [-1, VOCAB_SIZE, 10**9])
def test_token_ids_outside_the_vocabulary_are_refused(token_id: int) -> None:
    error = refuse([5, token_id])
    assert (error.parameter, error.value) == ("prompt_token_ids", token_id)
    assert f"from 0 to {VOCAB_SIZE - 1}" in str(error)


@pytest.mark.parametrize(
    "prompt", [None, 5, [5, "a"], [5.0], [True], {"text": "x"}, {}, {"prompt": "a", "x": 1}]
)
def test_prompts_of_no_known_form_are_refused(prompt) -> None:
    assert refuse(prompt).parameter == "prompt"


@pytest.mark.parametrize("length", [128, 129, 500])
def test_fault_11_a_prompt_of_max_model_len_or_more_is_refused(length: int) -> None:
    error = refuse([5] * length)
    assert f"{length} tokens" in str(error)
    assert "128" in str(error)
    assert "127" in str(error)


def test_a_prompt_one_token_shorter_leaves_room_for_one() -> None:
    assert accept([5] * 127)[1].sampling_params.max_tokens == 1


def test_max_tokens_that_overshoot_are_refused_with_both_numbers() -> None:
    error = refuse([5] * 100, SamplingParams(max_tokens=29))
    assert (error.parameter, error.value) == ("max_tokens", 29)
    assert "100" in str(error)
    assert "at most 28" in str(error)
    assert accept([5] * 100, SamplingParams(max_tokens=28))[1].sampling_params.max_tokens == 28


def test_max_tokens_none_means_all_there_is_room_for_and_left_out_sixteen_as_in_vllm() -> None:
    assert accept([5] * 100)[1].sampling_params.max_tokens == 28
    assert accept([5] * 100, SamplingParams())[1].sampling_params.max_tokens == 16


def test_fault_1_a_prompt_that_never_fits_the_pool_is_refused() -> None:
    error = refuse([5] * 41, door=processor(kv_cache_tokens=40))
    assert "KV cache holds 40" in str(error)
    assert "--num-gpu-blocks-override" in str(error)
    accept([5] * 40, door=processor(kv_cache_tokens=40))


def test_text_without_a_tokenizer_is_refused() -> None:
    door = processor(tokenizer=None)
    assert "prompt_token_ids" in str(refuse("hello", door=door))
    assert refuse([5], SamplingParams(stop=["x"]), door).parameter == "stop"
    accept([5], door=door)


# ---------------------------------------------------------------------------------------- the parameters


def test_values_no_model_could_serve_are_refused_too() -> None:
    assert refuse([5], SamplingParams(temperature=-1.0)).parameter == "temperature"
    assert refuse([5], SamplingParams(top_p=0.0)).parameter == "top_p"
    assert refuse([5], SamplingParams(max_tokens=0)).parameter == "max_tokens"


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_logprobs_beyond_the_limit_are_refused(name: str) -> None:
    error = refuse([5], SamplingParams(**{name: 6}))
    assert (error.parameter, error.value) == (name, 6)
    assert "at most 5" in str(error)
    accept([5], SamplingParams(**{name: 5}))


def test_biased_and_stop_tokens_outside_the_vocabulary_are_refused() -> None:
    assert refuse([5], SamplingParams(logit_bias={VOCAB_SIZE: 1.0})).parameter == "logit_bias"
    assert refuse([5], SamplingParams(stop_token_ids=[-1])).parameter == "stop_token_ids"
    assert refuse([5], SamplingParams(bad_words_token_ids=[[VOCAB_SIZE]])).parameter == "bad_words_token_ids"


def test_min_tokens_beyond_what_fits_are_refused() -> None:
    assert refuse([5] * 120, SamplingParams(min_tokens=9, max_tokens=None)).parameter == "min_tokens"


def test_bad_words_in_both_forms_are_counted_together() -> None:
    params = SamplingParams(bad_words=["hello"], bad_words_token_ids=[[5]] * 512)
    error = refuse([5], params)
    assert error.parameter == "bad_words"
    assert "514 sequences" in str(error)


def test_bad_words_are_spelled_with_and_without_a_space() -> None:
    params = accept([5], SamplingParams(bad_words=["hello", " world"]))[1].sampling_params
    encode = TOKENIZER.encode
    assert params.bad_words_token_ids == [
        encode("hello"),
        encode(" hello"),
        encode("world"),
        encode(" world"),
    ]


def test_priority_is_refused_where_it_would_have_no_effect() -> None:
    error = refuse([5], priority=3)
    assert (error.parameter, error.value) == ("priority", 3)
    assert "--scheduling-policy priority" in str(error)
    assert accept([5], door=processor(policy="priority"), priority=3)[1].priority == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("request_id", 5),
        ("request_id", "\ud800"),
        ("cache_salt", 5),
        ("cache_salt", "\udfff"),
        ("arrival_time", "now"),
        ("arrival_time", float("nan")),
        ("arrival_time", 10**400),
        ("priority", 2**31),
        ("priority", 1.0),
        ("priority", True),
        ("priority", None),
    ],
)
def test_what_comes_with_a_request_is_refused_if_it_cannot_be_sent_or_ordered(name: str, value) -> None:
    given = {"request_id": "r", "prompt": [5], "params": ALL_THERE_IS, name: value}
    with pytest.raises(ValidationError) as caught:
        processor(policy="priority").process_inputs(**given)
    assert caught.value.parameter == name


def test_a_prompt_with_lone_surrogates_is_refused() -> None:
    assert refuse("a\ud800b").parameter == "prompt"
