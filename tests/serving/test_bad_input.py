"""What is refused, with which status, and what the refusal says: what was wrong, the value, what to do."""

from __future__ import annotations

import gzip
import json
import time
from typing import Any

import httpx
import openai
import pytest

from learnvllm.architecture.errors import QueueFullError
from learnvllm.serving.not_supported import NOT_SUPPORTED
from learnvllm.serving.protocol import ChatCompletionRequest, CompletionRequest
from tests.serving.fake_server import FakeServer

COMPLETION = {"model": "tiny", "prompt": "hello", "max_tokens": 2}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


def refused(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error, after checking that the body has exactly OpenAI's shape."""
    assert response.status_code == status, response.text
    body = response.json()
    assert list(body) == ["error"]
    assert list(body["error"]) == ["message", "type", "param", "code"]
    assert body["error"]["message"]
    return body["error"]


def post(http: httpx.Client, body: dict[str, Any]) -> httpx.Response:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    return http.post(path, json=body)


@pytest.mark.parametrize(
    "content",
    [b"{", b"", b"[]", b"null", b'"text"', b"\xff\xfe", b"[" * 100_000, b'{"prompt": }'],
    ids=["open", "empty", "list", "null", "string", "not utf-8", "deep", "hole"],
)
def test_a_body_that_is_no_json_object_is_refused(http: httpx.Client, content: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    error = refused(http.post("/v1/completions", content=content, headers=headers))
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("content", "headers", "says"),
    [
        (b"[" * 100_000, {}, "nested too deeply"),
        (b'{"prompt": "hello", "seed": ' + b"9" * 5000 + b"}", {}, "not valid JSON"),
        ('{"prompt": "é"}'.encode("latin-1"), {}, "not UTF-8 at byte 12"),
        (gzip.compress(b'{"prompt": "hello"}'), {"Content-Encoding": "gzip"}, "uncompressed"),
    ],
    ids=["deep", "digits", "latin-1", "gzip"],
)
def test_a_body_that_cannot_be_parsed_is_refused_with_the_reason(
    http: httpx.Client, content: bytes, headers: dict[str, str], says: str
) -> None:
    headers = {"Content-Type": "application/json", **headers}
    assert says in refused(http.post("/v1/completions", content=content, headers=headers))["message"]


LONE = "\ud800"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": LONE}),
        ("/tokenize", {"messages": [{"role": "user", "content": LONE}]}),
        ("/detokenize", {"tokens": [1], "model": LONE}),
        ("/v1/completions", {**COMPLETION, LONE: 1}),
        ("/v1/completions", {**COMPLETION, "model": LONE}),
        ("/v1/completions", {**COMPLETION, "user": LONE}),
        ("/v1/completions", {**COMPLETION, "bad_words": [LONE]}),
        ("/v1/completions", {**COMPLETION, "logit_bias": {LONE: 1}}),
        ("/v1/completions", {**COMPLETION, "stream": True, "stream_options": {LONE: True}}),
        ("/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"a": {"b": [LONE]}}}),
        ("/v1/chat/completions", {**CHAT, "messages": [{"role": LONE, "content": "a"}]}),
        ("/v1/chat/completions", {**CHAT, "messages": [{"role": "user", "content": "a", LONE: 1}]}),
    ],
)
def test_what_is_no_text_is_refused_wherever_it_stands(
    http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    headers = {"Content-Type": "application/json"}
    error = refused(http.post(path, content=json.dumps(body), headers=headers))
    assert "surrogate" in error["message"]


def test_what_is_long_is_not_echoed_whole(http: httpx.Client) -> None:
    long = "x" * 100_000
    for change in ({long: 1}, {"model": long}, {"logit_bias": {"9" * 5000: 1}}, {"stop": {long: 1}}):
        response = post(http, {**COMPLETION, **change})
        refused(response, 404 if "model" in change else 400)
        assert len(response.content) < 1500
    refused(http.get(f"/{long[:5000]}"), 404)


LONG_LISTS: list[dict[str, Any]] = [
    {"stop_token_ids": [5] * 100_000},
    {"bad_words": ["y"] * 100_000},
    {"bad_words": ["y " * 1_000_000]},
    {"logit_bias": {str(i): 1 for i in range(100_000)}},
]


@pytest.mark.parametrize("change", LONG_LISTS, ids=lambda change: next(iter(change))[:20])
def test_one_request_does_not_keep_the_others_waiting(http: httpx.Client, change: dict[str, Any]) -> None:
    body = {"prompt": ["a"] * 1000, "max_tokens": 1, **change}
    began = time.monotonic()
    assert http.post("/v1/completions", json=body).status_code == 400
    assert time.monotonic() - began < 5  # looked at once a prompt, these take minutes


def test_what_a_long_name_may_have_meant_is_not_searched_for(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(name: str, *args: Any, **kwargs: Any) -> list[str]:
        assert len(name) < 1000  # a second, in which nobody else is served
        return []

    monkeypatch.setattr("learnvllm.serving.content.get_close_matches", search)
    for change, status in (({"x" * 10_000: 1}, 400), ({"model": "x" * 10_000}, 404), ({"nope": 1}, 400)):
        refused(post(http, {**COMPLETION, **change}), status)


def test_a_newer_name_is_told_the_older_one(http: httpx.Client) -> None:
    error = refused(post(http, {**COMPLETION, "max_completion_tokens": 5}))
    assert "'max_tokens'" in error["message"]


def test_a_missing_content_type_is_named(http: httpx.Client) -> None:
    error = refused(http.post("/v1/completions", content=json.dumps(COMPLETION)))
    assert "Content-Type: application/json" in error["message"]


@pytest.mark.parametrize("body", [COMPLETION, CHAT], ids=["completion", "chat"])
def test_an_unknown_field_is_refused_with_the_name_that_was_meant(
    http: httpx.Client, body: dict[str, Any]
) -> None:
    error = refused(post(http, {**body, "temprature": 0.5}))
    assert error["param"] == "temprature"
    assert "'temperature'" in error["message"]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 5.0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 10**6}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": 2**70}, "seed"),
        ({"seed": "one"}, "seed"),
        ({"stop": 5}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"stop": "\ud800"}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids[0]"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 1, "05": 2}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"min_tokens": 3}, "min_tokens"),
        ({"bad_words": [""]}, "bad_words"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"stream_interval": 0}, "stream_interval"),
        ({"priority": 1}, "priority"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"usage": True}}, "usage"),
        ({"stream": "yes"}, "stream"),
        ({"model": 5}, "model"),
    ],
)
@pytest.mark.parametrize("body", [COMPLETION, CHAT], ids=["completion", "chat"])
def test_a_bad_value_is_refused_by_the_name_of_its_field(
    http: httpx.Client, body: dict[str, Any], change: dict[str, Any], param: str
) -> None:
    payload = json.dumps({**body, **change})
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    error = refused(http.post(path, content=payload, headers={"Content-Type": "application/json"}))
    assert error["param"] == param, error


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_are_none_are_refused(http: httpx.Client, name: str) -> None:
    body = f'{{"prompt": "hello", "temperature": {name}}}'
    response = http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert refused(response)["param"] == "temperature"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["hello", ""]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": ["hello", 5]}, "prompt"),
        ({"prompt": [1, 2, 99999]}, "prompt"),
        ({"prompt": [1, -2]}, "prompt"),
        ({"prompt": [True, False]}, "prompt"),
        ({"prompt": ["hello"] * 2000}, "prompt"),
        ({"prompt": ["hello"] * 9, "n": 128}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"best_of": 2}, "best_of"),
        ({"max_tokens": 0, "echo": True, "stream": True}, "max_tokens"),
    ],
)
def test_a_bad_completion_is_refused(http: httpx.Client, change: dict[str, Any], param: str) -> None:
    assert refused(post(http, {**COMPLETION, **change}))["param"] == param


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"content": "hello"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "hello"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "5"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "a", "mood": "good"}]}, "messages[0].mood"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
        ({"top_logprobs": 5}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": 5}, "logprobs"),
        ({"max_completion_tokens": 5}, "max_completion_tokens"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    ],
)
def test_a_bad_chat_is_refused(http: httpx.Client, change: dict[str, Any], param: str) -> None:
    assert refused(post(http, {**CHAT, **change}))["param"] == param


