"""Server-sent events, and what happens when the client hangs up or the server must leave: requests are
aborted.

Upstream namesakes: vllm/entrypoints/serve/utils/api_utils.py (with_cancellation, listen_for_disconnect).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from learnvllm.serving.engine_client import Generation
from learnvllm.serving.errors import ShuttingDownError, describe

T = TypeVar("T")


class ClientDisconnected(Exception):
    """Nobody waits for the answer any more."""


async def or_disconnect(request: Request, work: Coroutine[None, None, T], out_of_time: asyncio.Event) -> T:
    """Run `work`, but cancel it as soon as the client hangs up or the server has no time left.

    Raises:
        ClientDisconnected: it did.
        ShuttingDownError: `out_of_time`.
    """
    task = asyncio.create_task(work)
    hangup = asyncio.create_task(_wait_for_disconnect(request))
    stop = asyncio.create_task(out_of_time.wait())
    try:
        await asyncio.wait((task, hangup, stop), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ShuttingDownError if stop.done() else ClientDisconnected
    finally:  # also when the server cancels us
        for pending in (task, hangup, stop):
            pending.cancel()
        await asyncio.gather(task, hangup, stop, return_exceptions=True)


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """text/event-stream of `chunks`, then [DONE]. However it ends, `generation` is closed with it."""

    def __init__(self, chunks: AsyncGenerator[BaseModel, None], generation: Generation) -> None:
        super().__init__(_events(chunks), media_type="text/event-stream")
        self.headers["Cache-Control"] = "no-cache"
        self.headers["X-Accel-Buffering"] = "no"  # nginx would collect the stream
        self._chunks = chunks
        self._generation = generation
        self.out_of_time = asyncio.Event()
        """Set by whoever must leave: the stream ends with an error."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stop = asyncio.create_task(self._stop_in_time())
        try:
            await super().__call__(scope, receive, send)
        finally:  # a generator that was never started runs no `finally` of its own
            stop.cancel()
            await self._chunks.aclose()
            await self._generation.aclose()

    async def _stop_in_time(self) -> None:
        await self.out_of_time.wait()
        self._generation.fail(ShuttingDownError())


async def _events(chunks: AsyncIterator[BaseModel]) -> AsyncIterator[str]:
    try:
        async for chunk in chunks:
            yield f"data: {chunk.model_dump_json(exclude_unset=True)}\n\n"
    except Exception as error:  # the status is sent; what is left is an event
        yield f"data: {json.dumps(describe(error)[1])}\n\n"
    yield "data: [DONE]\n\n"
