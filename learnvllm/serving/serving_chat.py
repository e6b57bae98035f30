"""POST /v1/chat/completions: messages in; a message, or its pieces as they come, out.

Upstream namesake: vllm/entrypoints/openai/chat_completion/serving.py (OpenAIServingChat).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from learnvllm.architecture.errors import ValidationError
from learnvllm.architecture.outputs import CompletionOutput, RequestOutput
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.serving.engine_client import EngineClient, Generation
from learnvllm.serving.logprobs import LogprobsFormatter, prompt_logprobs
from learnvllm.serving.protocol import ChatCompletionRequest, TemplateOptions
from learnvllm.serving.renderer import ChatParams, RenderedPrompt, Renderer
from learnvllm.serving.responses import (
    ChatCompletionLogProbs,
    ChatCompletionResponse,
    ChatCompletionResponseChoice,
    ChatCompletionResponseStreamChoice,
    ChatCompletionStreamResponse,
    DeltaMessage,
    RenderResponse,
    ResponseMessage,
    new_id,
    now,
)
from learnvllm.serving.serving_models import OpenAIServingModels
from learnvllm.serving.streaming import EventStream
from learnvllm.serving.usage import UsageCounter


def chat_params(request: TemplateOptions) -> ChatParams:
    return ChatParams(
        add_generation_prompt=request.wants_generation_prompt,
        continue_final_message=bool(request.continue_final_message),
        template_kwargs=request.chat_template_kwargs or {},
    )


@dataclass
class _Answer:
    """One request being answered: what its parts have in common."""

    request: ChatCompletionRequest
    model: str
    fingerprint: str
    formatter: LogprobsFormatter
    id: str = field(default_factory=lambda: new_id("chatcmpl"))
    created: int = field(default_factory=now)
    usage: UsageCounter = field(default_factory=UsageCounter)

    def logprobs(self, output: CompletionOutput) -> ChatCompletionLogProbs | None:
        top = self.request.num_logprobs
        if top is None or output.logprobs is None:
            return None
        return self.formatter.chat(output.token_ids, output.logprobs, top)

    def endings(self, output: CompletionOutput) -> dict[str, Any]:
        """What vLLM adds to a choice."""
        ids = {"token_ids": output.token_ids} if self.request.return_token_ids else {}
        return {"stop_reason": output.stop_reason, **ids}

    def prompt_extras(self, output: RequestOutput) -> dict[str, Any]:
        extras: dict[str, Any] = {}
        if self.request.prompt_logprobs is not None:
            extras["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        if self.request.return_token_ids:
            extras["prompt_token_ids"] = output.prompt_token_ids
        return extras


class OpenAIServingChat:
    """Answers chat requests with one engine."""

    def __init__(self, engine: EngineClient, renderer: Renderer, models: OpenAIServingModels) -> None:
        self.engine = engine
        self.renderer = renderer
        self.models = models

    async def create_chat_completion(
        self, request: ChatCompletionRequest
    ) -> ChatCompletionResponse | EventStream:
        """Raises: LearnVLLMError: refused, before anything is sent."""
        prompt, params = await self._prepare(request)
        formatter = LogprobsFormatter(self.renderer.tokenizer, bool(request.return_tokens_as_token_ids))
        answer = _Answer(request, self.models.name, self.models.fingerprint, formatter)
        generation = await Generation.start(
            self.engine,
            [prompt],
            [params],
            answer.id,
            priority=request.priority or 0,
            cache_salt=request.cache_salt,
        )
        if request.stream:
            return EventStream(_stream(answer, generation), generation)
        try:
            return await _collect(answer, generation)
        finally:
            await generation.aclose()

    async def render(self, request: ChatCompletionRequest) -> RenderResponse:
        """Only the way in: the prompt as token ids, and the parameters an engine would get."""
        prompt, params = await self._prepare(request)
        return RenderResponse(
            request_id=new_id("chatcmpl"),
            token_ids=prompt.token_ids,
            sampling_params=params_as_dict(params),
            model=self.models.name,
        )

    async def _prepare(self, request: ChatCompletionRequest) -> tuple[RenderedPrompt, SamplingParams]:
        self.models.check(request.model)
        if request.logprobs:
            check_top_logprobs("top_logprobs", request.num_logprobs, self.models.max_logprobs)
        # The parameters first: a bad one is found without tokenizing anything.
        request.to_sampling_params(max_tokens_or_one(request.token_limit, request.min_tokens))
        prompt = await self.renderer.render_chat_async(request.messages, chat_params(request))
        limit = self.renderer.output_limit(prompt, request.token_limit, "messages")
        return prompt, request.to_sampling_params(limit)


async def _collect(answer: _Answer, generation: Generation) -> ChatCompletionResponse:
    choices: dict[int, ChatCompletionResponseChoice] = {}
    extras: dict[str, Any] = {}
    async for index, output in generation:
        answer.usage.add(index, output)
        extras = answer.prompt_extras(output)
        for completion in output.outputs:
            choices[completion.index] = ChatCompletionResponseChoice(
                index=completion.index,
                message=ResponseMessage(role="assistant", content=completion.text, refusal=None),
                logprobs=answer.logprobs(completion),
                finish_reason=completion.finish_reason,
                **answer.endings(completion),
            )
    return ChatCompletionResponse(
        id=answer.id,
        object="chat.completion",
        created=answer.created,
        model=answer.model,
        system_fingerprint=answer.fingerprint,
        choices=[choices[index] for index in sorted(choices)],
        usage=answer.usage.usage(),
        **extras,
    )


async def _stream(
    answer: _Answer, generation: Generation
) -> AsyncGenerator[ChatCompletionStreamResponse, None]:
    """The role of every choice, then what is new of each; the piece that ends a choice carries its reason."""
    request = answer.request

    def chunk(
        choices: list[ChatCompletionResponseStreamChoice], **extras: Any
    ) -> ChatCompletionStreamResponse:
        if request.continuous_usage:
            extras["usage"] = answer.usage.usage()
        elif request.include_usage:
            extras.setdefault("usage", None)
        return ChatCompletionStreamResponse(
            id=answer.id,
            object="chat.completion.chunk",
            created=answer.created,
            model=answer.model,
            system_fingerprint=answer.fingerprint,
            choices=choices,
            **extras,
        )

    first = True
    async for index, output in generation:
        answer.usage.add(index, output)
        if first:
            for i in range(1 if request.n is None else request.n):
                role = ChatCompletionResponseStreamChoice(
                    index=i,
                    delta=DeltaMessage(role="assistant", content=""),
                    logprobs=None,
                    finish_reason=None,
                )
                yield chunk([role], **(answer.prompt_extras(output) if i == 0 else {}))
            first = False
        for completion in output.outputs:
            if not completion.token_ids and not completion.text and completion.finish_reason is None:
                continue
            piece = ChatCompletionResponseStreamChoice(
                index=completion.index,
                delta=DeltaMessage(content=completion.text),
                logprobs=answer.logprobs(completion),
                finish_reason=completion.finish_reason,
                **answer.endings(completion),
            )
            yield chunk([piece])
    if request.include_usage:
        yield chunk([], usage=answer.usage.usage())


def check_top_logprobs(parameter: str, value: int | None, limit: int) -> None:
    if value is not None and not 0 <= value <= limit:
        raise ValidationError(
            f"{parameter}={value}: must be between 0 and {limit} (the server's --max-logprobs).",
            parameter=parameter,
            value=value,
        )


def max_tokens_or_one(wanted: int | None, min_tokens: int | None) -> int:
    """A stand-in for max_tokens while the prompt's length is not known, so that the rest can be checked."""
    return max(1, min_tokens or 0) if wanted is None else wanted


def params_as_dict(params: SamplingParams) -> dict[str, Any]:
    import msgspec

    result: dict[str, Any] = msgspec.to_builtins(params, str_keys=True)
    return result
