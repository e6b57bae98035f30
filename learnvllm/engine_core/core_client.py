"""One interface to the engine core, wherever it runs: in this process or in its own.

What is sent never waits; what comes back is fetched with `get_output`. Both ways give the same tokens.
Upstream namesake: vllm/v1/engine/core_client.py (EngineCoreClient, InprocClient).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from concurrent.futures import Future
from typing import Any

from learnvllm.architecture.errors import EngineDeadError, LearnVLLMError
from learnvllm.architecture.interrupts import interrupt_afterwards
from learnvllm.architecture.messages import EngineCoreOutputs, EngineCoreRequest
from learnvllm.engine_core.core import EngineCore, refused_output
from learnvllm.engine_core.protocol import EngineReady


class EngineCoreClient(ABC):
    """A started engine. `ready` tells what it reported when it was."""

    ready: EngineReady

    @abstractmethod
    def add_request(self, request: EngineCoreRequest) -> None:
        """Send a request. If the core refuses it, an output with finish_reason ERROR says why."""

    @abstractmethod
    def abort_requests(self, request_ids: list[str]) -> None:
        """Forget requests. Nothing more comes of them, except what is on its way already."""

    @abstractmethod
    def submit_utility(self, method: str, *args: Any) -> Future[Any]:
        """Call a method of the core (core.UTILITIES) out of band. The future raises what that raised."""

    @abstractmethod
    def check_health(self) -> None:
        """Raise EngineDeadError if the engine is gone."""

    @abstractmethod
    def shutdown(self) -> None:
        """Stop the engine and wait for it. May be called twice."""

    def call_utility(self, method: str, *args: Any, timeout: float | None = None) -> Any:
        return self.submit_utility(method, *args).result(timeout)


class SyncEngineCoreClient(EngineCoreClient):
    """A client for a caller that drives the loop itself (LLMEngine)."""

    @abstractmethod
    def get_output(self) -> EngineCoreOutputs:
        """What one step gave; may be empty. Waits for a step.

        Raises:
            EngineDeadError: the engine cannot go on.
        """


class InprocClient(SyncEngineCoreClient):
    """The core in this very process: `get_output` is a step. For tests, debuggers and notebooks."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.ready = core.ready_message()
        self._outputs: deque[EngineCoreOutputs] = deque()
        """Made and not fetched: refusals, and a step's that Ctrl-C kept from whoever waited for them."""
        self._dead: EngineDeadError | None = None

    def add_request(self, request: EngineCoreRequest) -> None:
        self.check_health()
        try:
            self.core.add_request(request)
        except LearnVLLMError as error:
            self._outputs.append(EngineCoreOutputs(outputs=[refused_output(request.request_id, error)]))

    def abort_requests(self, request_ids: list[str]) -> None:
        if request_ids and self._dead is None:
            self.core.abort_requests(request_ids)

    def get_output(self) -> EngineCoreOutputs:
        self.check_health()
        if not self._outputs:
            with interrupt_afterwards():  # also of a step that fails: a Ctrl-C then is what the caller gets
                try:
                    outputs, _ = self.core.step()
                    self._outputs.append(outputs.get(0) or EngineCoreOutputs())
                except Exception as error:
                    self._dead = EngineDeadError(f"The engine cannot go on: {type(error).__name__}: {error}")
                    raise self._dead from error  # later callers get it again, with its cause
        return self._outputs.popleft()

    def submit_utility(self, method: str, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(self.core.call_utility(method, list(args)))
        except Exception as error:
            future.set_exception(error)
        return future

    def check_health(self) -> None:
        if self._dead is not None:
            raise self._dead.again()

    def shutdown(self) -> None:
        if self._dead is None:
            self._dead = EngineDeadError("The engine has been shut down.")
        self.core.shutdown()
