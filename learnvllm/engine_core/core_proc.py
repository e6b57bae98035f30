"""The engine core in a process of its own: a busy loop between two threads that talk ZMQ.

The input thread decodes while the model computes (which releases the GIL); the output thread encodes and
sends. Between them and the loop are plain queues. Upstream namesake: vllm/v1/engine/core.py (EngineCoreProc).
"""

from __future__ import annotations

import logging
import queue
import signal
import sys
import threading
from contextlib import suppress
from enum import Enum, auto
from typing import Any, NamedTuple

import msgspec
import zmq

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.errors import ClientError, LearnVLLMError, ServerError, ValidationError
from learnvllm.architecture.messages import EngineCoreOutputs, EngineCoreRequest, UtilityOutput
from learnvllm.architecture.request import Request
from learnvllm.engine_core.core import CoreFactory, EngineCore, refused_output
from learnvllm.engine_core.protocol import (
    ENGINE_CORE_DEAD,
    OUTPUT_SOCKET_READY,
    EngineCoreRequestType,
    StartupFailed,
    UtilityCall,
    to_remote_error,
)
from learnvllm.engine_core.serial import FrameSender, MsgpackDecoder
from learnvllm.executor_worker.processes import end_with_parent, set_up_process

logger = logging.getLogger(__name__)

LINGER_MS = 4000
"""How long a closing socket tries to deliver its last messages."""
PARENT_DEATH_GRACE_S = 5.0


class EngineAddresses(NamedTuple):
    """Where the client listens: requests go out of `input`, outputs come in at `output`."""

    input: str
    output: str


class Signal(Enum):
    """What may lie in the input queue besides messages."""

    DRAIN = auto()
    """Finish what runs, then stop."""
    STOP = auto()
    EXECUTOR_FAILED = auto()
    """A worker died, perhaps while nothing ran."""


InputItem = Request | UtilityCall | Signal | list[str]


class EngineCoreProc:
    """Runs one EngineCore until told to stop.

    Args:
        input_socket: DEALER, connected, READY already sent.
        output_socket: PUSH, connected.
    """

    def __init__(
        self, core: EngineCore, input_socket: zmq.Socket[bytes], output_socket: zmq.Socket[bytes]
    ) -> None:
        self.core = core
        self.core.take_aborts = self._take_aborts
        # SimpleQueue.put is reentrant, so a signal handler may call it.
        self.input_queue: queue.SimpleQueue[InputItem] = queue.SimpleQueue()
        self._aborts: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
        self._output_queue: queue.SimpleQueue[EngineCoreOutputs | bytes | None] = queue.SimpleQueue()
        self.core.executor.register_failure_callback(lambda: self.input_queue.put(Signal.EXECUTOR_FAILED))
        self._output_error: Exception | None = None
        self._draining = False
        self._stopping = False
        self._input_socket, self._output_socket = input_socket, output_socket
        self._input_thread = threading.Thread(target=self._receive_inputs, name="engine-input", daemon=True)
        self._output_thread = threading.Thread(target=self._send_outputs, name="engine-output", daemon=True)

    def run(self) -> None:
        """The busy loop. Returns when asked to stop; raises what the model raised, having told the client."""
        self._input_thread.start()
        self._output_thread.start()
        try:
            while self._process_inputs():
                outputs, _ = self.core.step()
                for client_outputs in outputs.values():
                    self._output_queue.put(client_outputs)
        except BaseException as error:
            self._output_queue.put(ENGINE_CORE_DEAD)
            if type(error) is SystemExit:  # what sys.exit raises would end the process without a word
                raise ServerError(f"A step called sys.exit({error.code!r}).") from error
            raise
        finally:
            self._output_queue.put(None)
            self._output_thread.join()
        if self._output_error is not None:
            raise ServerError("The engine's outputs cannot be sent.") from self._output_error

    # ------------------------------------------------------------------------------------------- the loop

    def _process_inputs(self) -> bool:
        """Take in everything that has arrived; wait for something while there is no work. False: stop."""
        while not (self.core.has_work() or self._draining or self._stopping):
            self._handle(self.input_queue.get())
        while not self.input_queue.empty():
            self._handle(self.input_queue.get())
        return not (self._stopping or (self._draining and not self.core.has_work()))

    def _handle(self, item: InputItem) -> None:
        if isinstance(item, Request):
            self._add(item)
        elif isinstance(item, list):
            self._take_aborts()  # its twin there is old news now, and must not end a later request of that id
            self.core.abort_requests(item)
        elif isinstance(item, UtilityCall):
            self._output_queue.put(EngineCoreOutputs(utility_output=self._call_utility(item)))
        elif item is Signal.DRAIN:
            self._draining = True
        elif item is Signal.STOP:
            self._stopping = True
        elif item is Signal.EXECUTOR_FAILED:
            self.core.check_health()  # raises

    def _add(self, request: Request) -> None:
        try:
            self.core.add_request(request)
        except LearnVLLMError as error:  # this one's trouble, nobody else's
            self._refuse(request.request_id, error)

    def _refuse(self, request_id: str, error: LearnVLLMError) -> None:
        self._output_queue.put(EngineCoreOutputs(outputs=[refused_output(request_id, error)]))

    def _call_utility(self, call: UtilityCall) -> UtilityOutput:
        try:
            return UtilityOutput(call.call_id, self.core.call_utility(call.method, call.args))
        except Exception as error:
            logger.debug("utility %s failed", call.method, exc_info=True)
            return UtilityOutput(call.call_id, error=to_remote_error(error))

    def _take_aborts(self) -> list[str]:
        request_ids: list[str] = []
        while not self._aborts.empty():
            request_ids.extend(self._aborts.get())
        return request_ids

    # ---------------------------------------------------------------------------------------- the threads

    def _receive_inputs(self) -> None:
        requests = MsgpackDecoder(EngineCoreRequest)
        calls = MsgpackDecoder(UtilityCall)
        ids = MsgpackDecoder(list[str])
        while True:
            try:
                kind_frame, *frames = self._input_socket.recv_multipart(copy=False)
            except zmq.ContextTerminated:  # the loop has ended: `context.term` waits for this socket
                self._input_socket.close(linger=0)
                return
            try:
                kind = EngineCoreRequestType(bytes(kind_frame.buffer))
                if kind is EngineCoreRequestType.ADD:
                    self._receive_request(requests, frames)
                elif kind is EngineCoreRequestType.ABORT:
                    request_ids = ids.decode(frames)
                    # Twice: for the step being worked on, and behind the ADD that may not be taken in yet.
                    self._aborts.put(request_ids)
                    self.input_queue.put(request_ids)
                elif kind is EngineCoreRequestType.UTILITY:
                    self.input_queue.put(calls.decode(frames))
                else:
                    self.input_queue.put(Signal.STOP)
            except Exception:
                logger.exception("A message to the engine could not be read; it is dropped.")

    def _receive_request(self, decoder: MsgpackDecoder[EngineCoreRequest], frames: list[Any]) -> None:
        """Decode and hash here, beside the model's computing. A bad request is answered, not fatal."""
        try:
            self.input_queue.put(self.core.preprocess_request(decoder.decode(frames)))
        except Exception as error:
            request_id = msgspec.msgpack.decode(frames[0])[0]
            if not isinstance(error, LearnVLLMError):
                error = ValidationError(f"The engine could not read request {request_id!r}: {error}.")
            self._refuse(request_id, error)

    def _send_outputs(self) -> None:
        try:
            self._send_until_told_to_stop()
        except Exception as error:  # nobody may be left waiting: `run` raises it
            self._output_error = error
            self.input_queue.put(Signal.STOP)
            with suppress(zmq.ZMQError):
                self._output_socket.send(ENGINE_CORE_DEAD)
        self._output_socket.close(linger=LINGER_MS)

    def _send_until_told_to_stop(self) -> None:
        sender = FrameSender(self._output_socket)
        while (item := self._output_queue.get()) is not None:
            if isinstance(item, bytes):
                self._output_socket.send(item)
                continue
            try:
                sender.send(item)
            except zmq.ZMQError:
                raise
            except Exception as error:  # one message that cannot be encoded is not the end of the others
                sender.send(self._replace_unsendable(item, error))

    def _replace_unsendable(self, item: EngineCoreOutputs, error: Exception) -> EngineCoreOutputs:
        """What is said instead: the call failed (its result may be anything), or these requests have."""
        if item.utility_output is not None:
            remote = to_remote_error(ValidationError(f"The result cannot be sent: {error}."))
            return EngineCoreOutputs(utility_output=UtilityOutput(item.utility_output.call_id, error=remote))
        logger.error("Outputs of a step cannot be sent.", exc_info=error)
        request_ids = [output.request_id for output in item.outputs]
        self.input_queue.put(request_ids)  # to abort them
        failure = ServerError(f"The engine's output cannot be sent: {error}.")
        return EngineCoreOutputs(outputs=[refused_output(r, failure) for r in request_ids])


