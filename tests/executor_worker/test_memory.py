"""The KV cache gets what a step leaves over: peaks are counted, budgets have a ceiling, buffers are
shared."""

from __future__ import annotations

import dataclasses
import platform

import psutil
import pytest
import torch

from learnvllm.architecture.config import CacheConfig, EngineConfig
from learnvllm.architecture.errors import ConfigError
from learnvllm.architecture.platforms import Platform
from learnvllm.executor_worker.kv_cache import allocate_kv_caches
from learnvllm.executor_worker.memory import (
    DEFAULT_CPU_KV_CACHE_BYTES,
    GIB,
    PeakMemory,
    kv_cache_budget,
    largest_use,
)
from learnvllm.executor_worker.worker import Worker
from learnvllm.kv_cache.interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    KVCacheTensor,
)
from learnvllm.model_layers.model import DecoderModel
from tests.executor_worker.configs import make_config
from tests.executor_worker.fake_model import load_fake_model, make_kv_cache_config

CPU = torch.device("cpu")


class FixedPlatform(Platform):
    """A machine of known size."""

    async_scheduling_default = False
    capabilities = frozenset()

    def __init__(self, device_type: str, total: int, available: int) -> None:
        self.device_type, self._total, self._available = device_type, total, available
        super().__init__()

    @classmethod
    def device_count(cls) -> int:
        return 1

    def total_memory(self, local_rank: int = 0) -> int:
        return self._total

    def available_memory(self, local_rank: int = 0) -> int:
        return self._available


def config_with(**cache: float) -> EngineConfig:
    return dataclasses.replace(make_config(), cache_config=CacheConfig(block_size=4, **cache))  # type: ignore[arg-type]


def big_specs() -> dict[str, KVCacheSpec]:
    return {f"layers.{i}": FullAttentionSpec(4, 64, 4096, "float32") for i in range(8)}


# ------------------------------------------------------------------------------------------------------ peak


def test_peak_memory_counts_what_is_alive_at_once() -> None:
    with PeakMemory() as memory:
        a = torch.ones(1000)  # 4000 bytes
        b = a + 1  # 8000
        view = b[10:].view(-1, 10)  # no memory of its own
        a.add_(1)
        del a  # 4000
        c = view * 2  # 7960
    assert memory.peak == 8000
    assert c.numel() == 990


def test_peak_memory_under_inference_mode_and_with_results_dropped_at_once() -> None:
    with torch.inference_mode(), PeakMemory() as memory:
        for _ in range(10):
            torch.zeros(1000)
    assert memory.peak == 4000


def test_a_small_profile_step_tells_what_a_large_one_takes() -> None:
    peaks = []
    for tokens in (64, 6400):  # 100 times the step, of which one in a hundred parts is run
        config = make_config(vocab=5000, max_num_seqs=tokens, max_num_batched_tokens=tokens)
        worker = Worker(config, load_model=load_fake_model)
        worker.init_device()
        worker.load_model()
        peaks.append(worker._profile_peak(worker.get_kv_cache_specs()))
    assert peaks[1] == pytest.approx(100 * peaks[0], rel=0.01)


def test_the_profile_run_counts_the_logits_of_every_request() -> None:
    config = make_config(vocab=5000, max_num_seqs=8, max_num_batched_tokens=32)
    worker = Worker(config, load_model=load_fake_model)
    worker.init_device()
    worker.load_model()
    specs = worker.get_kv_cache_specs()
    assert 8 * 5000 * 4 <= worker._profile_peak(specs) < 2 * 8 * 5000 * 4


# ---------------------------------------------------------------------------------------------------- budget


def test_a_cpu_takes_what_its_requests_could_use_and_no_more() -> None:
    config, specs = config_with(), make_specs()
    cpu = FixedPlatform("cpu", 64 * GIB, 32 * GIB)
    assert kv_cache_budget(config, cpu, specs, 0) == largest_use(config, specs)
    # 8 requests of 64 tokens in blocks of 4, and the null block; 2 layers; a page is 2 * 4 * 2 * 4 * 4 bytes
    assert largest_use(config, specs) == (8 * 16 + 1) * 2 * 256


def test_a_cpu_takes_at_most_two_gib_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = FixedPlatform("cpu", 64 * GIB, 32 * GIB)
    assert kv_cache_budget(config_with(), cpu, big_specs(), 0) == DEFAULT_CPU_KV_CACHE_BYTES
    monkeypatch.setenv("LEARNVLLM_KV_CACHE_SPACE_GIB", "3.5")
    assert kv_cache_budget(config_with(), cpu, big_specs(), 0) == int(3.5 * GIB)
    assert kv_cache_budget(config_with(kv_cache_memory_bytes=12345), cpu, big_specs(), 0) == 12345


