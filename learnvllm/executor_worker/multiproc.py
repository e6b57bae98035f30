"""The executor for workers in processes of their own: calls go down a pipe to each, answers come back in
order.

A worker that dies fails every waiting call with its rank and exit code; workers end when their parent does,
even by SIGKILL. Upstream namesake: vllm/v1/executor/multiproc_executor.py (MultiprocExecutor, WorkerProc).
"""

from __future__ import annotations

import copy
import logging
import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from typing import Any

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.errors import EngineDeadError, EngineTimeoutError
from learnvllm.architecture.step import ModelRunnerOutput, SchedulerOutput
from learnvllm.executor_worker.executor import Executor, ModelLoader
from learnvllm.executor_worker.processes import (
    be_killed_with_parent,
    end_with_parent,
    set_up_process,
    start_process,
)

logger = logging.getLogger(__name__)

SHUTDOWN_GRACE_S = 10.0
# An answer on the pipe: (True, result) or (False, (exception, traceback text)).
Answer = tuple[bool, Any]


class MultiprocExecutor(Executor):
    """One spawned process per rank. The process that creates it must not be daemonic (it could have no
    children)."""

    @property
    def world_size(self) -> int:
        parallel = self.config.parallel_config
        return parallel.tensor_parallel_size * parallel.pipeline_parallel_size

    def _start(self, load_model: ModelLoader | None) -> None:
        self._workers = [WorkerHandle(self.config, rank, load_model) for rank in range(self.world_size)]
        self._lock = threading.Lock()
        self._pending: deque[_Call] = deque()
        self._dead: EngineDeadError | None = None
        self._failure_callback: Callable[[], None] | None = None
        self._stopping = False
        self._reader = threading.Thread(target=self._read_answers, name="learnvllm-executor", daemon=True)
        self._reader.start()

    # ------------------------------------------------------------------------------------------- calls down

    def _call(self, method: str, args: tuple[Any, ...]) -> Future[list[Any]]:
        call = _Call(len(self._workers))
        with self._lock:  # the same order on every pipe and in `_pending`
            if self._dead is not None:
                raise self._dead.again()
            self._pending.append(call)
            for worker in self._workers:
                with suppress(OSError):  # raised when it is gone: the reader notices too, and says how
                    worker.pipe.send((method, args))
        return call.future

    def collective_rpc(
        self, method: str, args: tuple[Any, ...] = (), timeout: float | None = None
    ) -> list[Any]:
        future = self._call(method, args)
        try:
            return future.result(timeout)
        except FutureTimeoutError:
            if future.done():  # just now, or the error is the method's own
                return future.result()
            raise EngineTimeoutError(f"Not every worker answered {method!r} within {timeout} s.") from None

    def _execute(self, scheduler_output: SchedulerOutput) -> Future[ModelRunnerOutput]:
        output: Future[ModelRunnerOutput] = Future()

        def first_rank(done: Future[list[Any]]) -> None:
            if not output.set_running_or_notify_cancel():
                return  # nobody waits for it any more
            error = done.exception()
            if error is not None:
                output.set_exception(error)
            else:
                output.set_result(done.result()[0])

        self._call("execute_model", (scheduler_output,)).add_done_callback(first_rank)
        return output

    # --------------------------------------------------------------------------------------------- answers up

    def _read_answers(self) -> None:
        """Runs on its own thread until a worker ends, also during shutdown: a worker whose last answer fills
        the pipe would not end otherwise."""
        by_pipe = {worker.pipe: worker for worker in self._workers}
        by_sentinel = {worker.process.sentinel: worker for worker in self._workers}
        while True:
            ready = wait([*by_pipe, *by_sentinel])
            for source in ready:  # answers first: a worker may have answered before it died
                if isinstance(source, Connection):
                    try:
                        answer = _receive(source)
                    except (EOFError, OSError):
                        self._fail(by_pipe[source])
                        return
                    self._answer(by_pipe[source].rank, answer)
            for source in ready:
                if isinstance(source, int) and not by_sentinel[source].pipe.poll():
                    self._fail(by_sentinel[source])
                    return

    def _answer(self, rank: int, answer: Answer) -> None:
        with self._lock:
            call = next((call for call in self._pending if call.answers[rank] is None), None)
            if call is None:
                return  # shutdown has ended it already
            call.answers[rank] = answer
            done = call is self._pending[0] and all(a is not None for a in call.answers)
            if done:
                self._pending.popleft()
        if done:
            call.resolve()

    def _fail(self, worker: WorkerHandle) -> None:
        if self._stopping:
            return
        worker.process.join(SHUTDOWN_GRACE_S)
        error = EngineDeadError(
            f"Worker process of rank {worker.rank} (pid {worker.process.pid}) died with exit code "
            f"{worker.process.exitcode}."
        )
        logger.error("%s", error)
        with self._lock:
            self._dead = error
            pending, self._pending = self._pending, deque()
            callback = self._failure_callback
        for call in pending:
            call.fail(error.again())
        if callback is not None:
            callback()

    # ---------------------------------------------------------------------------------------------- lifetime

    def register_failure_callback(self, callback: Callable[[], None]) -> None:
        with self._lock:
            self._failure_callback = callback
            is_dead = self._dead is not None
        if is_dead:
            callback()

    def check_health(self) -> None:
        with self._lock:
            if self._dead is not None:
                raise self._dead.again()

    def shutdown(self) -> None:
        with self._lock:
            if self._stopping:
                return
            self._stopping = True
            self._dead = self._dead or EngineDeadError("The executor has been shut down.")
            pending, self._pending = self._pending, deque()
            for worker in self._workers:
                worker.request_exit()
        for worker in self._workers:
            worker.stop()
        self._reader.join(SHUTDOWN_GRACE_S)
        for worker in self._workers:
            worker.pipe.close()
        for call in pending:
            call.fail(self._dead.again())


