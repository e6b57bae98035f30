"""A step's output that is still being computed: a Future which does the last bit of work when it is asked.

The device fills a piece of host memory; waiting for that and making lists of it is put off until somebody
wants the result, so no thread waits and no step waits for another. Upstream: AsyncModelRunnerOutput in
vllm/v1/outputs.py.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from learnvllm.architecture.step import ModelRunnerOutput


class PendingOutput(Future[ModelRunnerOutput]):
    """Args:
    is_ready: whether `finish` would return at once.
    finish: waits for the device and makes the output. Called once.
    """

    def __init__(self, is_ready: Callable[[], bool], finish: Callable[[], ModelRunnerOutput]) -> None:
        super().__init__()
        self._is_ready, self._finish = is_ready, finish

    def done(self) -> bool:
        return super().done() or self._is_ready()

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        self._settle()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._settle()
        return super().exception(timeout)

    def _settle(self) -> None:
        if not super().done():
            try:
                self.set_result(self._finish())
            except Exception as error:
                self.set_exception(error)
