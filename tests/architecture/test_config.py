"""The configuration tree: immutable, checked within and across its parts, the same in every process."""

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest

from learnvllm.architecture.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
)
from learnvllm.architecture.errors import ConfigError
from tests.engine_core.parts import make_arch


def model(**more: Any) -> ModelConfig:
    return ModelConfig(model="m", path=Path("/m"), arch=make_arch(1000), **more)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        (CacheConfig, "block_size", 0),
        (CacheConfig, "block_size", 4097),
        (CacheConfig, "block_size", "big"),
        (CacheConfig, "block_size", "16"),
        (CacheConfig, "block_size", True),
        (CacheConfig, "enable_prefix_caching", "no"),
        (CacheConfig, "watermark", "0.5"),
        (CacheConfig, "gpu_memory_utilization", 0.0),
        (CacheConfig, "gpu_memory_utilization", 1.1),
        (CacheConfig, "watermark", 1.0),
        (CacheConfig, "num_gpu_blocks_override", 0),
        (CacheConfig, "kv_cache_memory_bytes", 0),
        (SchedulerConfig, "max_num_batched_tokens", 0),
        (SchedulerConfig, "max_num_seqs", 0),
        (SchedulerConfig, "max_num_seqs", 1.5),
        (SchedulerConfig, "max_num_seqs", 16385),
        (SchedulerConfig, "max_num_seqs", 99999999999),
        (SchedulerConfig, "policy", "lottery"),
        (SchedulerConfig, "long_prefill_token_threshold", -1),
        (SchedulerConfig, "prefill_tokens_per_decode", -1),
        (SchedulerConfig, "max_num_queued_reqs", 0),
        (ParallelConfig, "tensor_parallel_size", 2),
        (ParallelConfig, "distributed_executor_backend", "ray"),
        (DeviceConfig, "device", "tpu"),
        (DeviceConfig, "num_threads", 0),
        (DeviceConfig, "num_threads", -1),
        (DeviceConfig, "num_threads", 1025),
        (DeviceConfig, "num_threads", 100_000),
        (model, "max_model_len", 1),
        (model, "max_model_len", 1001),
        (model, "max_model_len", -1),
        (model, "max_logprobs", -1),
        (model, "dtype", "fp8"),
        (model, "served_model_name", "\udcff"),
        (CacheConfig, "prefix_caching_hash_seed", "a\udcff"),
        (ObservabilityConfig, "trace_file", Path("/\udcff")),
    ],
)
def test_a_bad_value_is_refused_by_name(part: Any, name: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        part(**{name: value})
    assert caught.value.parameter == name
    assert name in str(caught.value)


def test_a_limit_on_pieces_of_prompts_needs_pieces() -> None:
    with pytest.raises(ConfigError, match="prefill_tokens_per_decode=2: .* without chunked prefill"):
        SchedulerConfig(enable_chunked_prefill=False, prefill_tokens_per_decode=2)
    for value in (None, 0):
        SchedulerConfig(enable_chunked_prefill=False, prefill_tokens_per_decode=value)


def test_a_share_that_may_be_0_but_not_1_is_described_so() -> None:
    with pytest.raises(ConfigError, match="watermark must be at least 0 and below 1"):
        CacheConfig(watermark=1.0)
    assert CacheConfig(watermark=0.0).watermark == 0


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(ConfigError, match="blocksize"):
        CacheConfig(blocksize=16)  # type: ignore[call-arg]


def test_more_than_one_device_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        ParallelConfig(tensor_parallel_size=2)
    assert str(caught.value).startswith(
        "tensor_parallel_size=2: tensor_parallel_size above 1 is not implemented"
    )
    assert "\n" not in str(caught.value)


def test_max_model_len_left_out_is_the_models_own() -> None:
    assert model().max_model_len == 1000
    assert model(max_model_len=64).max_model_len == 64


def test_fault_4_chunking_off_needs_a_budget_for_the_longest_prompt() -> None:
    scheduler = SchedulerConfig(enable_chunked_prefill=False, max_num_batched_tokens=512)
    with pytest.raises(ConfigError, match=r"at least max_model_len \(1000\)"):
        EngineConfig(model(), scheduler_config=scheduler)
    EngineConfig(model(max_model_len=512), scheduler_config=scheduler)


def test_one_block_is_none_since_the_first_is_never_handed_out() -> None:
    with pytest.raises(ConfigError, match="null block"):
        EngineConfig(model(), cache_config=CacheConfig(num_gpu_blocks_override=1))


def test_nothing_can_be_changed_afterwards() -> None:
    config = EngineConfig(model())
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.cache_config.block_size = 8  # type: ignore[misc]


def test_the_hash_names_the_configuration_in_every_process() -> None:
    config = EngineConfig(model(), cache_config=CacheConfig(block_size=8))
    again = EngineConfig(model(), cache_config=CacheConfig(block_size=8))
    assert config.config_hash() == again.config_hash()
    assert pickle.loads(pickle.dumps(config)) == config
    assert pickle.loads(pickle.dumps(config)).config_hash() == config.config_hash()


def test_every_field_counts_in_the_hash() -> None:
    base = EngineConfig(model())
    changed = [
        EngineConfig(model(seed=1)),
        EngineConfig(model(), cache_config=CacheConfig(watermark=0.5)),
        EngineConfig(model(), scheduler_config=SchedulerConfig(policy="priority")),
        EngineConfig(model(), device_config=DeviceConfig(num_threads=3)),
    ]
    assert len({config.config_hash() for config in (base, *changed)}) == 5


def test_clients_call_the_model_by_its_served_name() -> None:
    assert EngineConfig(model()).served_model_name == "m"
    assert EngineConfig(model(served_model_name="mine")).served_model_name == "mine"