def test_an_image_is_refused_with_what_to_send_instead(http: httpx.Client) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    error = refused(post(http, {**CHAT, "messages": [{"role": "user", "content": [part]}]}))
    assert "text only" in error["message"]


@pytest.mark.parametrize("name", sorted(NOT_SUPPORTED))
def test_a_field_we_do_not_have_may_be_neutral_and_nothing_else(http: httpx.Client, name: str) -> None:
    body, model = CHAT, ChatCompletionRequest
    if name in ChatCompletionRequest.model_fields:  # some belong to one of the two APIs only
        body, model = COMPLETION, CompletionRequest
    assert name not in model.model_fields
    neutral, _ = NOT_SUPPORTED[name]
    for value in (None, *neutral):
        assert post(http, {**body, name: value}).status_code == 200
    error = refused(post(http, {**body, name: {"something": "else"}}))
    assert error["param"] == name
    assert "not supported" in error["message"]


def test_one_bad_prompt_of_several_keeps_all_from_running(
    http: httpx.Client, fake_server: FakeServer
) -> None:
    before = len(fake_server.engine.prompts)
    refused(post(http, {**COMPLETION, "prompt": ["hello", "x" * 400]}))
    assert len(fake_server.engine.prompts) == before


def test_a_prompt_beyond_the_context_says_how_long_it_may_be(http: httpx.Client) -> None:
    error = refused(post(http, {**COMPLETION, "prompt": [5] * 256}))
    assert error["code"] == "context_length_exceeded"
    assert "256 tokens" in error["message"]
    assert refused(post(http, {**COMPLETION, "prompt": [5] * 250, "max_tokens": 7}))["param"] == "max_tokens"
    assert post(http, {**COMPLETION, "prompt": [5] * 250, "max_tokens": 6}).status_code == 200