def test_a_cpu_never_takes_more_than_its_share_of_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_with(gpu_memory_utilization=0.5)
    cpu = FixedPlatform("cpu", 64 * GIB, 2 * GIB)
    monkeypatch.setenv("LEARNVLLM_KV_CACHE_SPACE_GIB", "100")
    assert kv_cache_budget(config, cpu, big_specs(), peak_activation_bytes=GIB // 4) == GIB - GIB // 4
    assert kv_cache_budget(config, cpu, big_specs(), peak_activation_bytes=5 * GIB) == 0


def test_a_gpu_gives_what_weights_and_a_step_leave_of_its_share() -> None:
    gpu = FixedPlatform("cuda", 80 * GIB, 60 * GIB)  # 20 GiB are in use
    config = config_with(gpu_memory_utilization=0.9)
    assert kv_cache_budget(config, gpu, big_specs(), 2 * GIB) == 72 * GIB - 20 * GIB - 2 * GIB


def make_specs() -> dict[str, KVCacheSpec]:
    return load_fake_model(make_config()).kv_cache_specs(4)


# ------------------------------------------------------------------------------------------------- allocation


def test_caches_have_the_shape_their_layer_needs() -> None:
    caches = allocate_kv_caches(make_kv_cache_config(make_config(), num_blocks=10), CPU)
    assert set(caches) == {"layers.0", "layers.1"}
    for k, v in caches.values():
        assert k.shape == v.shape == (10, 2, 4, 4)
        assert k.dtype == torch.float32
        assert not k.any()


def test_one_layer_of_each_group_shares_a_buffer() -> None:
    config = make_config(layer_types=("full_attention", "sliding_attention") * 2)
    caches = allocate_kv_caches(make_kv_cache_config(config), CPU)
    addresses = {name: (k.data_ptr(), v.data_ptr()) for name, (k, v) in caches.items()}
    assert addresses["layers.0"] == addresses["layers.1"]
    assert addresses["layers.2"] == addresses["layers.3"]
    assert len({address for pair in addresses.values() for address in pair}) == 4


def test_layers_of_different_shape_may_share_pages_of_equal_size() -> None:
    specs = (FullAttentionSpec(4, 2, 8, "float32"), FullAttentionSpec(4, 4, 4, "float32"))
    groups = tuple(KVCacheGroupSpec((name,), spec) for name, spec in zip("ab", specs))
    caches = allocate_kv_caches(KVCacheConfig(5, 4, groups, (KVCacheTensor(("a", "b")),)), CPU)
    assert caches["a"][0].shape == (5, 2, 4, 8)
    assert caches["b"][0].shape == (5, 4, 4, 4)
    assert caches["a"][0].data_ptr() == caches["b"][0].data_ptr()


def test_pages_of_different_size_cannot_share() -> None:
    specs = (FullAttentionSpec(4, 2, 8, "float32"), FullAttentionSpec(4, 2, 4, "float32"))
    groups = tuple(KVCacheGroupSpec((name,), spec) for name, spec in zip("ab", specs))
    with pytest.raises(ValueError, match="share a cache tensor"):
        allocate_kv_caches(KVCacheConfig(5, 4, groups, (KVCacheTensor(("a", "b")),)), CPU)


def test_an_unused_pool_takes_no_memory() -> None:
    spec = FullAttentionSpec(16, 8, 64, "float32")
    blocks = GIB // spec.page_size_bytes
    before = private_memory()
    caches = allocate_kv_caches(
        KVCacheConfig(blocks, 16, (KVCacheGroupSpec(("a",), spec),), (KVCacheTensor(("a",)),)), CPU
    )
    assert sum(t.nbytes for t in caches["a"]) == blocks * spec.page_size_bytes
    assert private_memory() - before < GIB // 20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked for it")
def test_what_loading_has_freed_goes_back_to_the_system() -> None:
    kept = []

    def load(config: EngineConfig) -> DecoderModel:
        scraps = [torch.ones(25_000) for _ in range(2000)]  # 200 MB in pieces that malloc would keep
        kept.extend(scraps[::100])  # among them what stays, so that the heap cannot shrink from its end
        return load_fake_model(config)

    worker = Worker(make_config(), load_model=load)
    worker.init_device()
    before = private_memory()
    worker.load_model()
    assert private_memory() - before < 50e6


def private_memory() -> int:
    """Resident bytes of this process, without pages of files: those come and go as the system likes."""
    memory = psutil.Process().memory_info()
    return memory.rss - getattr(memory, "shared", 0)


def test_an_impossible_pool_is_a_clear_error() -> None:
    worker = Worker(make_config(), load_model=load_fake_model)
    worker.init_device()
    worker.load_model()
    config = make_kv_cache_config(make_config(), num_blocks=1 << 46)
    with pytest.raises(ConfigError, match="--kv-cache-memory-bytes"):
        worker.initialize_from_config(config)


def test_tables_that_no_memory_holds_are_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError("Unable to allocate 8 GiB")

    monkeypatch.setattr("learnvllm.executor_worker.worker.ModelRunner", no_memory)
    worker = Worker(make_config(), load_model=load_fake_model)
    worker.init_device()
    worker.load_model()
    with pytest.raises(ConfigError, match="Lower --max-num-seqs"):
        worker.initialize_from_config(make_kv_cache_config(make_config(), num_blocks=8))


def test_warm_up_takes_the_attention_kernel_of_this_models_head_size(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("learnvllm.model_layers.ops.warm_up_kernels", asked.append)
    worker = Worker(make_config(), load_model=load_fake_model)
    worker.init_device()
    worker.load_model()
    worker.initialize_from_config(make_kv_cache_config(make_config(), num_blocks=8))
    worker.compile_or_warm_up_model()
    assert asked == [4]
