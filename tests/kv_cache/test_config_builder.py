"""Layers become groups of equal size over one pool, and memory that does not suffice is refused with a way
out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnvllm.architecture.errors import ConfigError
from learnvllm.kv_cache.config_builder import get_kv_cache_config, group_layers
from learnvllm.kv_cache.interface import KVCacheSpec
from learnvllm.scheduling.toy import make_kv_cache
from tests.kv_cache.helpers import full_spec, window_spec
from tests.scheduling.fake_runner import make_config

PAGE = full_spec().page_size_bytes


def layers(*specs: KVCacheSpec) -> dict[str, KVCacheSpec]:
    return {f"layers.{i}": spec for i, spec in enumerate(specs)}


def config(num_blocks: int | None = None, memory: int | None = None, **options):
    result = make_config(num_blocks=2, **options)
    object.__setattr__(result.cache_config, "num_gpu_blocks_override", num_blocks)
    object.__setattr__(result.cache_config, "kv_cache_memory_bytes", memory)
    return result


def test_layers_of_one_kind_are_one_group_with_a_tensor_each() -> None:
    plan = get_kv_cache_config(layers(*[full_spec()] * 3), 3 * PAGE * 200, config(max_model_len=64))
    assert [group.layer_names for group in plan.groups] == [("layers.0", "layers.1", "layers.2")]
    assert [tensor.shared_by for tensor in plan.tensors] == [("layers.0",), ("layers.1",), ("layers.2",)]
    assert plan.num_blocks == 200


def test_five_sliding_layers_to_one_full_layer_make_six_groups() -> None:
    specs = layers(*[full_spec() if (i + 1) % 6 == 0 else window_spec(8) for i in range(18)])
    plan = get_kv_cache_config(specs, 3 * PAGE * 500, config(max_model_len=64))
    assert [len(group.layer_names) for group in plan.groups] == [3] * 6
    assert len(plan.tensors) == 3
    assert all(len(tensor.shared_by) == 6 for tensor in plan.tensors)
    assert plan.num_blocks == 500


@given(st.lists(st.sampled_from([full_spec(), window_spec(4), window_spec(9)]), min_size=1, max_size=30))
def test_every_layer_is_in_one_group_and_one_tensor_with_none_of_its_own_group(specs) -> None:
    plan = get_kv_cache_config(layers(*specs), 0, config(num_blocks=50))
    in_groups = [name for group in plan.groups for name in group.layer_names]
    in_tensors = [name for tensor in plan.tensors for name in tensor.shared_by]
    assert sorted(in_groups) == sorted(in_tensors) == sorted(layers(*specs))
    group_of = {name: i for i, group in enumerate(plan.groups) for name in group.layer_names}
    for tensor in plan.tensors:
        assert len({group_of[name] for name in tensor.shared_by}) == len(tensor.shared_by)
    for group in plan.groups:
        assert {layers(*specs)[name] for name in group.layer_names} == {group.spec}


def test_nearly_equal_kinds_are_not_cut_into_single_layers() -> None:
    groups = group_layers(layers(*[full_spec()] * 9, *[window_spec(8)] * 10))
    assert [len(group.layer_names) for group in groups] == [9, 10]


def test_memory_for_less_than_one_request_is_refused_with_what_fits() -> None:
    with pytest.raises(ConfigError) as error:
        get_kv_cache_config(layers(full_spec()), 11 * PAGE, config(max_model_len=512))
    message = str(error.value)
    assert "max_model_len=512" in message
    assert "40 tokens fit" in message
    assert "--max-model-len to 40 or less" in message
    assert "--gpu-memory-utilization" in message
    get_kv_cache_config(layers(full_spec()), 11 * PAGE, config(max_model_len=40))


def test_no_memory_at_all_is_refused_too() -> None:
    with pytest.raises(ConfigError, match=r"0 tokens fit. Lower --max-model-len, or"):
        get_kv_cache_config(layers(full_spec()), -5, config())


def test_the_number_of_blocks_may_be_given() -> None:
    assert get_kv_cache_config(layers(full_spec()), 0, config(num_blocks=7)).num_blocks == 7


def test_the_number_of_bytes_may_be_given() -> None:
    plan = get_kv_cache_config(layers(full_spec()), 0, config(memory=17 * PAGE + 5, max_model_len=64))
    assert plan.num_blocks == 17


def test_layers_with_different_pages_are_refused() -> None:
    with pytest.raises(ConfigError, match="different sizes"):
        get_kv_cache_config(layers(full_spec(), full_spec(num_kv_heads=2)), 10**9, config())


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="no layer with a KV cache"):
        get_kv_cache_config({}, 10**9, config())


@given(
    num_blocks=st.integers(2, 40),
    block_size=st.integers(1, 8),
    windows=st.lists(st.one_of(st.none(), st.integers(1, 12)), min_size=1, max_size=3),
    step=st.integers(1, 20),
)
def test_max_tokens_that_fit_is_the_last_length_that_fits(num_blocks, block_size, windows, step) -> None:
    plan = make_kv_cache(num_blocks, block_size, windows)
    most = plan.max_tokens_that_fit(step, at_most=400)
    assert plan.max_blocks(most, step) <= plan.num_usable_blocks
    assert most == 400 or plan.max_blocks(most + 1, step) > plan.num_usable_blocks