class _Call:
    """One call to all ranks and the answers that have come."""

    def __init__(self, world_size: int) -> None:
        self.future: Future[list[Any]] = Future()
        self.answers: list[Answer | None] = [None] * world_size

    def resolve(self) -> None:
        for rank, answer in enumerate(self.answers):
            assert answer is not None
            ok, value = answer
            if not ok:
                error, text = value
                error.add_note(f"Raised by the worker of rank {rank}:\n{text}")
                self.fail(error)
                return
        if self.future.set_running_or_notify_cancel():
            self.future.set_result([answer[1] for answer in self.answers if answer is not None])

    def fail(self, error: BaseException) -> None:
        if self.future.set_running_or_notify_cancel():  # else whoever waited has cancelled it
            self.future.set_exception(error)


class WorkerHandle:
    """The parent's end of one worker process."""

    def __init__(self, config: EngineConfig, rank: int, load_model: ModelLoader | None) -> None:
        context = get_context("spawn")  # fork would copy locks and thread pools in whatever state they are
        self.rank = rank
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=run_worker,
            args=(config, rank, load_model, theirs, threading.current_thread() is threading.main_thread()),
            name=f"learnvllm-worker-{rank}",
        )
        start_process(self.process, load_model)
        theirs.close()  # or the pipe would never report that the worker is gone

    def request_exit(self) -> None:
        with suppress(OSError):  # raised when it is gone already
            self.pipe.send(None)

    def stop(self) -> None:
        """Wait for the process to end; insist if it does not."""
        self.process.join(SHUTDOWN_GRACE_S)
        if self.process.is_alive():
            logger.warning("Worker %d does not stop; killing it.", self.rank)
            self.process.kill()
            self.process.join()


def run_worker(
    config: EngineConfig,
    rank: int,
    load_model: ModelLoader | None,
    pipe: Connection,
    started_by_main_thread: bool,
) -> None:
    """The worker process: answer calls in order until told to stop or until the parent is gone."""
    if started_by_main_thread:
        be_killed_with_parent()
    end_with_parent()
    set_up_process(f"worker {rank}")
    from learnvllm.executor_worker.worker import Worker  # late: imports torch, in this process only

    worker = Worker(config, rank, load_model)
    while True:
        try:
            call = pipe.recv()
        except EOFError:
            return
        if call is None:
            return
        method, args = call
        try:
            answer: Answer = (True, getattr(worker, method)(*args))
        except Exception as error:
            answer = (False, (error, traceback.format_exc()))
        _send(pipe, answer)


def _receive(pipe: Connection) -> Answer:
    data = pipe.recv_bytes()
    try:
        answer: Answer = ForkingPickler.loads(data)
    except Exception as error:  # else the only thread that reads answers would end
        text = traceback.format_exc()
        answer = (False, (RuntimeError(f"An answer cannot be read: {type(error).__name__}: {error}"), text))
    return answer


def _send(pipe: Connection, answer: Answer) -> None:
    try:
        if not answer[0]:
            copy.copy(answer[1][0])  # one that cannot be made again is to fail here, not in who reads it
        pipe.send(answer)
    except OSError:
        pass  # the parent is gone; the next recv ends this process
    except Exception as error:  # the result, or the exception, cannot be sent: send its text
        what = answer[1] if answer[0] else answer[1][0]
        text = answer[1][1] if not answer[0] else traceback.format_exc()
        pipe.send((False, (RuntimeError(f"{type(what).__name__}: {what} (cannot be sent: {error})"), text)))
