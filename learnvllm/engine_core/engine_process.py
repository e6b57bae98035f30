"""Starts the engine process and waits until it says READY, or says clearly why it never will.

Upstream namesakes: vllm/v1/engine/utils.py (CoreEngineProcManager, wait_for_engine_startup).
"""

from __future__ import annotations

import atexit
import multiprocessing
import shutil
import signal
import tempfile
import time
import weakref
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec
import zmq

from learnvllm.architecture import envs
from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.errors import ConfigError, EngineDeadError, EngineTimeoutError
from learnvllm.engine_core.core import CoreFactory
from learnvllm.engine_core.core_proc import EngineAddresses, run_engine_core
from learnvllm.engine_core.protocol import EngineReady, StartupFailed, from_remote_error
from learnvllm.executor_worker.processes import start_process

POLL_MS = 100
"""How often a waiting client looks whether the process still lives."""
STOP_TIMEOUT_S = 10.0


class EngineProcess:
    """One engine process and the two sockets that lead to it.

    Args:
        core_factory: builds the core inside the process; a module-level function.
        ready_timeout_s: None: LEARNVLLM_ENGINE_READY_TIMEOUT_S.

    Raises:
        ConfigError, ModelLoadError: what the engine found wrong, as it said it.
        EngineDeadError: the process ended while starting.
        EngineTimeoutError: it was not ready in time.
    """

    def __init__(
        self, core_factory: CoreFactory, config: EngineConfig, ready_timeout_s: float | None = None
    ) -> None:
        timeout = envs.get("LEARNVLLM_ENGINE_READY_TIMEOUT_S") if ready_timeout_s is None else ready_timeout_s
        with ExitStack() as undo:  # what a failure leaves behind
            self._directory = Path(tempfile.mkdtemp(prefix="learnvllm-"))
            undo.callback(shutil.rmtree, self._directory, ignore_errors=True)
            self.context = zmq.Context()
            undo.callback(self.context.destroy, linger=0)
            self.input_socket, input_address = self._bind(zmq.ROUTER, "in")
            self.output_socket, output_address = self._bind(zmq.PULL, "out")
            self.process = _spawn(core_factory, config, EngineAddresses(input_address, output_address))
            # Registered after multiprocessing's own exit handler, so run before it, which would wait.
            self._at_exit = _kill_at_exit(self)
            undo.callback(self.shutdown, graceful=False)
            self.identity, self.ready = self._wait_until_ready(timeout)
            if self.ready.config_hash != config.config_hash():
                raise ConfigError("The engine process runs another configuration than this client.")
            undo.pop_all()

    def _bind(self, kind: int, name: str) -> tuple[zmq.Socket[bytes], str]:
        socket: zmq.Socket[bytes] = self.context.socket(kind)
        socket.set_hwm(0)
        socket.linger = 0
        path = f"ipc://{self._directory / name}"
        if zmq.has("ipc") and len(path) < zmq.IPC_PATH_MAX_LEN:
            socket.bind(path)
        else:  # Windows, or a very long temporary directory
            socket.bind("tcp://127.0.0.1:*")
        return socket, socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\x00")

    def _wait_until_ready(self, timeout: float) -> tuple[bytes, EngineReady]:
        deadline = time.monotonic() + timeout
        while not self.input_socket.poll(POLL_MS):
            if not self.process.is_alive() and not self.input_socket.poll(0):
                raise EngineDeadError(
                    f"The engine process ended while starting ({self.describe_exit()}), before it could say "
                    "why. Its output above may tell."
                )
            if time.monotonic() > deadline:
                raise EngineTimeoutError(
                    f"The engine was not ready within {timeout:g} s: READY of engine 0 (process "
                    f"{self.process.pid}, still running) is missing. A first start compiles kernels and "
                    "loads the model; to wait longer set LEARNVLLM_ENGINE_READY_TIMEOUT_S."
                )
        identity, payload = self.input_socket.recv_multipart()
        kind, body = msgspec.msgpack.decode(payload)
        if kind == "READY":
            self.output_socket.recv()  # OUTPUT_SOCKET_READY, sent before it
            # Both are connected: from now on no exit, however hard, leaves the sockets' files behind.
            shutil.rmtree(self._directory)
            return identity, msgspec.convert(body, EngineReady)
        raise from_remote_error(msgspec.convert(body, StartupFailed).error)

    def send(self, *frames: Any) -> None:
        self.input_socket.send_multipart([self.identity, *frames], copy=False)

    def is_alive(self) -> bool:
        return self.process.is_alive()

    def describe_exit(self) -> str:
        """The exit code, by the name of the signal where there was one."""
        self.process.join(STOP_TIMEOUT_S)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exit code {code}"

    def shutdown(self, graceful: bool = True) -> None:
        """Wait for the process to end (it must have been told to), or kill it. May be called twice."""
        atexit.unregister(self._at_exit)
        if graceful:
            self.process.join(STOP_TIMEOUT_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.context.destroy(linger=0)
        shutil.rmtree(self._directory, ignore_errors=True)


def _spawn(core_factory: CoreFactory, config: EngineConfig, addresses: EngineAddresses) -> BaseProcess:
    # spawn: a forked child would inherit locks and threads of a library it must set up for itself.
    process = multiprocessing.get_context("spawn").Process(
        target=run_engine_core, args=(core_factory, config, addresses), name="learnvllm-engine"
    )
    start_process(process, core_factory)
    return process


def _kill_at_exit(engine: EngineProcess) -> Any:
    process = weakref.ref(engine.process)

    def kill() -> None:
        running = process()
        if running is not None and running.is_alive():
            running.kill()

    atexit.register(kill)
    return kill
