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
    Platform,
    current_platform,
    uses_async_scheduling,
)
from tests.executor_worker.configs import make_config


class FourGpus(CudaPlatform):
    """As on a machine with four GPUs."""

    @classmethod
    def device_count(cls) -> int:
        return 4


@pytest.mark.parametrize(("gpus", "auto"), [(0, CpuPlatform), (2, CudaPlatform)])
def test_auto_is_the_gpu_where_there_is_one(
    monkeypatch: pytest.MonkeyPatch, gpus: int, auto: type[Platform]
) -> None:
    monkeypatch.setattr(CudaPlatform, "device_count", classmethod(lambda cls: gpus))
    assert type(current_platform("auto")) is auto
    assert type(current_platform("cpu")) is CpuPlatform
    assert uses_async_scheduling(make_config(device="auto")) is auto.async_scheduling_default


def test_cuda_is_a_gpu_or_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CudaPlatform, "device_count", classmethod(lambda cls: 1))
    assert DeviceConfig(device="cuda").device == "cuda"
    assert str(current_platform("cuda").device()) == "cuda:0"
    monkeypatch.setattr(CudaPlatform, "device_count", classmethod(lambda cls: 0))
    with pytest.raises(ConfigError, match="device='cuda'.*no GPU here.*--device cpu"):
        current_platform("cuda")


def test_without_a_driver_no_gpu_is_looked_for_and_torch_not_imported() -> None:
    code = """
import sys
from learnvllm.architecture import platforms
platforms._has_cuda_driver = lambda: False
assert type(platforms.current_platform("auto")) is platforms.CpuPlatform
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


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
