"""What every HTTP request passes before a route sees it: draining, the API key, the size limit.

Plain ASGI, so that a client's disconnect still reaches the route. The key is asked for by default: a new
route is locked unless it is named in PUBLIC_PATHS.
Upstream namesake: vllm/entrypoints/serve/middleware/authenticate.py (AuthenticationMiddleware).
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from learnvllm.serving.errors import ShuttingDownError, error_body, error_response

PUBLIC_PATHS = frozenset({"/health"})
MAX_BODY_BYTES = 8 * 2**20
MAX_DISCARDED_BYTES = 64 * 2**20
"""Of a body that is too large, this much is read for the sake of a clean answer."""


@dataclass
class ServerState:
    """What the signal handlers, the middleware and the launcher tell each other."""

    draining: bool = False
    in_flight: int = 0
    """Requests being answered, streams included."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    out_of_time: asyncio.Event = field(default_factory=asyncio.Event)
    """Whoever still waits for an answer gets an error now."""
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """The server ends, with or without an engine: no client is waited for any more."""

    def __post_init__(self) -> None:
        self.idle.set()

    def enter(self) -> None:
        self.in_flight += 1
        self.idle.clear()

    def leave(self) -> None:
        self.in_flight -= 1
        if self.in_flight == 0:
            self.idle.set()


class DrainMiddleware:
    """Counts the requests in flight; refuses new ones once the server is on its way out, and at last those
    whose body is not here yet."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self.app = app
        self.state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
        elif self.state.draining:
            await self._refuse(scope, receive, send)
        else:
            self.state.enter()
            try:
                await self._serve(scope, receive, send)
            finally:
                self.state.leave()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_body = False

        async def receive_in_time() -> Message:
            nonlocal has_body
            if has_body:  # all that can come is a disconnect, and nobody's end depends on it
                return await receive()
            message = await _unless_closing(receive(), self.state.closing)
            has_body = not message.get("more_body", False)
            return message

        try:
            await self.app(scope, receive_in_time, send)
        except _BodyTooLate:
            await self._refuse(scope, receive, send)
        except asyncio.CancelledError:
            if not self.state.closing.is_set():
                raise
            # uvicorn has given up on a client that does not read. It would log a traceback.

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = error_response(ShuttingDownError())
        response.headers["Connection"] = "close"
        await response(scope, receive, send)


class _BodyTooLate(BaseException):
    """Not an Exception: FastAPI would take it for a body that cannot be parsed."""


async def _unless_closing(receiving: Awaitable[Message], closing: asyncio.Event) -> Message:
    """What is received. Raises _BodyTooLate when the server closes first."""
    receive = asyncio.ensure_future(receiving)
    close = asyncio.create_task(closing.wait())
    try:
        await asyncio.wait((receive, close), return_when=asyncio.FIRST_COMPLETED)
        if receive.done():
            return receive.result()
        raise _BodyTooLate
    finally:
        receive.cancel()
        close.cancel()


class AuthenticationMiddleware:
    """401 on every path but PUBLIC_PATHS unless the request brings one of the keys."""

    def __init__(self, app: ASGIApp, api_keys: Iterable[str]) -> None:
        self.app = app
        self.hashes = [hashlib.sha256(key.encode()).digest() for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or scope.get("path") in PUBLIC_PATHS or self._is_authorized(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            message = 'Missing or wrong API key. Send the header "Authorization: Bearer <key>".'
            body = error_body(message, code="invalid_api_key")
            await JSONResponse(body, 401, {"WWW-Authenticate": "Bearer"})(scope, receive, send)
        else:  # a websocket, before it is accepted
            await send({"type": "websocket.close", "code": 1008})

    def _is_authorized(self, scope: Scope) -> bool:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, key = header.partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        given = hashlib.sha256(key.strip()).digest()
        # Hashes of equal length, compared in constant time, and all of them: timing tells nothing.
        return sum(secrets.compare_digest(given, known) for known in self.hashes) > 0


class BodyLimitMiddleware:
    """413 for bodies beyond `limit` bytes, announced or not, before they are held in memory."""

    def __init__(self, app: ASGIApp, limit: int = MAX_BODY_BYTES) -> None:
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        announced = Headers(scope=scope).get("content-length", "0")
        if announced.isdigit() and int(announced) > self.limit:
            await self._refuse(scope, receive, send)
            return
        received = 0
        started = False

        async def counting_receive() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.limit:
                raise _BodyTooLarge
            return message

        async def noting_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, counting_receive, noting_send)
        except _BodyTooLarge:
            if started:
                raise
            await self._refuse(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Closing while the client still sends would reset the connection, and with it lose the answer.
        discarded = 0
        while discarded < MAX_DISCARDED_BYTES:
            message = await receive()
            discarded += len(message.get("body", b""))
            if not message.get("more_body", False):
                break
        text = f"The body is larger than {self.limit} bytes. Send less in one request."
        response: Any = JSONResponse(error_body(text, code="body_too_large"), 413, {"Connection": "close"})
        await response(scope, receive, send)


class _BodyTooLarge(BaseException):
    """Not an Exception: nothing on its way up may take it for a failure of its own."""
