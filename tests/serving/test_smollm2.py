"""The embedded model behind the server, as a newcomer meets it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from learnvllm.model_layers import embedded
from tests.serving.real_server import ServerProcess, serving

pytestmark = pytest.mark.skipif(not embedded.EMBEDDED.is_ready(), reason="the embedded model is not here")

QUESTION: Any = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("smollm2") / "log"
    with serving(embedded.EMBEDDED.name, log, "--max-model-len", "1024", "--max-num-seqs", "8") as server:
        yield server


@pytest.fixture(scope="module")
def sdk(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0, timeout=280) as client:
        yield client


def test_it_answers_and_ends_its_turn(sdk: openai.OpenAI) -> None:
    (model,) = sdk.models.list().data
    assert model.id == "SmolLM2-135M-Instruct"
    kwargs: Any = {"model": model.id, "messages": QUESTION, "temperature": 0, "max_tokens": 60}
    answer = sdk.chat.completions.create(**kwargs).choices[0]
    assert "Paris" in (answer.message.content or "")
    assert answer.finish_reason == "stop"
    assert "<|im_end|>" not in (answer.message.content or "")
    streamed = sdk.chat.completions.create(stream=True, **kwargs)
    assert "".join(c.choices[0].delta.content or "" for c in streamed) == answer.message.content


def test_the_prompt_has_the_default_system_message(server: ServerProcess) -> None:
    tokens = httpx.post(f"{server.url}/tokenize", json={"messages": QUESTION}).json()["tokens"]
    text = httpx.post(f"{server.url}/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_start|>assistant\n")


def test_digits_are_tokens_of_their_own(server: ServerProcess) -> None:
    body = {"prompt": "  7 8", "return_token_strs": True}
    assert httpx.post(f"{server.url}/tokenize", json=body).json()["token_strs"] == ["ĠĠ", "7", "Ġ", "8"]


def test_characters_of_many_bytes_stream_whole(sdk: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "Repeat exactly: 🦙 ½ 日本語"}]
    kwargs: Any = {"model": "SmolLM2-135M-Instruct", "messages": messages, "temperature": 0, "max_tokens": 40}
    whole = sdk.chat.completions.create(logprobs=True, **kwargs).choices[0]
    pieces = [
        chunk.choices[0].delta.content or "" for chunk in sdk.chat.completions.create(stream=True, **kwargs)
    ]
    assert "".join(pieces) == whole.message.content
    assert whole.logprobs is not None
    # The tokens' bytes, put together, are the text: also where one token is only a piece of a character.
    spelled = b"".join(bytes(token.bytes or []) for token in whole.logprobs.content or [])
    text = spelled.decode("utf-8", errors="replace").removesuffix("<|im_end|>")
    assert text == whole.message.content
