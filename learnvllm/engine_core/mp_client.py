"""Clients of an engine core in another process: SyncMPClient for LLMEngine, AsyncMPClient for AsyncLLM.

A receiving thread decodes what comes, resolves futures of utility calls and hands outputs to whoever waits;
it also notices when the process dies. Upstream namesake: vllm/v1/engine/core_client.py (MPClient).
"""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from abc import abstractmethod
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.errors import EngineDeadError
from learnvllm.architecture.messages import EngineCoreOutputs, EngineCoreRequest, UtilityOutput
from learnvllm.engine_core.core import CoreFactory
from learnvllm.engine_core.core_client import EngineCoreClient, SyncEngineCoreClient
from learnvllm.engine_core.engine_process import POLL_MS, EngineProcess
from learnvllm.engine_core.protocol import (
    ENGINE_CORE_DEAD,
    EngineCoreRequestType,
    UtilityCall,
    from_remote_error,
)
from learnvllm.engine_core.serial import MsgpackDecoder, MsgpackEncoder

Received = EngineCoreOutputs | EngineDeadError


class MPClient(EngineCoreClient):
    """What both have in common. Calls come from one thread; only `shutdown` may come from another."""

    def __init__(
        self, core_factory: CoreFactory, config: EngineConfig, ready_timeout_s: float | None = None
    ) -> None:
        self._engine = EngineProcess(core_factory, config, ready_timeout_s)
        self.ready = self._engine.ready
        self._encoder = MsgpackEncoder()
        self._call_ids = itertools.count()
        self._calls: dict[int, Future[Any]] = {}
        self._dead: EngineDeadError | None = None
        self._closing = threading.Event()
        self._sending = threading.Lock()
        """A ZMQ socket has one user at a time."""
        self._receiver = threading.Thread(target=self._receive, name="engine-outputs", daemon=True)
        self._receiver.start()

    @property
    def process_id(self) -> int | None:
        return self._engine.process.pid

    def add_request(self, request: EngineCoreRequest) -> None:
        self.check_health()
        self._send(EngineCoreRequestType.ADD, request)

    def abort_requests(self, request_ids: list[str]) -> None:
        if request_ids and self._dead is None:
            with suppress(EngineDeadError):  # then they are gone anyway
                self._send(EngineCoreRequestType.ABORT, request_ids)

    def submit_utility(self, method: str, *args: Any) -> Future[Any]:
        self.check_health()
        call = UtilityCall(next(self._call_ids), method, list(args))
        future = self._calls[call.call_id] = Future()
        try:
            self._send(EngineCoreRequestType.UTILITY, call)
        except BaseException:
            self._calls.pop(call.call_id, None)
            raise
        if self._dead is not None:  # died meanwhile: the receiver may have missed this one
            self._fail_calls(self._dead)
        return future

    @property
    def dead_error(self) -> EngineDeadError | None:
        """Why the engine is gone, once it is."""
        return self._dead

    def check_health(self) -> None:
        if self._dead is not None:
            raise self._dead.again()

    def shutdown(self) -> None:
        with self._sending:
            if self._closing.is_set():
                return
            self._closing.set()  # nothing else is sent from here on
        self._receiver.join()
        if self._engine.is_alive():  # also where its output could not be read: it is to end in its own way
            self._engine.send(EngineCoreRequestType.SHUTDOWN.value, *self._encoder.encode(None))
        if self._dead is None:
            self._die("The engine has been shut down.")
        self._engine.shutdown()

    def _send(self, kind: EngineCoreRequestType, message: Any) -> None:
        frames = self._encoder.encode(message)
        with self._sending:
            if self._closing.is_set():
                raise EngineDeadError("The engine has been shut down.")
            self._engine.send(kind.value, *frames)

    # ------------------------------------------------------------------------------- the receiving thread

    @abstractmethod
    def _deliver(self, received: Received) -> None:
        """Hand over to whoever waits. Called on the receiving thread."""

    def _receive(self) -> None:
        try:
            self._receive_until_closed()
        except Exception as error:  # whoever waits must not wait for ever
            self._die(f"The engine's output cannot be read: {type(error).__name__}: {error}.")
            raise

    def _receive_until_closed(self) -> None:
        decoder = MsgpackDecoder(EngineCoreOutputs)
        socket = self._engine.output_socket
        while not self._closing.is_set():
            if not socket.poll(POLL_MS):
                if not self._engine.is_alive() and not socket.poll(0):
                    self._die(f"The engine process has died ({self._engine.describe_exit()}).")
                    return
                continue
            frames = socket.recv_multipart(copy=False)
            if len(frames) == 1 and bytes(frames[0].buffer) == ENGINE_CORE_DEAD:
                self._die("The engine failed and has stopped; its log says why.")
                return
            outputs = decoder.decode(frames)
            if outputs.utility_output is not None:
                self._resolve(outputs.utility_output)
            else:
                self._deliver(outputs)

    def _resolve(self, output: UtilityOutput) -> None:
        future = self._calls.pop(output.call_id, None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if output.error is not None:
            future.set_exception(from_remote_error(output.error))
        else:
            future.set_result(output.result)

    def _die(self, reason: str) -> None:
        self._dead = EngineDeadError(reason)
        self._fail_calls(self._dead)
        self._deliver(self._dead)

    def _fail_calls(self, error: EngineDeadError) -> None:
        while self._calls:
            _, future = self._calls.popitem()
            if future.set_running_or_notify_cancel():
                future.set_exception(error.again())


class SyncMPClient(MPClient, SyncEngineCoreClient):
    """For LLM(...): the caller's thread waits for outputs."""

    def __init__(
        self, core_factory: CoreFactory, config: EngineConfig, ready_timeout_s: float | None = None
    ) -> None:
        self._outputs: queue.Queue[Received] = queue.Queue()
        super().__init__(core_factory, config, ready_timeout_s)

    def _deliver(self, received: Received) -> None:
        self._outputs.put(received)

    def get_output(self) -> EngineCoreOutputs:
        received = self._outputs.get()
        if isinstance(received, EngineDeadError):
            self._outputs.put(received)  # for the next caller, too
            raise received.again()
        return received


class AsyncMPClient(MPClient):
    """For servers: outputs are awaited in the event loop in which they were first asked for."""

    def __init__(
        self, core_factory: CoreFactory, config: EngineConfig, ready_timeout_s: float | None = None
    ) -> None:
        self._outputs: deque[Received] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._arrived: asyncio.Event | None = None
        super().__init__(core_factory, config, ready_timeout_s)

    def _deliver(self, received: Received) -> None:
        self._outputs.append(received)
        if self._loop is not None and self._arrived is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def get_output_async(self) -> EngineCoreOutputs:
        """As SyncEngineCoreClient.get_output, without blocking."""
        if self._arrived is None:
            self._arrived, self._loop = asyncio.Event(), asyncio.get_running_loop()
        while not self._outputs:
            self._arrived.clear()
            if not self._outputs:  # may have come between the two lines above
                await self._arrived.wait()
        received = self._outputs[0]
        if isinstance(received, EngineDeadError):
            raise received.again()  # it stays, for the next caller
        return self._outputs.popleft()  # type: ignore[return-value]

    async def call_utility_async(self, method: str, *args: Any) -> Any:
        return await asyncio.wrap_future(self.submit_utility(method, *args))
