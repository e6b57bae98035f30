"""What clients get back: OpenAI's response objects, field for field, with vLLM's few additions.

Dumped with `exclude_unset`, so a field appears exactly when the code that builds the object names it.
Upstream namesakes: vllm/entrypoints/openai/{completion,chat_completion,models}/protocol.py.
"""

from __future__ import annotations

import time
import uuid
from typing import Any, Literal

from pydantic import BaseModel, Field


def new_id(prefix: str) -> str:
    return f"{prefix}-{uuid.uuid4().hex}"


def now() -> int:
    """Unix time in seconds, as `created` wants it."""
    return int(time.time())


class PromptTokensDetails(BaseModel):
    cached_tokens: int
    """Prompt tokens whose KV came from the prefix cache."""


class UsageInfo(BaseModel):
    """Token counts. The prompt counts once, whatever n is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None


# ------------------------------------------------------------------------------------------- completions


class CompletionLogProbs(BaseModel):
    """Parallel lists, one entry per token."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionResponseChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogProbs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    prompt_logprobs: list[dict[int, Any] | None] | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionResponse(BaseModel):
    """Whole answers and streamed chunks have the same shape."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionResponseChoice]
    usage: UsageInfo | None = None


# -------------------------------------------------------------------------------------------------- chat


class ChatCompletionTopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatCompletionTokenLogprob(ChatCompletionTopLogprob):
    top_logprobs: list[ChatCompletionTopLogprob]


class ChatCompletionLogProbs(BaseModel):
    content: list[ChatCompletionTokenLogprob]


class ResponseMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChatCompletionResponseChoice(BaseModel):
    index: int
    message: ResponseMessage
    logprobs: ChatCompletionLogProbs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class ChatCompletionResponse(BaseModel):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatCompletionResponseChoice]
    usage: UsageInfo
    prompt_logprobs: list[dict[int, Any] | None] | None = None
    prompt_token_ids: list[int] | None = None


class DeltaMessage(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatCompletionResponseStreamChoice(BaseModel):
    index: int
    delta: DeltaMessage
    logprobs: ChatCompletionLogProbs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class ChatCompletionStreamResponse(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatCompletionResponseStreamChoice]
    usage: UsageInfo | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[int, Any] | None] | None = None


# ------------------------------------------------------------------------------------- models and tokens


class ModelCard(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int = Field(default_factory=now)
    owned_by: str = "learnvllm"
    root: str
    parent: str | None = None
    max_model_len: int


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class TokenizeResponse(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeResponse(BaseModel):
    prompt: str


class RenderResponse(BaseModel):
    """A prompt ready for the engine: token ids, never text (vLLM's GenerateRequest)."""

    request_id: str
    token_ids: list[int]
    sampling_params: dict[str, Any]
    model: str
