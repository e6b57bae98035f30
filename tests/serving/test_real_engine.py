"""The OpenAI SDK against `learnvllm serve` with the real engine: what only a real one can show."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import openai
import pytest

from learnvllm.engine_core.tokenizer import Tokenizer
from tests.serving.real_server import ServerProcess

HELLO: Any = [{"role": "user", "content": "hello"}]


def test_greedy_answers_are_transformers_answers(real_sdk: openai.OpenAI, tiny_model: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    prompt = Tokenizer.from_directory(tiny_model).encode("hello paged world, blocks and tokens")
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :]
    answer = real_sdk.completions.create(
        model="tiny", prompt=prompt, max_tokens=24, temperature=0, extra_body={"return_token_ids": True}
    )
    assert answer.choices[0].token_ids == expected.tolist()  # type: ignore[attr-defined]


def test_a_stream_says_the_same_as_the_whole(real_sdk: openai.OpenAI) -> None:
    kwargs: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 30, "temperature": 0}
    whole = real_sdk.chat.completions.create(**kwargs).choices[0]
    chunks = list(real_sdk.chat.completions.create(stream=True, **kwargs))
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.message.content
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason


def test_a_stop_string_cuts_the_same_answer(real_sdk: openai.OpenAI) -> None:
    kwargs: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 40, "temperature": 0}
    full = real_sdk.chat.completions.create(**kwargs).choices[0].message.content or ""
    stop = full[9:12]
    for stream in (False, True):
        if stream:
            pieces = real_sdk.chat.completions.create(stop=stop, stream=True, **kwargs)
            text = "".join(c.choices[0].delta.content or "" for c in pieces)
        else:
            choice = real_sdk.chat.completions.create(stop=stop, **kwargs).choices[0]
            assert choice.finish_reason == "stop"
            text = choice.message.content or ""
        assert text == full[: full.index(stop)]


def test_a_seed_gives_the_same_answer_alone_and_in_company(real_sdk: openai.OpenAI) -> None:
    kwargs: Any = {"model": "tiny", "prompt": "hello", "max_tokens": 12, "temperature": 1.5}
    alone = real_sdk.completions.create(seed=5, **kwargs).choices[0].text
    company = real_sdk.completions.create(seed=5, n=4, **kwargs)
    texts = [choice.text for choice in company.choices]
    assert texts[0] == alone
    assert len(set(texts)) == 4  # each of n has noise of its own
    assert real_sdk.completions.create(seed=6, **kwargs).choices[0].text != alone


def test_logprobs_are_those_of_the_model(real_sdk: openai.OpenAI) -> None:
    choice = real_sdk.completions.create(
        model="tiny", prompt="hello world", max_tokens=4, temperature=0, logprobs=3, echo=True
    ).choices[0]
    assert choice.logprobs is not None
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value is not None and value <= 0 for value in choice.logprobs.token_logprobs[1:])
    for own, top in zip(choice.logprobs.token_logprobs[-4:], (choice.logprobs.top_logprobs or [])[-4:]):
        assert own == max(top.values())  # greedy takes the best


def test_a_streamed_echo_scores_the_prompt_of_every_choice(real_sdk: openai.OpenAI) -> None:
    kwargs: Any = {
        "model": "tiny", "prompt": ["hello world", "paged"], "max_tokens": 3, "n": 2, "seed": 1,
        "logprobs": 1, "echo": True,
    }  # fmt: skip
    whole = real_sdk.completions.create(**kwargs)
    tokens: list[list[str]] = [[] for _ in range(4)]
    values: list[list[float | None]] = [[] for _ in range(4)]
    for chunk in real_sdk.completions.create(stream=True, **kwargs):
        for choice in chunk.choices:
            if choice.logprobs is not None:
                tokens[choice.index] += choice.logprobs.tokens or []
                values[choice.index] += choice.logprobs.token_logprobs or []
    assert tokens == [choice.logprobs.tokens for choice in whole.choices if choice.logprobs]
    expected = [choice.logprobs.token_logprobs for choice in whole.choices if choice.logprobs]
    for streamed, at_once in zip(values, expected):
        assert streamed == pytest.approx(at_once, abs=1e-4)


def test_what_was_asked_before_comes_from_the_prefix_cache(real_sdk: openai.OpenAI) -> None:
    prompt = "cached " * 30
    usages = [real_sdk.completions.create(model="tiny", prompt=prompt, max_tokens=1).usage for _ in range(2)]
    details = [usage.prompt_tokens_details for usage in usages if usage is not None]
    assert [d.cached_tokens for d in details if d is not None][1] > 0
    salted = real_sdk.completions.create(
        model="tiny", prompt=prompt, max_tokens=1, extra_body={"cache_salt": "somebody else's"}
    ).usage
    assert salted is not None
    assert salted.prompt_tokens_details is not None
    assert salted.prompt_tokens_details.cached_tokens == 0


@pytest.mark.parametrize(
    "bad",
    [
        {"max_tokens": -1},
        {"max_tokens": 100_000},
        {"prompt": "hello " * 3000},
        {"logit_bias": {"100000": 1.0}},
        {"extra_body": {"no_such_field": 1}},
    ],
)
def test_refusals_reach_the_sdk_as_bad_requests(real_sdk: openai.OpenAI, bad: dict[str, Any]) -> None:
    kwargs: Any = {"model": "tiny", "prompt": "hello", "max_tokens": 2, **bad}
    with pytest.raises(openai.BadRequestError):
        real_sdk.completions.create(**kwargs)
    with pytest.raises(openai.BadRequestError):
        list(real_sdk.completions.create(stream=True, **kwargs))


async def test_200_requests_half_of_them_cancelled_leave_no_block_behind(real_server: ServerProcess) -> None:
    """More than can run at once; every second client leaves midway, streaming or not."""
    async with openai.AsyncOpenAI(
        base_url=f"{real_server.url}/v1", api_key="-", max_retries=0, timeout=120
    ) as sdk:
        reference = await sdk.completions.create(
            model="tiny", prompt="prompt 1", max_tokens=20, temperature=0
        )

        async def ask(i: int) -> str | None:
            leaves, stream = i % 2 == 0, i % 4 < 2
            kwargs: Any = {
                "model": "tiny",
                "prompt": "prompt 1" if i == 1 else f"prompt {i}",
                "temperature": 0,
            }
            kwargs |= (
                {"max_tokens": 200, "extra_body": {"ignore_eos": True}} if leaves else {"max_tokens": 20}
            )
            if stream:
                pieces = []
                async with await sdk.completions.create(stream=True, **kwargs) as chunks:
                    async for chunk in chunks:
                        pieces.append(chunk.choices[0].text)
                        if leaves and len(pieces) == 1 + i % 5:
                            return None
                return None if leaves else "".join(pieces)
            call = asyncio.create_task(sdk.completions.create(**kwargs))
            if leaves:
                await asyncio.sleep(0.001 * (i % 50))
                call.cancel()
                await asyncio.wait([call])
                return None
            return (await call).choices[0].text

        texts = await asyncio.gather(*(ask(i) for i in range(200)))
    assert [text is None for text in texts] == [i % 2 == 0 for i in range(200)]
    assert texts[1] == reference.choices[0].text

    await nothing_is_left(real_server)
    assert httpx.get(f"{real_server.url}/health").status_code == 200


async def test_a_burst_beyond_the_queue_is_refused_with_503_and_the_rest_is_served(
    real_server: ServerProcess,
) -> None:
    """Each request is 128 to the engine, where 250 may wait."""
    body = {"prompt": "hello", "n": 128, "max_tokens": 2, "temperature": 0}
    async with httpx.AsyncClient(base_url=real_server.url, timeout=120) as client:
        responses = await asyncio.gather(*(client.post("/v1/completions", json=body) for _ in range(6)))
    by_status = {r.status_code: r for r in responses}
    assert set(by_status) == {200, 503}
    assert len(by_status[200].json()["choices"]) == 128
    assert int(by_status[503].headers["retry-after"]) >= 1
    assert by_status[503].json()["error"]["type"] == "server_error"
    await nothing_is_left(real_server)


async def nothing_is_left(server: ServerProcess) -> None:
    """No request runs or waits, and no block is held."""
    gauges = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    deadline = time.monotonic() + 30
    while any(server.metric(name) for name in gauges):
        assert time.monotonic() < deadline, {name: server.metric(name) for name in gauges}
        await asyncio.sleep(0.05)
