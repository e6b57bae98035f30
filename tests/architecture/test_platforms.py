"""A platform says what the machine can do, addresses devices by id, and leaves the environment alone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from learnvllm.architecture.config import DeviceConfig
from learnvllm.architecture.errors import ConfigError
from learnvllm.architecture.platforms import (
    CpuPlatform,
    CudaPlatform,
    current_platform,
    uses_async_scheduling,
)
from tests.executor_worker.configs import make_config


class FourGpus(CudaPlatform):
    """As on a machine with four GPUs."""

    @classmethod
    def device_count(cls) -> int:
        return 4


@pytest.mark.parametrize("gpus", [0, 2])
def test_until_models_run_on_gpus_auto_is_the_cpu_and_cuda_is_refused(
    monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    monkeypatch.setattr(CudaPlatform, "device_count", classmethod(lambda cls: gpus))
    assert isinstance(current_platform("auto"), CpuPlatform)
    assert isinstance(current_platform("cpu"), CpuPlatform)
    with pytest.raises(ConfigError, match="device='cuda'.*CPU only"):
        current_platform("cuda")
    with pytest.raises(ConfigError, match="device='cuda'.*CPU only"):
        DeviceConfig(device="cuda")


def test_capabilities_differ() -> None:
    cpu, gpu = CpuPlatform(), FourGpus()
    assert (cpu.supports("host_kernels"), gpu.supports("host_kernels")) == (True, False)
    assert (cpu.supports("memory_statistics"), gpu.supports("memory_statistics")) == (False, True)


def test_ranks_use_the_given_devices_in_the_given_order() -> None:
    gpus = FourGpus(device_ids=(2, 0))
    assert [str(gpus.device(rank)) for rank in (0, 1)] == ["cuda:2", "cuda:0"]
    with pytest.raises(ConfigError, match="Rank 2 has no device"):
        gpus.device(2)


@pytest.mark.parametrize("device_ids", [(), (0, 0), (4,), (-1,)])
def test_wrong_device_ids_are_refused(device_ids: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="device_ids"):
        FourGpus(device_ids=device_ids)


def test_every_rank_shares_the_one_cpu() -> None:
    assert [str(CpuPlatform().device(rank)) for rank in (0, 1)] == ["cpu", "cpu"]


def test_nothing_writes_to_the_environment() -> None:
    before = dict(os.environ)
    for platform in (CpuPlatform(), FourGpus(device_ids=(3, 1)), current_platform("auto")):
        platform.device(0)
        platform.supports("host_kernels")
    CpuPlatform().num_threads(3)
    CpuPlatform().available_memory()
    uses_async_scheduling(make_config())
    assert dict(os.environ) == before


def test_cpu_memory_and_cores_are_plausible() -> None:
    cpu = CpuPlatform()
    assert 0 < cpu.available_memory() <= cpu.total_memory()
    assert 1 <= cpu.physical_cores() <= (os.cpu_count() or 1)


def test_threads_come_from_the_config_then_the_environment_then_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cpu = CpuPlatform()
    monkeypatch.delenv("LEARNVLLM_NUM_THREADS", raising=False)
    assert cpu.num_threads() == cpu.physical_cores()
    monkeypatch.setenv("LEARNVLLM_NUM_THREADS", "7")
    assert cpu.num_threads() == 7
    assert cpu.num_threads(3) == 3


@pytest.mark.parametrize("asked", [True, False])
def test_async_scheduling_is_what_was_asked_for(asked: bool) -> None:
    assert uses_async_scheduling(make_config(async_scheduling=asked)) is asked


def test_async_scheduling_is_the_platforms_choice_when_not_asked_for() -> None:
    assert uses_async_scheduling(make_config(async_scheduling=None)) is CpuPlatform.async_scheduling_default


def test_importing_the_module_does_not_import_torch() -> None:
    code = "import sys, learnvllm.architecture.platforms; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
