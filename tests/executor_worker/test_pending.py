"""A step's output that is finished by whoever asks for it first."""

from __future__ import annotations

import pytest

from learnvllm.architecture.step import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput
from learnvllm.executor_worker.pending import PendingOutput


def test_it_is_finished_once_by_the_first_who_asks() -> None:
    asked: list[int] = []

    def finish() -> ModelRunnerOutput:
        asked.append(1)
        return EMPTY_MODEL_RUNNER_OUTPUT

    output = PendingOutput(lambda: bool(asked), finish)
    assert not output.done()
    assert output.exception() is None
    assert output.done()
    assert output.result() is EMPTY_MODEL_RUNNER_OUTPUT
    assert asked == [1]


def test_what_it_raises_is_its_exception() -> None:
    def fails() -> ModelRunnerOutput:
        raise ValueError("no device")

    output = PendingOutput(lambda: False, fails)
    assert isinstance(output.exception(), ValueError)
    with pytest.raises(ValueError, match="no device"):
        output.result()
