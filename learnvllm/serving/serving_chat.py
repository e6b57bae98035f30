"""POST /v1/chat/completions: messages in; a message, or its pieces as they come, out.

Upstream namesake: vllm/entrypoints/openai/chat_completion/serving.py (OpenAIServingChat).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from learnvllm.architecture.outputs import CompletionOutput, RequestOutput, TokenLogprobs
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.serving.answer import AnswerHead
from learnvllm.serving.engine_client import EngineClient, Generation
from learnvllm.serving.logprobs import LogprobsFormatter, prompt_logprobs
from learnvllm.serving.protocol import ChatCompletionRequest
from learnvllm.serving.renderer import RenderedPrompt, Renderer
from learnvllm.serving.request_params import (
    chat_params,
    check_top_logprobs,
    max_tokens_or_one,
    params_as_dict,
)
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
)
from learnvllm.serving.serving_models import OpenAIServingModels
from learnvllm.serving.streaming import EventStream


@dataclass
class _Answer:
    """One request being answered: what its parts have in common."""

    request: ChatCompletionRequest
    head: AnswerHead
    formatter: LogprobsFormatter
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """A stream brings them once, with a piece of the first choice."""

    def logprobs(self, output: CompletionOutput) -> ChatCompletionLogProbs | None:
        top = self.request.num_logprobs
        if top is None or output.logprobs is None:
            return None
        return self.formatter.chat(output.token_ids, output.logprobs, top)

    def endings(self, output: CompletionOutput) -> dict[str, Any]:
        """What vLLM adds to a choice."""
        ids = {"token_ids": output.token_ids} if self.request.return_token_ids else {}
        return {"stop_reason": output.stop_reason, **ids}

    def note_prompt_logprobs(self, output: RequestOutput) -> None:
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs

    def lacks_prompt_logprobs(self) -> bool:
        """They are asked for, and no output has brought them yet."""
        return self.request.prompt_logprobs is not None and self.prompt_logprobs is None

    def prompt_extras(self, output: RequestOutput) -> dict[str, Any]:
        extras: dict[str, Any] = {}
        if self.request.prompt_logprobs is not None:
            extras["prompt_logprobs"] = prompt_logprobs(self.prompt_logprobs)
        if self.request.return_token_ids:
            extras["prompt_token_ids"] = output.prompt_token_ids
        return extras

    def stream_choice(self, completion: CompletionOutput) -> ChatCompletionResponseStreamChoice:
        return ChatCompletionResponseStreamChoice(
            index=completion.index,
            delta=DeltaMessage(content=completion.text),
            logprobs=self.logprobs(completion),
            finish_reason=completion.finish_reason,
            **self.endings(completion),
        )

    def chunk(
        self, choices: list[ChatCompletionResponseStreamChoice], **extras: Any
    ) -> ChatCompletionStreamResponse:
        included, continuous = self.request.include_usage, self.request.continuous_usage
        usage = self.head.usage_so_far(included=included, continuous=continuous)
        return ChatCompletionStreamResponse(
            **self.head.fields(), object="chat.completion.chunk", choices=choices, **{**usage, **extras}
        )


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
        answer = _Answer(request, AnswerHead.begin("chatcmpl", self.models), formatter)
        generation = await Generation.start(
            self.engine,
            [prompt],
            [params],
            answer.head.id,
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
        answer.head.usage.add(index, output)
        answer.note_prompt_logprobs(output)
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
        **answer.head.fields(),
        object="chat.completion",
        choices=[choices[index] for index in sorted(choices)],
        usage=answer.head.usage.usage(),
        **extras,
    )


async def _stream(
    answer: _Answer, generation: Generation
) -> AsyncGenerator[ChatCompletionStreamResponse, None]:
    """The role of every choice, then what is new of each; the piece that ends a choice carries its reason."""
    request, head = answer.request, answer.head
    begun = False
    held: list[CompletionOutput] = []
    async for index, output in generation:
        head.usage.add(index, output)
        answer.note_prompt_logprobs(output)
        held += output.outputs
        if answer.lacks_prompt_logprobs() and not output.finished:
            continue  # they are the first choice's, and others may come before it
        if not begun:
            for i in range(1 if request.n is None else request.n):
                role = ChatCompletionResponseStreamChoice(
                    index=i,
                    delta=DeltaMessage(role="assistant", content=""),
                    logprobs=None,
                    finish_reason=None,
                )
                yield answer.chunk([role], **(answer.prompt_extras(output) if i == 0 else {}))
            begun = True
        for completion in held:
            if completion.token_ids or completion.text or completion.finish_reason is not None:
                yield answer.chunk([answer.stream_choice(completion)])
        held.clear()
    if request.include_usage:
        yield answer.chunk([], usage=head.usage.usage())
