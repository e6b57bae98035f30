"""Who answers in `learnvllm chat`: an engine of our own, or a running server.

Either gives an answer piece by piece, and stops it when nobody takes the next piece.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

from learnvllm.architecture.errors import ClientError, ServerError, ValidationError
from learnvllm.engine_core.llm_engine import LLMEngine
from learnvllm.serving.content import shorten
from learnvllm.serving.parsing import parse_request
from learnvllm.serving.protocol import ChatCompletionRequest
from learnvllm.serving.renderer import Renderer
from learnvllm.serving.request_params import chat_params

Message = dict[str, str]


@dataclass(frozen=True)
class Piece:
    """What is new of an answer: maybe several tokens, maybe no text yet (half a character)."""

    text: str
    num_tokens: int | None = None
    """Tokens of the answer so far; None where the backend does not know."""


class ChatBackend(Protocol):
    """Whoever answers. Closing the generator of `stream` stops the answer."""

    model: str

    def stream(self, messages: list[Message], params: dict[str, Any]) -> Generator[Piece, None, None]:
        """The answer, piece by piece. `params`: fields of a chat request, as `check_params` lets them pass.

        Raises:
            LearnVLLMError: there is no answer, or no more of it.
        """
        ...

    def close(self) -> None: ...


class EngineBackend:
    """An engine of our own, driven step by step."""

    def __init__(self, engine: LLMEngine) -> None:
        assert engine.tokenizer is not None
        self.engine = engine
        self.renderer = Renderer(engine.tokenizer, engine.config.max_model_len)
        self.model = engine.config.served_model_name

    def stream(self, messages: list[Message], params: dict[str, Any]) -> Generator[Piece, None, None]:
        request = parse_request(ChatCompletionRequest, {**params, "messages": messages, "stream": True})
        prompt = self.renderer.render_chat(request.messages, chat_params(request))
        limit = self.renderer.output_limit(prompt, request.token_limit, "messages")
        request_id = f"chat-{uuid.uuid4()}"  # unseeded noise depends on it: every conversation differs
        self.engine.add_request(
            request_id,
            prompt.token_ids,
            request.to_sampling_params(limit),
            priority=request.priority or 0,
            cache_salt=request.cache_salt,
        )
        num_tokens = 0
        try:
            while self.engine.has_unfinished_requests():
                for output in self.engine.step():
                    if output.request_id == request_id:
                        output.raise_failure()
                        num_tokens += len(output.outputs[0].token_ids)
                        yield Piece(output.outputs[0].text, num_tokens)
        finally:
            self.engine.abort_request([request_id])

    def close(self) -> None:
        self.engine.shutdown()


class HttpBackend:
    """A running server, ours or any that speaks the OpenAI API.

    Raises:
        ValidationError: nothing answers at `url`.
    """

    def __init__(self, url: str, api_key: str | None, model: str | None) -> None:
        import httpx

        base = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        try:
            self.client = httpx.Client(base_url=base, headers=headers, timeout=httpx.Timeout(10, read=None))
            served = _checked(self.client.get("/v1/models", timeout=10)).json()["data"]
            self.model = model or served[0]["id"]
        except ClientError:  # a ValueError, too, but the server's own words: a wrong key
            raise
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise ValidationError(
                f"Nothing answers at {url}: {error}. Start a server with `learnvllm serve`.",
                parameter="url",
                value=url,
            ) from None
        except (LookupError, TypeError, ValueError) as error:
            raise ValidationError(
                f"{url} does not speak the OpenAI API: {error!r}.", parameter="url"
            ) from None

    def stream(self, messages: list[Message], params: dict[str, Any]) -> Generator[Piece, None, None]:
        import httpx

        body = {**params, "model": self.model, "messages": messages, "stream": True}
        body["stream_options"] = {"include_usage": True}
        try:
            with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    response.read()
                for line in _checked(response).iter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        yield from _read_event(line.removeprefix("data: "))
        except httpx.RequestError as error:
            raise ServerError(f"The connection to the server broke: {error}.") from None

    def close(self) -> None:
        self.client.close()


def _read_event(data: str) -> list[Piece]:
    """Raises: ServerError: it is an error, or no event of a chat."""
    try:
        event = json.loads(data)
        if "error" in event:
            raise ServerError(event["error"]["message"])
        texts = [choice["delta"].get("content") for choice in event["choices"]]
        pieces = [Piece(text) for text in texts if text]
        if event.get("usage"):  # in the last event, which brings no choices
            pieces.append(Piece("", event["usage"]["completion_tokens"]))
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ServerError(f"The server sent something that is no piece of a chat: {shorten(data)}.") from None
    return pieces


def _checked(response: Any) -> Any:
    """Raises what the server's error says."""
    if response.status_code < 400:
        return response
    try:
        message = response.json()["error"]["message"]
    except (ValueError, LookupError, TypeError):
        message = f"{response.status_code} {response.text[:200]}"
    raise (ValidationError if response.status_code < 500 else ServerError)(message)
