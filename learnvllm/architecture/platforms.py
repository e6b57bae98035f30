"""What the machine can do, asked in one place: features check a capability where one decides.

Devices are addressed by explicit ids; nothing here ever writes to the environment (rewriting
CUDA_VISIBLE_DEVICES breaks every process started later). Upstream namesake: vllm/platforms/ (Platform,
CpuPlatform).
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Literal

from learnvllm.architecture import envs
from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.errors import ConfigError

if TYPE_CHECKING:
    import torch

Capability = Literal["host_kernels", "memory_statistics", "cuda_graphs"]
"""host_kernels: operators compiled for the CPU run here. memory_statistics: the allocator counts the peak.
cuda_graphs: launches can be recorded and replayed."""
DeviceName = Literal["auto", "cpu", "cuda"]


class Platform(ABC):
    """One kind of device and the ids of those this engine may use.

    Args:
        device_ids: which devices, as the driver numbers them; rank r computes on device_ids[r].

    Raises:
        ConfigError: an id is repeated, or no such device exists.
    """

    device_type: str
    capabilities: frozenset[Capability]
    async_scheduling_default: bool
    """Whether scheduling a step ahead pays here when the user does not say."""
    prefill_tokens_per_decode_default: int
    """What SchedulerConfig.prefill_tokens_per_decode is when the user does not say."""
    default_runner: Literal["simple", "device"]
    """The model runner that pays (executor_worker/runner_selector.py)."""

    def __init__(self, device_ids: tuple[int, ...] | None = None) -> None:
        count = self.device_count()
        self.device_ids = tuple(range(count)) if device_ids is None else tuple(device_ids)
        if len(set(self.device_ids)) != len(self.device_ids) or not self.device_ids:
            raise ConfigError(
                f"device_ids={self.device_ids!r}: name at least one device, each once.",
                parameter="device_ids",
                value=self.device_ids,
            )
        for device_id in self.device_ids:
            if not 0 <= device_id < count:
                raise ConfigError(
                    f"device_ids={self.device_ids!r}: there is no {self.device_type} device {device_id}; "
                    f"this machine has {count}.",
                    parameter="device_ids",
                    value=self.device_ids,
                )

    def supports(self, capability: Capability) -> bool:
        return capability in self.capabilities

    def device(self, local_rank: int = 0) -> torch.device:
        """The device rank `local_rank` computes on.

        Raises:
            ConfigError: there are fewer devices than ranks.
        """
        import torch

        if local_rank >= len(self.device_ids):
            raise ConfigError(
                f"Rank {local_rank} has no device: only {len(self.device_ids)} {self.device_type} device(s) "
                "given.",
                parameter="device_ids",
                value=self.device_ids,
            )
        return torch.device(self.device_type, self.device_ids[local_rank])

    @classmethod
    @abstractmethod
    def device_count(cls) -> int:
        """Devices of this kind that the process can see."""

    @abstractmethod
    def total_memory(self, local_rank: int = 0) -> int:
        """Bytes the device has."""

    @abstractmethod
    def available_memory(self, local_rank: int = 0) -> int:
        """Bytes that could be allocated now."""


class CpuPlatform(Platform):
    """The host itself: one device, as many threads as cores."""

    device_type = "cpu"
    capabilities: frozenset[Capability] = frozenset({"host_kernels"})
    # Compute already uses every core: a host thread beside it takes a core from it instead of hiding behind
    # it. Measured: no difference (benchmarks/results/async_scheduling.txt).
    async_scheduling_default = False
    # Two prompt tokens a decode make a step two to three times as long (benchmarks/results/latency.txt).
    prefill_tokens_per_decode_default = 2
    default_runner = "simple"  # host and device are the same memory: nothing to keep apart

    def device(self, local_rank: int = 0) -> torch.device:
        """Every rank shares the one CPU."""
        import torch

        return torch.device("cpu")

    @classmethod
    def device_count(cls) -> int:
        return 1

    def total_memory(self, local_rank: int = 0) -> int:
        import psutil

        limit = _cgroup_memory_limit()
        total = int(psutil.virtual_memory().total)
        return total if limit is None else min(total, limit)

    def available_memory(self, local_rank: int = 0) -> int:
        import psutil

        available = int(psutil.virtual_memory().available)
        limit = _cgroup_memory_limit()
        if limit is not None:
            available = min(available, max(0, limit - psutil.Process().memory_info().rss))
        return available

    @staticmethod
    def physical_cores() -> int:
        """Cores this process may run on; two hardware threads of a core count once."""
        import psutil

        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))

    def num_threads(self, configured: int | None = None) -> int:
        """Compute threads: the configured number, else LEARNVLLM_NUM_THREADS, else the physical cores."""
        return configured or envs.get("LEARNVLLM_NUM_THREADS") or self.physical_cores()


class CudaPlatform(Platform):
    """NVIDIA GPUs, seen through torch. The current device of CUDA is left alone here: workers set theirs."""

    device_type = "cuda"
    capabilities: frozenset[Capability] = frozenset({"memory_statistics", "cuda_graphs"})
    async_scheduling_default = True
    prefill_tokens_per_decode_default = 0  # hundreds of prompt tokens cost little more than none
    default_runner = "device"

    @classmethod
    def device_count(cls) -> int:
        """GPUs that torch can use. Without the driver there is none, and torch need not be imported."""
        if not _has_cuda_driver():
            return 0
        import torch

        return torch.cuda.device_count()

    def total_memory(self, local_rank: int = 0) -> int:
        import torch

        return int(torch.cuda.mem_get_info(self.device(local_rank))[1])

    def available_memory(self, local_rank: int = 0) -> int:
        import torch

        return int(torch.cuda.mem_get_info(self.device(local_rank))[0])


def current_platform(device: DeviceName = "auto", device_ids: tuple[int, ...] | None = None) -> Platform:
    """The platform for a device name. auto: the GPU where there is one, else the CPU.

    Raises:
        ConfigError: cuda is asked for and there is no GPU, or a device id does not exist.
    """
    if device == "cpu" or (device == "auto" and CudaPlatform.device_count() == 0):
        return CpuPlatform(device_ids)
    if CudaPlatform.device_count() == 0:
        raise ConfigError(
            "device='cuda': torch sees no GPU here (no NVIDIA driver, a CPU build of torch, or "
            "CUDA_VISIBLE_DEVICES hides it); use --device cpu.",
            parameter="device",
            value=device,
        )
    return CudaPlatform(device_ids)


def uses_async_scheduling(config: EngineConfig) -> bool:
    """What the user said, or else what pays on this platform."""
    asked = config.scheduler_config.async_scheduling
    if asked is not None:
        return asked
    return current_platform(config.device_config.device).async_scheduling_default


def prefill_tokens_per_decode(config: EngineConfig) -> int:
    """What the user said, or else what keeps decodes going on this platform. 0: no limit."""
    asked = config.scheduler_config.prefill_tokens_per_decode
    if asked is not None:
        return asked
    return current_platform(config.device_config.device).prefill_tokens_per_decode_default


@cache
def _has_cuda_driver() -> bool:
    """Whether NVIDIA's driver library can be loaded: asked first, for importing torch takes a second."""
    import ctypes

    with suppress(OSError):
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        return True
    return False


def _cgroup_memory_limit() -> int | None:
    """The container's memory limit in bytes, if there is one (cgroup v2, then v1)."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path, encoding="ascii") as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < 1 << 60:  # v1 writes a huge number for "no limit"
            return int(text)
    return None
