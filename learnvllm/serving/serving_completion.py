"""POST /v1/completions: one or several prompts in, n continuations of each out.

Choice number = index of the prompt * n + index of the continuation.
Upstream namesake: vllm/entrypoints/openai/completion/serving.py (OpenAIServingCompletion).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from learnvllm.architecture.outputs import CompletionOutput, RequestOutput, TokenLogprobs
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.serving.answer import AnswerHead
from learnvllm.serving.engine_client import EngineClient, Generation
from learnvllm.serving.logprobs import LogprobsFormatter, TextPosition, prompt_logprobs, token_bytes
from learnvllm.serving.protocol import CompletionRequest
from learnvllm.serving.renderer import RenderedPrompt, Renderer
from learnvllm.serving.request_params import check_top_logprobs, max_tokens_or_one, params_as_dict
from learnvllm.serving.responses import (
    CompletionResponse,
    CompletionResponseChoice,
    RenderResponse,
    UsageInfo,
    new_id,
)
from learnvllm.serving.serving_models import OpenAIServingModels
from learnvllm.serving.streaming import EventStream

DEFAULT_MAX_TOKENS = 16


@dataclass
class _Answer:
    """One request being answered."""

    request: CompletionRequest
    prompts: list[RenderedPrompt]
    head: AnswerHead
    formatter: LogprobsFormatter
    positions: dict[int, TextPosition] = field(default_factory=dict)
    """In the text of each choice, for text_offset."""
    prompt_logprobs: dict[int, list[TokenLogprobs | None]] = field(default_factory=dict)
    """Of each prompt; a stream brings them once, with its first continuation."""

    @property
    def n(self) -> int:
        return 1 if self.request.n is None else self.request.n

    def note_prompt_logprobs(self, prompt_index: int, output: RequestOutput) -> None:
        if output.prompt_logprobs is not None:
            self.prompt_logprobs[prompt_index] = output.prompt_logprobs

    def lacks_prompt_logprobs(self, prompt_index: int) -> bool:
        """Every choice of this prompt begins with them, and they have not come yet."""
        wanted = self.request.echo and self.request.logprobs is not None
        return bool(wanted) and prompt_index not in self.prompt_logprobs

    def choice(
        self, prompt_index: int, output: RequestOutput, completion: CompletionOutput, echo: bool
    ) -> CompletionResponseChoice:
        """What `completion` adds to its choice, the prompt before it if `echo`."""
        request, number = self.request, prompt_index * self.n + completion.index
        text, token_ids = completion.text, completion.token_ids
        logprobs: list[TokenLogprobs | None] | None = None
        if completion.logprobs is not None:
            logprobs = list(completion.logprobs)
        if request.scores_prompt_only:
            text, token_ids, logprobs = "", [], []
        if echo:
            text = self._prompt_text(prompt_index) + text
            token_ids = output.prompt_token_ids + token_ids
            if request.logprobs is not None:
                logprobs = [*self.prompt_logprobs[prompt_index], *(logprobs or [])]
        formatted = None
        if request.logprobs is not None and logprobs is not None:
            position = self.positions.setdefault(number, TextPosition())
            echoed = len(output.prompt_token_ids) if echo else 0
            offsets = [
                position.pass_by(self._shown(token, prompt_index if i < echoed else None))
                for i, token in enumerate(token_ids)
            ]
            formatted = self.formatter.completion(token_ids, logprobs, request.logprobs, offsets)
        return CompletionResponseChoice(
            index=number,
            text=text,
            logprobs=formatted,
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            **self._extras(output, completion),
        )

    def _shown(self, token: int, prompt_index: int | None) -> bytes:
        """What the choice's text shows of a token, of this prompt or (None) of the completion."""
        tokenizer = self.formatter.tokenizer
        text = tokenizer.token_text(token)
        if token in tokenizer.all_special_ids:
            prompt_text = None if prompt_index is None else self.prompts[prompt_index].text
            skipped = prompt_index is None and self.request.skip_special_tokens is not False
            if skipped or (prompt_text is not None and text not in prompt_text):  # the tokenizer put it there
                return b""
        return bytes(token_bytes(tokenizer, token, text))

    def _prompt_text(self, prompt_index: int) -> str:
        prompt = self.prompts[prompt_index]
        if prompt.text is not None:
            return prompt.text
        return self.formatter.tokenizer.decode(prompt.token_ids, skip_special_tokens=False)

    def _extras(self, output: RequestOutput, completion: CompletionOutput) -> dict[str, Any]:
        extras: dict[str, Any] = {}
        brings_them = completion.index == 0 or not self.request.stream
        if self.request.prompt_logprobs is not None and output.prompt_logprobs is not None and brings_them:
            extras["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs)
        if self.request.return_token_ids:
            extras["token_ids"] = [] if self.request.scores_prompt_only else completion.token_ids
            extras["prompt_token_ids"] = output.prompt_token_ids
        return extras

    def response(
        self, choices: list[CompletionResponseChoice], **usage: UsageInfo | None
    ) -> CompletionResponse:
        return CompletionResponse(**self.head.fields(), object="text_completion", choices=choices, **usage)


class OpenAIServingCompletion:
    """Answers completion requests with one engine."""

    def __init__(self, engine: EngineClient, renderer: Renderer, models: OpenAIServingModels) -> None:
        self.engine = engine
        self.renderer = renderer
        self.models = models

    async def create_completion(self, request: CompletionRequest) -> CompletionResponse | EventStream:
        """Raises: LearnVLLMError: refused, before anything is sent and with none of the prompts running."""
        prompts, params = await self._prepare(request)
        formatter = LogprobsFormatter(self.renderer.tokenizer, bool(request.return_tokens_as_token_ids))
        answer = _Answer(request, prompts, AnswerHead.begin("cmpl", self.models), formatter)
        generation = await Generation.start(
            self.engine,
            prompts,
            params,
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

    async def render(self, request: CompletionRequest) -> list[RenderResponse]:
        """Only the way in: each prompt as token ids, and the parameters an engine would get."""
        prompts, params = await self._prepare(request)
        return [
            RenderResponse(
                request_id=new_id("cmpl"),
                token_ids=prompt.token_ids,
                sampling_params=params_as_dict(p),
                model=self.models.name,
            )
            for prompt, p in zip(prompts, params)
        ]

    async def _prepare(self, request: CompletionRequest) -> tuple[list[RenderedPrompt], list[SamplingParams]]:
        self.models.check(request.model)
        check_top_logprobs("logprobs", request.logprobs, self.models.max_logprobs)
        wanted = 1 if request.scores_prompt_only else request.max_tokens
        request.to_sampling_params(max_tokens_or_one(wanted, request.min_tokens))
        special = request.add_special_tokens is not False
        prompts = [await self.renderer.render_prompt_async(p, special) for p in request.prompt]
        params = []
        for prompt in prompts:
            limit = self.renderer.output_limit(prompt, wanted, "prompt")
            if wanted is None:
                limit = min(limit, max(DEFAULT_MAX_TOKENS, request.min_tokens or 0))
            params.append(request.to_sampling_params(limit))
        return prompts, params


async def _collect(answer: _Answer, generation: Generation) -> CompletionResponse:
    choices: dict[int, CompletionResponseChoice] = {}
    async for index, output in generation:
        answer.head.usage.add(index, output)
        answer.note_prompt_logprobs(index, output)
        for completion in output.outputs:
            choice = answer.choice(index, output, completion, bool(answer.request.echo))
            choices[choice.index] = choice
    completion_tokens = 0 if answer.request.scores_prompt_only else None
    return answer.response(
        [choices[i] for i in sorted(choices)], usage=answer.head.usage.usage(completion_tokens)
    )


async def _stream(answer: _Answer, generation: Generation) -> AsyncGenerator[CompletionResponse, None]:
    request, head = answer.request, answer.head
    begun: set[tuple[int, int]] = set()
    held: dict[int, list[tuple[RequestOutput, CompletionOutput]]] = {}
    async for index, output in generation:
        answer.head.usage.add(index, output)
        answer.note_prompt_logprobs(index, output)
        waiting = held.setdefault(index, [])
        waiting += [(output, completion) for completion in output.outputs]
        if answer.lacks_prompt_logprobs(index):
            continue
        for its_output, completion in waiting:
            echo = bool(request.echo) and (index, completion.index) not in begun
            begun.add((index, completion.index))
            choice = answer.choice(index, its_output, completion, echo)
            if choice.text or completion.token_ids or completion.finish_reason is not None:
                included, continuous = request.include_usage, request.continuous_usage
                usage = head.usage_so_far(included=included, continuous=continuous)
                yield answer.response([choice], **usage)
        waiting.clear()
    if request.include_usage:
        yield answer.response([], usage=answer.head.usage.usage())
