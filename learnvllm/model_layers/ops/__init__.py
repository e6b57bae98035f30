"""The model's operators between its linear layers: one function each, whichever kernel runs it.

Tensors on a GPU go to the Triton kernels of `triton_kernels`, CPU tensors in fp32 to the compiled ones of
`cpu.py`, everything else to the plain torch of `torch_ref.py`, which also says what each operator means.
`select_kernels` turns the CPU's off for a whole process, LEARNVLLM_GPU_KERNELS=torch the GPU's (upstream:
vllm/_custom_ops.py).
"""

from __future__ import annotations

import importlib
from functools import cache
from types import ModuleType
from typing import Literal

import torch
from torch import Tensor

from learnvllm.architecture import envs
from learnvllm.model_layers.ops import torch_ref

__all__ = [
    "cpu_kernels",
    "fused_add_rms_norm",
    "gelu_tanh_and_mul",
    "gpu_kernels",
    "paged_attention",
    "qk_norm_rope_and_cache",
    "reshape_and_cache",
    "rms_norm",
    "rope_and_cache",
    "rotary_embedding",
    "select_kernels",
    "silu_and_mul",
    "uses_kernels",
    "warm_up_kernels",
]


def select_kernels(name: Literal["numba", "torch"] | None) -> None:
    """Decide, for all in this process that has a kernel and a twin (the sampler too), which of them runs.

    name: --cpu-kernels. None: as LEARNVLLM_CPU_KERNELS says. A model's linear layers are packed for one or
    the other while it is built: select before.
    """
    global _uses_kernels
    _uses_kernels = (name or envs.get("LEARNVLLM_CPU_KERNELS")) == "numba"
    cpu_kernels.cache_clear()


def uses_kernels() -> bool:
    """Do CPU tensors go to the compiled kernels?"""
    if _uses_kernels is None:
        select_kernels(None)
    return bool(_uses_kernels)


_uses_kernels: bool | None = None  # not yet selected


@cache
def cpu_kernels(name: str) -> ModuleType | None:
    """The module of kernels `name`, loaded on first use; None where torch was selected."""
    return importlib.import_module(f"{__name__}.{name}") if uses_kernels() else None


@cache
def _triton_kernels() -> ModuleType | None:
    """The Triton kernels, loaded on first use; None where torch was selected."""
    if envs.get("LEARNVLLM_GPU_KERNELS") == "torch":
        return None
    return importlib.import_module(f"{__name__}.triton_kernels")


def gpu_kernels(x: Tensor) -> ModuleType | None:
    """The Triton kernels, if x is for them: on a GPU, and its last dimension without gaps."""
    return _triton_kernels() if x.is_cuda and x.stride(-1) == 1 else None


def _is_fp32(x: Tensor) -> bool:
    """Can the compiled kernels take x? They run thousands of times a second, so nothing is asked twice."""
    return x.dtype is torch.float32 and x.is_cpu and x.stride(-1) == 1


def _is_flat(x: Tensor) -> bool:
    """Can they take x where they expect no gaps: weights, the residual, tables, outputs?"""
    return x.dtype is torch.float32 and x.is_cpu and x.is_contiguous()


def _is_paged(k_cache: Tensor, v_cache: Tensor) -> bool:
    """fp32 caches laid out alike, each block contiguous; blocks may lie apart (k and v in one tensor)."""
    strides, (_, _, block_size, dim) = k_cache.stride(), k_cache.shape
    return (
        strides[1:] == (block_size * dim, dim, 1)
        and strides == v_cache.stride()
        and k_cache.shape == v_cache.shape
        and k_cache.dtype is v_cache.dtype is torch.float32
        and k_cache.is_cpu
        and v_cache.is_cpu
    )


def _fits(k: Tensor, v: Tensor, k_cache: Tensor) -> bool:
    """Are k and v [T, Hk, D] heads of the cache's number and size?"""
    return k.shape == v.shape and k.shape[1:] == k_cache.shape[1::2]


def _turns(cos_sin_cache: Tensor, q: Tensor, k: Tensor) -> bool:
    """Are q and k [T, heads, D], and the angles for D elements or fewer?"""
    are_heads = q.shape[::2] == k.shape[::2] and cos_sin_cache.dim() == 2
    return are_heads and cos_sin_cache.shape[1] <= q.shape[-1] and _is_flat(cos_sin_cache)


def _check(name: str, tensor: Tensor, dtype: torch.dtype, size: int) -> None:
    """The kernels read raw memory: indices of another dtype or length would send them anywhere."""
    if tensor.dtype is not dtype or tensor.shape[0] != size or tensor.stride(-1) != 1 or not tensor.is_cpu:
        given = f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
        raise ValueError(f"{name} must be contiguous {dtype} of {size} on the CPU, not {given}")


