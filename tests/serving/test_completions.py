"""/v1/completions, /tokenize, /v1/models and the small routes, against an engine whose answer is known."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnvllm import __version__
from learnvllm.serving.logprobs import TextPosition, token_bytes
from learnvllm.serving.serving_completion import DEFAULT_MAX_TOKENS
from tests.serving.fake_server import FakeServer
from tests.serving.fake_tokenizer import fake_tokenizer
from tests.serving.test_chat import events


def test_a_completion(sdk: openai.OpenAI, fake_server: FakeServer) -> None:
    answer = sdk.completions.create(model="tiny", prompt="hello", max_tokens=2)
    assert answer.id.startswith("cmpl-")
    assert (answer.object, answer.choices[0].text) == ("text_completion", " the world")
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (1, 2)


def test_sixteen_tokens_unless_asked_or_out_of_room(sdk: openai.OpenAI) -> None:
    answer = sdk.completions.create(model="tiny", prompt="hello")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == DEFAULT_MAX_TOKENS
    near_the_end = sdk.completions.create(model="tiny", prompt=[5] * 250)
    assert near_the_end.usage is not None
    assert near_the_end.usage.completion_tokens == 6


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("hello", ["hello"]),
        (["hello", " world"], ["hello", " world"]),
        ([104, 105], None),
        ([[104, 105], [106]], None),
        (["hello", [106]], None),
    ],
    ids=["text", "texts", "ids", "lists of ids", "mixed"],
)
def test_prompts_come_as_text_or_ids_one_or_many(
    sdk: openai.OpenAI, fake_server: FakeServer, prompt: Any, expected: list[str] | None
) -> None:
    answer = sdk.completions.create(model="tiny", prompt=prompt, max_tokens=1, n=2, echo=True)
    prompts = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
    assert [choice.index for choice in answer.choices] == list(range(2 * len(prompts)))
    tokenizer = fake_server.engine.tokenizer
    texts = [p if isinstance(p, str) else tokenizer.decode(p) for p in prompts]
    assert expected is None or texts == expected
    assert [choice.text for choice in answer.choices] == [
        text + continuation for text in texts for continuation in (" the", " world")
    ]


def test_logprobs_are_parallel_lists_with_offsets_into_the_text(sdk: openai.OpenAI) -> None:
    choice = sdk.completions.create(model="tiny", prompt="hello", max_tokens=3, logprobs=2).choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == [" the", " world", " of"]
    assert choice.logprobs.text_offset == [0, 4, 10]
    assert choice.logprobs.token_logprobs == [-0.5] * 3
    assert choice.logprobs.top_logprobs is not None
    assert [len(top) for top in choice.logprobs.top_logprobs] == [2] * 3
    for offset, token in zip(choice.logprobs.text_offset, choice.logprobs.tokens):
        assert choice.text[offset:].startswith(token)


def test_echo_with_logprobs_scores_the_prompt_too(sdk: openai.OpenAI) -> None:
    kwargs: Any = {"model": "tiny", "prompt": "abc", "echo": True, "logprobs": 0}
    choice = sdk.completions.create(max_tokens=1, **kwargs).choices[0]
    assert choice.text == "abc the"
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["a", "b", "c", " the"]
    assert choice.logprobs.token_logprobs == [None, -0.5, -0.5, -0.5]
    assert choice.logprobs.text_offset == [0, 1, 2, 3]


def test_max_tokens_zero_with_echo_scores_the_prompt_and_nothing_else(sdk: openai.OpenAI) -> None:
    answer = sdk.completions.create(model="tiny", prompt="abc", echo=True, logprobs=0, max_tokens=0)
    assert answer.choices[0].text == "abc"
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens == ["a", "b", "c"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0


def test_a_stream_says_the_same_as_the_whole(sdk: openai.OpenAI) -> None:
    kwargs: Any = {
        "model": "tiny", "prompt": ["abc", "hello"], "max_tokens": 4, "n": 2, "logprobs": 1, "echo": True,
    }  # fmt: skip
    whole = sdk.completions.create(**kwargs)
    texts, tokens, offsets = [""] * 4, [[] for _ in range(4)], [[] for _ in range(4)]
    for chunk in sdk.completions.create(stream=True, **kwargs):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            if choice.logprobs:
                tokens[choice.index] += choice.logprobs.tokens or []
                offsets[choice.index] += choice.logprobs.text_offset or []
    assert texts == [choice.text for choice in whole.choices]
    assert tokens == [choice.logprobs.tokens for choice in whole.choices if choice.logprobs]
    assert offsets == [choice.logprobs.text_offset for choice in whole.choices if choice.logprobs]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("prompt", "tokens_of_prompt"),
    [("é!ab", [0, 0, 1, 2, 3]), ("a<|im_end|>b", [0, 1, 11]), ("😀.", [0, 0, 0, 0, 1])],
)
def test_offsets_count_characters_that_several_tokens_share_once(
    http: httpx.Client, prompt: str, tokens_of_prompt: list[int], stream: bool
) -> None:
    body = {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 2}
    chunks = (
        events(http, "/v1/completions", body) if stream else [http.post("/v1/completions", json=body).json()]
    )
    offsets = [offset for chunk in chunks for offset in chunk["choices"][0]["logprobs"]["text_offset"]]
    assert offsets == [*tokens_of_prompt, len(prompt), len(prompt) + len(" the")]


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_every_token_begins_at_its_character(text: str) -> None:
    tokenizer = fake_tokenizer()
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    position = TextPosition()
    pieces = [bytes(token_bytes(tokenizer, token, tokenizer.token_text(token))) for token in token_ids]
    offsets = [position.pass_by(piece) for piece in pieces]
    assert b"".join(pieces).decode() == text
    before = b""
    for offset, piece in zip(offsets, pieces):
        assert offset == len(before.decode(errors="ignore"))
        before += piece


def test_a_stream_brings_the_logprobs_of_each_prompt_once(http: httpx.Client) -> None:
    body = {"prompt": ["abc", "hello"], "max_tokens": 3, "n": 2, "prompt_logprobs": 1}
    choices = [choice for chunk in events(http, "/v1/completions", body) for choice in chunk["choices"]]
    assert sorted(choice["index"] for choice in choices if "prompt_logprobs" in choice) == [0, 2]
    whole = http.post("/v1/completions", json=body).json()["choices"]
    for prompt_choice in (0, 2):
        (brought,) = (c for c in choices if c["index"] == prompt_choice and "prompt_logprobs" in c)
        assert brought["prompt_logprobs"] == whole[prompt_choice]["prompt_logprobs"]


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ([b"a", b"\xe9", b"b", b"c"], [0, 1, 2, 3]),
        ([b"\xf0\x9f", b"\xe6", b"\x97\xa5", b"b"], [0, 1, 1, 2]),
        ([b"\xe6", b"\xff", b"b"], [0, 1, 2]),
    ],
)
def test_bytes_that_never_become_a_character_have_a_place_too(
    pieces: list[bytes], expected: list[int]
) -> None:
    position = TextPosition()
    assert [position.pass_by(piece) for piece in pieces] == expected
    text = b"".join(pieces).decode(errors="replace")
    assert text[expected[-1] :] == pieces[-1].decode()


def test_streamed_usage(http: httpx.Client) -> None:
    body = {"prompt": ["a", "b"], "max_tokens": 2, "stream_options": {"include_usage": True}}
    *chunks, last = events(http, "/v1/completions", body)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == 2
    assert last["usage"]["completion_tokens"] == 4


def test_best_of_may_equal_n(http: httpx.Client) -> None:
    assert http.post("/v1/completions", json={"prompt": "a", "n": 2, "best_of": 2}).status_code == 200


def test_tokens_may_be_spelled_as_ids(http: httpx.Client) -> None:
    body = {"prompt": "a", "max_tokens": 1, "logprobs": 0, "return_tokens_as_token_ids": True}
    tokens = http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]["tokens"]
    assert tokens[0].startswith("token_id:")


# ------------------------------------------------------------------------------------------ small routes


def test_models(sdk: openai.OpenAI) -> None:
    (model,) = sdk.models.list().data
    assert (model.id, model.object) == ("tiny", "model")
    assert sdk.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("other")


def test_tokenize_and_back(http: httpx.Client) -> None:
    tokenized = http.post("/tokenize", json={"prompt": "hello world ½", "return_token_strs": True}).json()
    assert tokenized["count"] == len(tokenized["tokens"]) == len(tokenized["token_strs"])
    assert tokenized["max_model_len"] == 256
    assert http.post("/detokenize", json={"tokens": tokenized["tokens"]}).json() == {
        "prompt": "hello world ½"
    }


def test_tokenize_counts_a_chat_as_the_model_reads_it(http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "hello"}]
    tokens = http.post("/tokenize", json={"messages": messages}).json()["tokens"]
    text = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert text == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "prompt"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"promt": "a"}, "promt"),
        ("/detokenize", {"tokens": [5000]}, "tokens"),
        ("/detokenize", {"tokens": "5"}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_bad_tokenize_requests(http: httpx.Client, path: str, body: dict[str, Any], param: str) -> None:
    response = http.post(path, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_health_version_metrics(http: httpx.Client) -> None:
    assert http.get("/health").status_code == 200
    assert http.get("/version").json() == {"version": __version__}
    assert "vllm:num_requests_running" in http.get("/metrics").text


def test_the_landing_page_is_text_for_terminals_and_a_page_for_browsers(http: httpx.Client) -> None:
    text = http.get("/").text
    assert "curl http" in text
    assert '"max_tokens": 100, "temperature": 0.2, "stream": true}' in text, (
        "a small model at 1 talks nonsense"
    )
    assert "from openai import OpenAI" in text
    page = http.get("/", headers={"Accept": "text/html"})
    assert page.headers["content-type"].startswith("text/html")
    assert "tiny" in page.text
    assert "[[" not in page.text
    assert "http" not in page.text.replace(str(http.base_url).rstrip("/"), "")  # loads nothing from elsewhere


def test_every_route_is_described(http: httpx.Client) -> None:
    paths = http.get("/openapi.json").json()["paths"]
    landing = http.get("/").text
    assert all(path in landing for path in paths)
    assert {"/v1/chat/completions", "/v1/completions", "/tokenize"} <= set(paths)


def test_a_health_check_may_be_a_head_request(http: httpx.Client) -> None:
    assert http.head("/health").status_code == 200
