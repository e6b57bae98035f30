"""Allocating the KV cache a KVCacheConfig plans: one buffer per tensor, seen by one layer of each group.

Block ids of different groups never overlap, so layers of different groups may share memory: what a block
means depends on whose table it is in. Upstream namesake: vllm/v1/worker/gpu/attn_utils.py (init_kv_cache).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from learnvllm.kv_cache.interface import AttentionSpec, KVCacheConfig

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def allocate_kv_caches(config: KVCacheConfig, device: torch.device) -> dict[str, tuple[Tensor, Tensor]]:
    """Allocate k and v for every layer.

    On a CPU the memory comes zeroed from the system and takes real pages only where blocks are used, so a
    pool's size costs nothing before requests fill it.

    Returns:
        layer name -> (k, v), each [num_blocks, num_kv_heads, block_size, head_dim].
    """
    specs = {name: group.spec for group in config.groups for name in group.layer_names}
    caches: dict[str, tuple[Tensor, Tensor]] = {}
    for tensor in config.tensors:
        page_bytes = {specs[name].page_size_bytes for name in tensor.shared_by}
        if len(page_bytes) != 1:
            raise ValueError(
                f"Layers {tensor.shared_by} share a cache tensor but need pages of {page_bytes} bytes."
            )
        size = config.num_blocks * page_bytes.pop() // 2
        k_buffer, v_buffer = (_zeroed_bytes(size, device) for _ in range(2))
        for name in tensor.shared_by:
            spec = specs[name]
            assert isinstance(spec, AttentionSpec)
            shape = (config.num_blocks, spec.num_kv_heads, spec.block_size, spec.head_dim)
            dtype = _DTYPES[spec.dtype]
            caches[name] = (k_buffer.view(dtype).view(shape), v_buffer.view(dtype).view(shape))
    return caches


def _zeroed_bytes(size: int, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return torch.from_numpy(np.zeros(size, dtype=np.uint8))  # calloc; torch.zeros would touch every page
    return torch.zeros(size, dtype=torch.uint8, device=device)
