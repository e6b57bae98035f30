"""How much memory the KV cache may take: what the device has left once a step at its largest has been paid
for.

On a CPU the peak is counted tensor by tensor; on a GPU the allocator knows it. Upstream namesakes:
vllm/v1/worker/gpu_worker.py (determine_available_memory), vllm/v1/worker/cpu_worker.py.
"""

from __future__ import annotations

import ctypes
import weakref
from contextlib import suppress
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from learnvllm.architecture import envs
from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.platforms import Platform
from learnvllm.kv_cache.interface import KVCacheSpec

GIB = 1 << 30
# On a CPU, memory is shared with everything else on the machine: do not take all of it for a cache nobody
# asked for.
DEFAULT_CPU_KV_CACHE_BYTES = 2 * GIB


def release_freed_memory() -> None:
    """Give back to the system what loading has freed.

    glibc's malloc keeps it for later, and the engine never again allocates as much: 200 MB with SmolLM2.
    Other C libraries have no `malloc_trim`; there nothing happens.
    """
    with suppress(OSError, AttributeError, TypeError):  # TypeError: Windows wants a name
        ctypes.CDLL(None).malloc_trim(0)


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of the tensors made inside the `with` block that are alive at once. `peak` is the
    most.

    Every operator's results pass through `__torch_dispatch__`; a storage counts once, however many views it
    has, and until its last view is gone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._live: dict[int, int] = {}
        self._total = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here. If this were true, the first operator would import all of torch._dynamo,
        which takes a second."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {_key(t) for t in tree_iter((args, kwargs)) if _has_storage(t)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if _has_storage(tensor) and _key(tensor) not in before:
                self._add(tensor)
        return result

    def _add(self, tensor: torch.Tensor) -> None:
        storage, key = tensor.untyped_storage(), _key(tensor)
        if key in self._live or storage.nbytes() == 0:
            return
        self._live[key] = storage.nbytes()
        self._total += storage.nbytes()
        self.peak = max(self.peak, self._total)
        weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        self._total -= self._live.pop(key, 0)


def _has_storage(value: Any) -> bool:
    """Weights that oneDNN has packed are opaque tensors; no step makes one, so they need no counting."""
    return isinstance(value, torch.Tensor) and not value.is_mkldnn


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def kv_cache_budget(
    config: EngineConfig, platform: Platform, specs: dict[str, KVCacheSpec], peak_activation_bytes: int
) -> int:
    """Bytes for the KV cache.

    On a GPU: gpu_memory_utilization of the device's memory, less what is in use and what a step needs at its
    peak. On a CPU: what max_num_seqs requests of max_model_len tokens could use, at most 2 GiB, and never
    more than gpu_memory_utilization of the memory free now less a step's peak. LEARNVLLM_KV_CACHE_SPACE_GIB
    replaces the 2 GiB rule; kv_cache_memory_bytes is taken as it is on any device.
    """
    cache = config.cache_config
    if cache.kv_cache_memory_bytes is not None:
        return cache.kv_cache_memory_bytes
    available, total = platform.available_memory(), platform.total_memory()
    if platform.device_type != "cpu":
        return max(0, int(cache.gpu_memory_utilization * total) - (total - available) - peak_activation_bytes)
    ceiling = max(0, int(cache.gpu_memory_utilization * available) - peak_activation_bytes)
    space_gib = envs.get("LEARNVLLM_KV_CACHE_SPACE_GIB")
    if space_gib is not None:
        return min(ceiling, int(space_gib * GIB))
    return min(ceiling, largest_use(config, specs), DEFAULT_CPU_KV_CACHE_BYTES)


def largest_use(config: EngineConfig, specs: dict[str, KVCacheSpec]) -> int:
    """Bytes that max_num_seqs requests of max_model_len tokens would hold, the null block included."""
    per_request = sum(spec.max_blocks(config.max_model_len) * spec.page_size_bytes for spec in specs.values())
    null_block = sum(spec.page_size_bytes for spec in specs.values())
    return config.scheduler_config.max_num_seqs * per_request + null_block
