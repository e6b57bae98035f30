"""One table of features decides which runner an engine gets; each line of it is held to."""

from __future__ import annotations

import pytest

from learnvllm.architecture.errors import ConfigError
from learnvllm.architecture.platforms import CpuPlatform, CudaPlatform
from learnvllm.executor_worker.runner_selector import FEATURES, Support, select_runner
from tests.executor_worker.configs import make_config


class OneGpu(CudaPlatform):
    @classmethod
    def device_count(cls) -> int:
        return 1


def test_each_platform_gets_the_runner_that_pays() -> None:
    assert str(select_runner(make_config(), CpuPlatform())) == "simple (what pays on cpu)"
    assert str(select_runner(make_config(), OneGpu())) == "device (what pays on cuda)"


def test_the_environment_overrules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEARNVLLM_MODEL_RUNNER", "device")
    assert str(select_runner(make_config(), CpuPlatform())) == "device (LEARNVLLM_MODEL_RUNNER)"
    monkeypatch.setenv("LEARNVLLM_MODEL_RUNNER", "simple")
    choice = select_runner(make_config(), OneGpu())
    assert str(choice) == "simple (LEARNVLLM_MODEL_RUNNER; without CUDA graphs)"


def test_what_only_the_simple_runner_can_do_falls_back_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = make_config(
        max_num_seqs=16384, max_num_batched_tokens=16384, max_model_len=131072, positions=131072
    )
    choice = select_runner(huge, OneGpu())
    assert choice.name == "simple"
    assert "but not with rows of more than 2**31 words" in choice.reasons[0]
    monkeypatch.setenv("LEARNVLLM_MODEL_RUNNER", "device")
    with pytest.raises(ConfigError, match=r"'device' cannot do: rows of more than 2\*\*31 words"):
        select_runner(huge, OneGpu())


def test_a_worker_process_makes_steps_wait_and_that_is_said() -> None:
    choice = select_runner(make_config(backend="mp"), OneGpu())
    assert choice.name == "device"
    assert "a worker in a process of its own: yes, but a step with it waits for the device" in choice.reasons


def test_what_requests_may_ask_for_both_runners_do() -> None:
    assert all(Support.NO not in (f.simple, f.device) for f in FEATURES if f.asked is None)
