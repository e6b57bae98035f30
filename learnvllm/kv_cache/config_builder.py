"""From layers and bytes to a plan: which layers share a block table, which share memory, how many blocks
there are.

A block means the same bytes whichever group takes it, so one pool serves all. Groups are about equally large;
one with fewer layers than the largest leaves a part of its blocks unused.
Upstream namesake: vllm/v1/core/kv_cache_config_builder.py, kv_cache_planning.py.
"""

from __future__ import annotations

from dataclasses import replace

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.errors import ConfigError
from learnvllm.architecture.math_utils import cdiv
from learnvllm.kv_cache.interface import KVCacheConfig, KVCacheGroupSpec, KVCacheSpec, KVCacheTensor

# Kinds of layers of nearly equal number are padded to the greater, else split into groups of the smaller.
_PAD_UP_TO = 1.25


def get_kv_cache_config(
    specs: dict[str, KVCacheSpec], available_bytes: int, config: EngineConfig
) -> KVCacheConfig:
    """Plan the KV cache of a model.

    Args:
        specs: layer name -> what it needs, in layer order.
        available_bytes: memory left for the cache. `kv_cache_memory_bytes` and `num_gpu_blocks_override`
            overrule it.
        config: the engine's configuration.

    Raises:
        ConfigError: layers cannot share a pool, or memory does not suffice for one request of max_model_len
            tokens (not checked when the number of blocks is given: the scheduler then refuses what does not
            fit).
    """
    page_size = _common_page_size(specs)
    groups = group_layers(specs)
    num_tensors = max(len(group.layer_names) for group in groups)
    tensors = tuple(
        KVCacheTensor(tuple(g.layer_names[i] for g in groups if i < len(g.layer_names)))
        for i in range(num_tensors)
    )
    plan = KVCacheConfig(0, next(iter(specs.values())).block_size, groups, tensors)

    cache = config.cache_config
    if cache.num_gpu_blocks_override is not None:
        return replace(plan, num_blocks=cache.num_gpu_blocks_override)
    num_bytes = available_bytes if cache.kv_cache_memory_bytes is None else cache.kv_cache_memory_bytes
    plan = replace(plan, num_blocks=max(num_bytes, 0) // (page_size * num_tensors))
    _check_capacity(plan, num_bytes, page_size * num_tensors, config)
    return plan


def group_layers(specs: dict[str, KVCacheSpec]) -> tuple[KVCacheGroupSpec, ...]:
    """Layers of equal spec, cut into groups of about equal size.

    Example: 5 sliding-window layers to 1 of full attention, 18 layers: 15 + 3, so six groups of three.
    Of 7 + 3 come groups of 3, 2, 2 and 3.
    """
    by_spec: dict[KVCacheSpec, list[str]] = {}
    for name, spec in specs.items():
        by_spec.setdefault(spec, []).append(name)
    counts = [len(names) for names in by_spec.values()]
    size = max(counts) if max(counts) < min(counts) * _PAD_UP_TO else min(counts)
    groups = []
    for spec, names in by_spec.items():
        num_groups = cdiv(len(names), size)
        # Every num_groups-th layer, so that layers of a group are spread evenly over the model.
        groups += [KVCacheGroupSpec(tuple(names[i::num_groups]), spec) for i in range(num_groups)]
    return tuple(groups)


def _common_page_size(specs: dict[str, KVCacheSpec]) -> int:
    if not specs:
        raise ConfigError("The model has no layer with a KV cache.", parameter="model")
    sizes = {spec.page_size_bytes for spec in specs.values()}
    blocks = {spec.block_size for spec in specs.values()}
    if len(sizes) > 1 or len(blocks) > 1:
        raise ConfigError(
            f"Layers need blocks of different sizes ({sorted(sizes)} bytes, {sorted(blocks)} tokens), so "
            "they cannot share one pool. This model is not supported.",
            parameter="model",
        )
    return sizes.pop()


def _check_capacity(plan: KVCacheConfig, num_bytes: int, block_bytes: int, config: EngineConfig) -> None:
    max_len, step = config.max_model_len, max_step_tokens(config)
    needed = plan.max_blocks(max_len, step)
    if needed <= plan.num_usable_blocks:
        return
    fits = plan.max_tokens_that_fit(step, at_most=max_len)
    raise ConfigError(
        f"The KV cache has {_mib(num_bytes)}, but one request of max_model_len={max_len} tokens needs "
        f"{_mib((needed + 1) * block_bytes)}; {fits} tokens fit. Lower --max-model-len"
        + (f" to {fits} or less" if fits else "")
        + ", or give the cache more: --gpu-memory-utilization, --kv-cache-memory-bytes.",
        parameter="max_model_len",
        value=max_len,
    )


def max_step_tokens(config: EngineConfig) -> int:
    """Most tokens of one request that a step computes."""
    scheduler = config.scheduler_config
    threshold = scheduler.long_prefill_token_threshold
    if scheduler.enable_chunked_prefill and threshold:
        return min(threshold, scheduler.max_num_batched_tokens)
    return scheduler.max_num_batched_tokens


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