def warm_up_kernels(head_dim: int = 64) -> None:
    """Load (or, the very first time, compile) every CPU kernel, so that no request waits for it.

    head_dim: the model's; attention has a kernel of its own for the common sizes.
    """
    cpu_kernels("cpu")
    attention = cpu_kernels("cpu_attention")
    if attention:
        attention.attention_kernel(head_dim if head_dim in attention.HEAD_DIMS else 0)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension.

    x: [T, H], or [T, heads, head_dim] for the norm of q and k; may be a view into a fused qkv tensor (the
    last dimension contiguous). weight: [H]. Returns a new contiguous tensor of x's shape. For Gemma pass 1 +
    weight.
    """
    gpu = gpu_kernels(x)
    if gpu:
        return gpu.rms_norm(x, weight, eps)
    cpu = cpu_kernels("cpu")
    if cpu and _is_fp32(x) and _is_flat(weight) and x.dim() in (2, 3) and x.shape[-1:] == weight.shape:
        return cpu.rms_norm(x, weight, eps)
    return torch_ref.rms_norm(x, weight, eps)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """residual += x in place; returns (rms_norm(residual), residual). x, residual: [T, H], weight: [H]."""
    gpu = gpu_kernels(x)
    if gpu:
        return gpu.fused_add_rms_norm(x, residual, weight, eps)
    cpu = cpu_kernels("cpu")
    is_flat = _is_flat(residual) and _is_flat(weight)
    if cpu and _is_fp32(x) and is_flat and x.shape == residual.shape and x.shape[1:] == weight.shape:
        return cpu.fused_add_rms_norm(x, residual, weight, eps)
    return torch_ref.fused_add_rms_norm(x, residual, weight, eps)


def silu_and_mul(x: Tensor) -> Tensor:
    """silu(x[:, :I]) * x[:, I:]. x: [T, 2*I] -> [T, I]."""
    gpu = gpu_kernels(x)
    if gpu:
        return gpu.silu_and_mul(x)
    cpu = cpu_kernels("cpu")
    if cpu and _is_fp32(x) and x.dim() == 2:
        return cpu.silu_and_mul(x)
    return torch_ref.silu_and_mul(x)


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    """gelu(x[:, :I]) * x[:, I:], gelu in its tanh approximation (Gemma). x: [T, 2*I] -> [T, I]."""
    gpu = gpu_kernels(x)
    if gpu:
        return gpu.gelu_tanh_and_mul(x)
    cpu = cpu_kernels("cpu")
    if cpu and _is_fp32(x) and x.dim() == 2:
        return cpu.gelu_tanh_and_mul(x)
    return torch_ref.gelu_tanh_and_mul(x)


def rotary_embedding(positions: Tensor, q: Tensor, k: Tensor, cos_sin_cache: Tensor) -> None:
    """Rotate q and k in place by their positions (neox style: element i pairs with i + rot_dim/2).

    positions: [T] int64, each < max_pos (not checked here); q: [T, Hq, D], k: [T, Hk, D], views into a fused
    qkv tensor are fine; cos_sin_cache: [max_pos, rot_dim] fp32, each row rot_dim/2 cosines then rot_dim/2
    sines, rot_dim <= D.
    """
    gpu = gpu_kernels(q)
    if gpu:
        return gpu.rotary_embedding(positions, q, k, cos_sin_cache)
    cpu = cpu_kernels("cpu")
    if cpu and _is_fp32(q) and _is_fp32(k) and _turns(cos_sin_cache, q, k):
        _check("positions", positions, torch.int64, q.shape[0])
        cpu.rotary_embedding(positions, q, k, cos_sin_cache)
    else:
        torch_ref.rotary_embedding(positions, q, k, cos_sin_cache)


def reshape_and_cache(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write each token's k and v into the paged cache.

    k, v: [T, Hk, D] (views are fine); k_cache, v_cache: [num_blocks, Hk, block_size, D]; slot_mapping: [T]
    int64, slot = block * block_size + offset, -1 for a token that is not to be stored.
    """
    gpu = gpu_kernels(k)
    if gpu:
        return gpu.reshape_and_cache(k, v, k_cache, v_cache, slot_mapping)
    cpu = cpu_kernels("cpu")
    if cpu and _is_fp32(k) and _is_fp32(v) and _is_paged(k_cache, v_cache) and _fits(k, v, k_cache):
        _check("slot_mapping", slot_mapping, torch.int64, k.shape[0])
        cpu.reshape_and_cache(k, v, k_cache, v_cache, slot_mapping)
    else:
        torch_ref.reshape_and_cache(k, v, k_cache, v_cache, slot_mapping)


