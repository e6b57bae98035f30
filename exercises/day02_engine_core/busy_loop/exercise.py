"""The request that was aborted before it began (break-and-fix, 40 minutes, 14 points).

This engine process serves well, until now and then a client gets no answer at all: its request was accepted,
and then, without an error, nothing. It happens to clients that cancel a request and send it again under the
same id. Read the loop and its two queues, find the moment in which the second request dies, and repair it
without giving up what the two queues are for.

Not asked: Sockets, encoding and start-up: they work.

This file has a mistake in it. Find it and repair it.

Read: docs/topics/engine_core/concepts.md
Check: learnvllm check engine_core.busy_loop
"""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from typing import Any

import msgspec
import zmq

from learnvllm.architecture.errors import LearnVLLMError, ServerError, ValidationError
from learnvllm.architecture.messages import EngineCoreOutputs, EngineCoreRequest, UtilityOutput
from learnvllm.architecture.request import Request
from learnvllm.engine_core.core import EngineCore, refused_output
from learnvllm.engine_core.core_proc import LINGER_MS, InputItem, Signal, logger
from learnvllm.engine_core.protocol import (
    ENGINE_CORE_DEAD,
    EngineCoreRequestType,
    UtilityCall,
    to_remote_error,
)
from learnvllm.engine_core.serial import FrameSender, MsgpackDecoder


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
