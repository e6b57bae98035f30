"""The engine as the HTTP layer sees it, and one HTTP request's share of it.

A request may become several engine requests (a list of prompts); `Generation` runs them as one stream, and
closing it aborts whatever still runs. Upstream namesakes: vllm/engine/protocol.py (EngineClient),
vllm/utils/async_utils.py (merge_async_iterators).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Protocol

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.errors import LearnVLLMError, ServerError
from learnvllm.architecture.outputs import RequestOutput
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.engine_core.tokenizer import Tokenizer
from learnvllm.serving.renderer import RenderedPrompt


class EngineClient(Protocol):
    """What serving needs of AsyncLLM."""

    @property
    def config(self) -> EngineConfig: ...

    @property
    def tokenizer(self) -> Tokenizer | None: ...

    @property
    def errored(self) -> bool:
        """The engine died; nothing can be served any more."""
        ...

    @property
    def dead_error(self) -> LearnVLLMError: ...

    def generate(
        self,
        prompt: list[int],
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one request. Closing the generator aborts it.

        Raises:
            ValidationError, QueueFullError, EngineDeadError: before the first output.
        """
        ...

    def metrics_text(self) -> str:
        """Prometheus' text format."""
        ...

    def shutdown(self) -> None: ...


class Generation:
    """A stream of (index of the prompt, RequestOutput), already begun. Close it when done with it."""

    def __init__(self, first: tuple[int, RequestOutput], rest: AsyncGenerator[tuple[int, RequestOutput]]):
        self._first: tuple[int, RequestOutput] | None = first
        self._rest = rest
        self._failure: LearnVLLMError | None = None
        self._waiting: asyncio.Task[Any] | None = None

    @classmethod
    async def start(
        cls,
        engine: EngineClient,
        prompts: list[RenderedPrompt],
        params: list[SamplingParams],
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> Generation:
        """Add one request per prompt and wait for the first output: a refusal is a status code until then.

        Raises:
            LearnVLLMError: the engine refused a request; none of them runs then.
        """
        streams = [
            engine.generate(
                prompt.token_ids, p, f"{request_id}-{i}", priority=priority, cache_salt=cache_salt
            )
            for i, (prompt, p) in enumerate(zip(prompts, params))
        ]
        merged = _merge(streams)
        try:
            return cls(await anext(merged), merged)
        except StopAsyncIteration:
            raise ServerError("The engine ended a request without an output.") from None
        except BaseException:
            await merged.aclose()
            raise

    def __aiter__(self) -> AsyncIterator[tuple[int, RequestOutput]]:
        return self

    async def __anext__(self) -> tuple[int, RequestOutput]:
        if self._first is not None:
            item, self._first = self._first, None
        else:
            item = await self._next()
        item[1].raise_failure()
        return item

    async def _next(self) -> tuple[int, RequestOutput]:
        self._raise_failure()
        self._waiting = task = asyncio.current_task()
        try:
            return await anext(self._rest)
        except asyncio.CancelledError:
            if task is not None and self._failure is not None:
                task.uncancel()  # it was `fail`
                self._raise_failure()
            raise
        finally:
            self._waiting = None

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure from None

    def fail(self, error: LearnVLLMError) -> None:
        """End it from outside: whoever waits for the next output, or asks for it later, gets `error`."""
        self._failure = error
        if self._waiting is not None:
            self._waiting.cancel()

    async def aclose(self) -> None:
        await self._rest.aclose()


async def _merge(streams: list[AsyncGenerator[RequestOutput]]) -> AsyncGenerator[tuple[int, RequestOutput]]:
    """Items of all streams as they come. An error of one ends all; closing closes all."""
    if len(streams) == 1:
        try:
            async for output in streams[0]:
                yield 0, output
        finally:
            await streams[0].aclose()
        return

    queue: asyncio.Queue[tuple[int, RequestOutput | Exception | None]] = asyncio.Queue()

    async def pump(index: int, stream: AsyncGenerator[RequestOutput]) -> None:
        end: Exception | None = None
        try:
            async for output in stream:
                queue.put_nowait((index, output))
        except Exception as error:
            end = error
        finally:
            await stream.aclose()
        queue.put_nowait((index, end))

    tasks = [asyncio.create_task(pump(i, stream)) for i, stream in enumerate(streams)]
    try:
        running = len(tasks)
        while running:
            index, item = await queue.get()
            if item is None:
                running -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield index, item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