def rope_and_cache(
    positions: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos_sin_cache: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
) -> None:
    """rotary_embedding and reshape_and_cache in one pass over the tokens (shapes as there). q and k are
    rotated in place.
    """
    gpu = gpu_kernels(q)
    if gpu:
        return gpu.rope_and_cache(positions, q, k, v, cos_sin_cache, k_cache, v_cache, slot_mapping)
    cpu = cpu_kernels("cpu")
    if (
        cpu
        and _is_fp32(q)
        and _is_fp32(k)
        and _is_fp32(v)
        and _turns(cos_sin_cache, q, k)
        and _is_paged(k_cache, v_cache)
        and _fits(k, v, k_cache)
    ):
        _check("positions", positions, torch.int64, q.shape[0])
        _check("slot_mapping", slot_mapping, torch.int64, q.shape[0])
        cpu.rope_and_cache(positions, q, k, v, cos_sin_cache, k_cache, v_cache, slot_mapping)
    else:
        torch_ref.rope_and_cache(positions, q, k, v, cos_sin_cache, k_cache, v_cache, slot_mapping)


def qk_norm_rope_and_cache(
    positions: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    eps: float,
    cos_sin_cache: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slot_mapping: Tensor,
) -> None:
    """rms_norm of each head of q and k, then rope_and_cache, all in place and on a GPU in one pass (Qwen3).

    q_weight, k_weight: [D]; the rest as there. For Gemma pass 1 + weight.
    """
    gpu = gpu_kernels(q)
    if gpu:
        gpu.qk_norm_rope_and_cache(
            positions, q, k, v, q_weight, k_weight, eps, cos_sin_cache, k_cache, v_cache, slot_mapping
        )
    else:
        q.copy_(rms_norm(q, q_weight, eps))
        k.copy_(rms_norm(k, k_weight, eps))
        rope_and_cache(positions, q, k, v, cos_sin_cache, k_cache, v_cache, slot_mapping)


def paged_attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    scale: float,
    sliding_window: int | None = None,
    out: Tensor | None = None,
    max_query_len: int | None = None,
    max_seq_len: int | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Causal attention of a mixed batch (decodes and prefill chunks) over the paged cache.

    Request r owns the query rows query_start_loc[r] : query_start_loc[r+1], say n of them, which are the last
    n of its seq_lens[r] tokens; all its keys and values are in the cache already. Query i sits at absolute
    position p = seq_len - n + i and attends to [max(0, p - sliding_window + 1), p].

    q: [T, Hq, D] (views are fine); k_cache, v_cache: [num_blocks, Hk, block_size, D], Hq a multiple of Hk;
    block_table: [R, max_blocks] int32; seq_lens: [R] int32; query_start_loc: [R+1] int32, T =
    query_start_loc[R]; out: [T, Hq, D], made when not given. Blocks wholly before the window are never read.
    max_query_len, max_seq_len: upper bounds that only a GPU's kernels use, to choose how they run without
    asking the device (None: what the shapes say); sinks: [Hq], a score a head that takes part in the softmax
    and has no value. Returns out. Upstream: vllm/v1/attention/backends/ (cpu_attn.py, triton_attn.py).
    """
    gpu = gpu_kernels(q)
    if gpu:
        return gpu.paged_attention(
            q, k_cache, v_cache, block_table, seq_lens, query_start_loc, scale, sliding_window, out,
            max_query_len, max_seq_len, sinks,
        )  # fmt: skip
    if out is None:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if sinks is not None:
        return torch_ref.paged_attention_with_sinks(
            q, k_cache, v_cache, block_table, seq_lens, query_start_loc, scale, sliding_window, out, sinks
        )
    cpu = cpu_kernels("cpu_attention")
    attend = torch_ref.paged_attention
    fits = out.shape == q.shape and q.shape[2:] == k_cache.shape[3:] and q.numel()
    if cpu and fits and _is_fp32(q) and _is_flat(out) and _is_paged(k_cache, v_cache):
        attend = cpu.paged_attention
        requests = seq_lens.shape[0]
        _check("block_table", block_table, torch.int32, requests)
        _check("seq_lens", seq_lens, torch.int32, requests)
        _check("query_start_loc", query_start_loc, torch.int32, requests + 1)
    return attend(q, k_cache, v_cache, block_table, seq_lens, query_start_loc, scale, sliding_window, out)