def test_megabytes_of_prompt_are_refused_before_they_are_tokenized(http: httpx.Client) -> None:
    for body in (
        {**COMPLETION, "prompt": "a b " * 10**6},
        {**CHAT, "messages": [{"role": "user", "content": "a b " * 10**6}]},
    ):
        error = refused(post(http, body))
        assert error["code"] == "context_length_exceeded"
        assert "characters" in error["message"]


def test_a_body_beyond_the_limit_is_refused_announced_or_not(http: httpx.Client) -> None:
    headers = {"Content-Type": "application/json"}
    piece = b"x" * 2**20
    assert refused(http.post("/v1/completions", content=piece * 9, headers=headers), 413)
    assert refused(http.post("/v1/completions", content=iter([piece] * 9), headers=headers), 413)


def test_unknown_urls_and_methods(http: httpx.Client) -> None:
    assert "POST /v1/embeddings" in refused(http.post("/v1/embeddings", json={}), 404)["message"]
    response = http.get("/v1/completions")
    assert "POST" in refused(response, 405)["message"]
    assert response.headers["allow"] == "POST"


def test_an_unknown_model_is_404(sdk: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        sdk.chat.completions.create(model="tinny", messages=[{"role": "user", "content": "hello"}])
    assert caught.value.code == "model_not_found"
    assert "'tiny'" in str(caught.value)


def test_a_full_queue_is_503_with_retry_after(http: httpx.Client, fake_server: FakeServer) -> None:
    fake_server.engine.refuse = QueueFullError("64 requests wait already.")
    for stream in (False, True):
        response = post(http, {**COMPLETION, "stream": stream})
        assert refused(response, 503)["type"] == "server_error"
        assert int(response.headers["retry-after"]) >= 1


def test_a_fault_of_ours_is_500_without_internals(http: httpx.Client, fake_server: FakeServer) -> None:
    fake_server.engine.refuse = RuntimeError("secret detail")  # type: ignore[assignment]
    error = refused(post(http, COMPLETION), 500)
    assert error["type"] == "server_error"
    assert "secret" not in error["message"]


def test_a_refused_request_does_not_hurt_the_next(http: httpx.Client) -> None:
    refused(post(http, {**COMPLETION, "n": -1}))
    assert post(http, COMPLETION).status_code == 200