def run_engine_core(
    core_factory: CoreFactory, config: EngineConfig, addresses: EngineAddresses, engine_index: int = 0
) -> None:
    """Entry point of the engine process. Exit code 0: told to stop; 1: could not start or could not go on."""
    set_up_process("engine")
    proc: EngineCoreProc | None = None

    def stop() -> None:  # a running step may end in order, but not for ever
        if proc is not None:
            proc.input_queue.put(Signal.STOP)

    end_with_parent(stop, PARENT_DEATH_GRACE_S)
    context = zmq.Context()
    input_socket = _connect(context, zmq.DEALER, addresses.input, identity=engine_index.to_bytes(2, "little"))
    output_socket = _connect(context, zmq.PUSH, addresses.output)
    core: EngineCore | None = None
    exit_code = 1
    try:
        try:
            core = _start(core_factory, config, input_socket, output_socket)
        except ClientError:  # told to the client, who can do something about it: no traceback here
            sys.exit(exit_code)
        proc = EngineCoreProc(core, input_socket, output_socket)
        put = proc.input_queue.put
        signal.signal(signal.SIGTERM, lambda *_: put(Signal.DRAIN))
        proc.run()
        exit_code = 0
    except Exception:
        logger.exception("The engine cannot go on.")
    finally:
        if core is None:
            input_socket.close(linger=LINGER_MS)
            output_socket.close(linger=0)
        else:
            core.shutdown()
        context.term()
    sys.exit(exit_code)


def _start(
    core_factory: CoreFactory,
    config: EngineConfig,
    socket: zmq.Socket[bytes],
    output_socket: zmq.Socket[bytes],
) -> EngineCore:
    try:
        core = core_factory(config)
        output_socket.send(OUTPUT_SOCKET_READY)
        socket.send(msgspec.msgpack.encode(("READY", core.ready_message())))
        return core
    except BaseException as error:
        socket.send(msgspec.msgpack.encode(("FAILED", StartupFailed(to_remote_error(error)))))
        raise


def _connect(
    context: zmq.Context[Any], kind: int, address: str, identity: bytes | None = None
) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.set_hwm(0)  # no limit: the scheduler's queue limits say how much may wait
    if identity is not None:
        socket.identity = identity
    socket.connect(address)
    return socket
