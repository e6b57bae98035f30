"""The executor for one worker in the engine's own process: a call is a function call.

Under async scheduling every call goes to one worker thread, in order, so that a step runs while the engine
schedules the next; otherwise the calling thread does the work. Upstream namesake:
vllm/v1/executor/uniproc_executor.py.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from learnvllm.architecture.errors import EngineDeadError, EngineTimeoutError, ValidationError
from learnvllm.architecture.platforms import uses_async_scheduling
from learnvllm.architecture.step import ModelRunnerOutput, SchedulerOutput
from learnvllm.executor_worker.executor import Executor, ModelLoader
from learnvllm.executor_worker.pending import PendingOutput
from learnvllm.executor_worker.runner_selector import select_runner
from learnvllm.executor_worker.worker import Worker


class UniProcExecutor(Executor):
    """One Worker. All of its calls run on one and the same thread: an OpenMP thread pool belongs to the
    thread that started it, and a second pool would fight the first for the cores."""

    def _start(self, load_model: ModelLoader | None) -> None:
        self._worker: Worker | None = Worker(self.config, rank=0, load_model=load_model)
        self._thread: ThreadPoolExecutor | None = None
        # A device computes behind the calling thread's back: a second thread would only contend for Python.
        self._runs_ahead = select_runner(self.config).name == "device"
        if uses_async_scheduling(self.config) and not self._runs_ahead:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="learnvllm-worker")

    def _submit(self, method: str, args: tuple[Any, ...]) -> Future[Any]:
        if self._worker is None:
            raise EngineDeadError("The executor has been shut down.")
        call = getattr(self._worker, method)
        if self._thread is not None:
            return self._thread.submit(call, *args)
        done: Future[Any] = Future()
        try:
            done.set_result(call(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def collective_rpc(
        self, method: str, args: tuple[Any, ...] = (), timeout: float | None = None
    ) -> list[Any]:
        if timeout is not None and self._thread is None:
            raise ValidationError(
                f"timeout={timeout!r}: without async scheduling the calling thread does the work itself, so "
                "it cannot stop waiting. Leave timeout out.",
                parameter="timeout",
                value=timeout,
            )
        future = self._submit(method, args)
        try:
            return [future.result(timeout)]
        except FutureTimeoutError:
            if future.done():  # just now, or the error is the method's own
                return [future.result()]
            raise EngineTimeoutError(f"The worker did not answer {method!r} within {timeout} s.") from None

    def _execute(self, scheduler_output: SchedulerOutput) -> Future[ModelRunnerOutput]:
        if not self._runs_ahead:
            return self._submit("execute_model", (scheduler_output,))
        started: Future[PendingOutput] = self._submit("start_step", (scheduler_output,))
        return started if started.exception() else started.result()  # type: ignore[return-value]

    def register_failure_callback(self, callback: Callable[[], None]) -> None:
        """A worker in this process does not die alone."""

    def check_health(self) -> None:
        if self._worker is None:
            raise EngineDeadError("The executor has been shut down.")

    def shutdown(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
        if self._worker is not None:
            self._worker.shutdown()
        self._worker = None
