"""/v1/chat/completions as the OpenAI SDK sees it, against an engine whose answer is known."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.serving.fake_engine import MAX_MODEL_LEN
from tests.serving.fake_server import FakeServer

HELLO: Any = [{"role": "user", "content": "hello"}]
PROMPT = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"


def prompt_of(server: FakeServer) -> str:
    """The text of the last prompt that reached the engine."""
    return server.engine.tokenizer.decode(server.engine.prompts[-1], skip_special_tokens=False)


def events(http: httpx.Client, path: str, body: dict[str, Any]) -> list[Any]:
    """Every event of a stream, decoded, after checking the framing."""
    response = http.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *data, done, rest = response.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    return [json.loads(line.removeprefix("data: ")) for line in data]


def test_an_answer_has_everything_the_sdk_knows(sdk: openai.OpenAI, fake_server: FakeServer) -> None:
    answer = sdk.chat.completions.create(model="tiny", messages=HELLO, max_tokens=3)
    assert prompt_of(fake_server) == PROMPT
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", "tiny")
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert (choice.message.role, choice.message.content) == ("assistant", " the world of")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(fake_server.engine.prompts[-1])
    assert answer.usage.completion_tokens == 3
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 3
    assert answer.system_fingerprint


def test_the_next_turn_may_quote_our_answer_as_it_was(sdk: openai.OpenAI, fake_server: FakeServer) -> None:
    message = sdk.chat.completions.create(model="tiny", messages=HELLO, max_tokens=3).choices[0].message
    turns: Any = [*HELLO, message, {"role": "user", "content": "more"}]
    sdk.chat.completions.create(model="tiny", messages=turns, max_tokens=1)
    assert "<|im_start|>assistant\n the world of<|im_end|>\n<|im_start|>user\nmore" in prompt_of(fake_server)


def test_an_assistants_turn_may_have_no_content(http: httpx.Client, fake_server: FakeServer) -> None:
    for turn in ({"role": "assistant", "content": None}, {"role": "assistant", "refusal": None}):
        body = {"messages": [*HELLO, turn, *HELLO], "max_tokens": 1}
        assert http.post("/v1/chat/completions", json=body).status_code == 200
        assert "<|im_start|>assistant\n<|im_end|>" in prompt_of(fake_server)


def test_a_stream_begins_with_the_role_and_ends_with_the_reason(http: httpx.Client) -> None:
    chunks = events(http, "/v1/chat/completions", {"messages": HELLO, "max_tokens": 3})
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert [c["delta"] for c in choices[1:]] == [
        {"content": " the"},
        {"content": " world"},
        {"content": " of"},
    ]
    assert [c["finish_reason"] for c in choices] == [None, None, None, "length"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert not any("usage" in chunk for chunk in chunks)


def test_usage_comes_in_a_chunk_of_its_own_when_asked_for(http: httpx.Client) -> None:
    body = {"messages": HELLO, "max_tokens": 3, "stream_options": {"include_usage": True}}
    *chunks, last = events(http, "/v1/chat/completions", body)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 3


def test_continuous_usage_counts_up(http: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(
        http, "/v1/chat/completions", {"messages": HELLO, "max_tokens": 3, "stream_options": options}
    )
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 1, 2, 3, 3]


def test_n_choices_come_in_order_and_stream_interleaved(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(model="tiny", messages=HELLO, max_tokens=2, n=3)
    texts = [choice.message.content for choice in answer.choices]
    assert texts == [" the world", " world of", " of blocks"]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 6
    streamed = ["", "", ""]
    roles = []
    with sdk.chat.completions.create(model="tiny", messages=HELLO, max_tokens=2, n=3, stream=True) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                streamed[choice.index] += choice.delta.content or ""
                roles += [choice.index] if choice.delta.role else []
    assert streamed == texts
    assert roles == [0, 1, 2]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_ends_the_answer_and_is_not_part_of_it(sdk: openai.OpenAI, stream: bool) -> None:
    kwargs: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 20, "stop": ["blocks", "world of"]}
    if stream:
        chunks = list(sdk.chat.completions.create(stream=True, **kwargs))
        text = "".join(c.choices[0].delta.content or "" for c in chunks)
        last: Any = chunks[-1].choices[0]
    else:
        last = sdk.chat.completions.create(**kwargs).choices[0]
        text = last.message.content
    assert text == " the "
    assert (last.finish_reason, last.stop_reason) == ("stop", "world of")


def test_logprobs_name_the_token_its_bytes_and_the_best(sdk: openai.OpenAI) -> None:
    answer = sdk.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=2, logprobs=True, top_logprobs=2
    )
    content = answer.choices[0].logprobs
    assert content is not None
    assert content.content is not None
    first = content.content[0]
    assert (first.token, first.logprob, bytes(first.bytes or [])) == (" the", -0.5, b" the")
    assert [top.logprob for top in first.top_logprobs] == [-0.5, -2.0]
    only = sdk.chat.completions.create(model="tiny", messages=HELLO, max_tokens=1, logprobs=True)
    assert only.choices[0].logprobs is not None
    assert only.choices[0].logprobs.content is not None
    assert only.choices[0].logprobs.content[0].top_logprobs == []


def test_streamed_logprobs_are_those_of_the_whole_answer(sdk: openai.OpenAI) -> None:
    kwargs: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 4, "logprobs": True, "top_logprobs": 1}
    whole = sdk.chat.completions.create(**kwargs).choices[0].logprobs
    streamed = []
    for chunk in sdk.chat.completions.create(stream=True, **kwargs):
        if chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content or []
    assert whole is not None
    assert streamed == whole.content


def test_a_stream_has_the_prompts_logprobs_even_when_they_come_late(
    http: httpx.Client, fake_server: FakeServer
) -> None:
    fake_server.engine.prompt_logprobs_at = 3
    body = {"messages": HELLO, "max_tokens": 5, "n": 2, "prompt_logprobs": 1}
    first, *rest = events(http, "/v1/chat/completions", body)
    assert len(first["prompt_logprobs"]) == len(fake_server.engine.prompts[-1])
    assert not any("prompt_logprobs" in chunk for chunk in rest)
    texts = ["", ""]
    for choice in (chunk["choices"][0] for chunk in rest):
        texts[choice["index"]] += choice["delta"]["content"]
    assert texts == [" the world of blocks and", " world of blocks and tokens"]


def test_content_may_be_parts_and_developer_is_system(sdk: openai.OpenAI, fake_server: FakeServer) -> None:
    messages: Any = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
    ]
    sdk.chat.completions.create(model="tiny", messages=messages, max_tokens=1)
    assert prompt_of(fake_server).startswith(
        "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\none\ntwo<|im_end|>"
    )


def test_the_final_message_can_be_continued(sdk: openai.OpenAI, fake_server: FakeServer) -> None:
    messages: Any = [*HELLO, {"role": "assistant", "content": "Once upon"}]
    sdk.chat.completions.create(
        model="tiny", messages=messages, max_tokens=1, extra_body={"continue_final_message": True}
    )
    assert prompt_of(fake_server) == PROMPT + "Once upon"
    sdk.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=1, extra_body={"add_generation_prompt": False}
    )
    assert prompt_of(fake_server) == "<|im_start|>user\nhello<|im_end|>\n"


def test_without_a_limit_the_answer_may_fill_the_context(sdk: openai.OpenAI, fake_server: FakeServer) -> None:
    answer = sdk.chat.completions.create(model="tiny", messages=HELLO)
    assert answer.usage is not None
    assert answer.usage.total_tokens == MAX_MODEL_LEN
    newer = sdk.chat.completions.create(model="tiny", messages=HELLO, max_completion_tokens=4)
    assert newer.usage is not None
    assert newer.usage.completion_tokens == 4


def test_vllms_extras(http: httpx.Client, fake_server: FakeServer) -> None:
    body = {
        "messages": HELLO,
        "max_tokens": 2,
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "min_tokens": 1,
        "stop_token_ids": [7],
        "ignore_eos": True,
        "skip_special_tokens": False,
        "bad_words": ["never"],
        "logit_bias": {"5": -1},
        "cache_salt": "mine",
        "prompt_logprobs": 1,
        "return_token_ids": True,
        "user": "somebody",
    }
    answer = http.post("/v1/chat/completions", json=body).json()
    prompt = fake_server.engine.prompts[-1]
    assert answer["prompt_token_ids"] == prompt
    assert len(answer["choices"][0]["token_ids"]) == 2
    assert answer["prompt_logprobs"][0] is None
    assert len(answer["prompt_logprobs"]) == len(prompt)
    assert answer["prompt_logprobs"][1][str(prompt[1])]["logprob"] == -0.5


def test_render_gives_the_token_ids_and_runs_nothing(http: httpx.Client, fake_server: FakeServer) -> None:
    before = len(fake_server.engine.prompts)
    body = {"messages": HELLO, "max_tokens": 4, "temperature": 0.5}
    rendered = http.post("/v1/chat/completions/render", json=body).json()
    assert len(fake_server.engine.prompts) == before
    assert rendered["token_ids"] == fake_server.engine.tokenizer.encode(PROMPT)
    assert rendered["sampling_params"]["max_tokens"] == 4
    assert rendered["sampling_params"]["temperature"] == 0.5


def test_an_engine_that_dies_midway_ends_the_stream_with_an_error(
    http: httpx.Client, sdk: openai.OpenAI, fake_server: FakeServer
) -> None:
    fake_server.engine.fail_after = 2
    chunks = events(http, "/v1/chat/completions", {"messages": HELLO, "max_tokens": 9})
    assert chunks[-1]["error"]["type"] == "server_error"
    assert "died" in chunks[-1]["error"]["message"]
    fake_server.engine.dead = False
    with pytest.raises(openai.APIError, match="died"):
        list(sdk.chat.completions.create(model="tiny", messages=HELLO, max_tokens=9, stream=True))
    with pytest.raises(openai.InternalServerError, match="died"):
        sdk.chat.completions.create(model="tiny", messages=HELLO, max_tokens=9)
    assert http.get("/health").status_code == 503
