"""Every operator of the model in plain torch: the readable twin of the compiled kernels.

These define what the operators mean. The CPU kernels in `cpu.py` are tested against them, and any device or
dtype without a kernel of its own runs them (upstream: the `forward_native` methods of
vllm/model_executor/layers/).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension, computed in fp32. x: [..., H], weight: [H] -> [..., H]."""
    x32 = x.float()
    x32 = x32 * torch.rsqrt(x32.square().mean(dim=-1, keepdim=True) + eps)
    return (x32 * weight.float()).to(x.dtype)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """residual += x in place; returns (rms_norm(residual), residual). x, residual: [T, H], weight: [H]."""
    residual += x
    return rms_norm(residual, weight, eps), residual


def silu_and_mul(x: Tensor) -> Tensor:
    """silu(gate) * up, with gate and up side by side. x: [T, 2*I] -> [T, I]."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


def gelu_tanh_and_mul(x: Tensor) -> Tensor:
    """gelu(gate) * up with the tanh approximation of gelu. x: [T, 2*I] -> [T, I]."""
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


def rotary_embedding(positions: Tensor, q: Tensor, k: Tensor, cos_sin_cache: Tensor) -> None:
    """Rotate q and k in place by their position (neox style: element i pairs with i + rot_dim/2).

    positions: [T] int64, q: [T, Hq, D], k: [T, Hk, D], cos_sin_cache: [max_pos, rot_dim], each row the
    cosines then the sines. When rot_dim < D the rest of each head is left alone.
    """
    cos, sin = cos_sin_cache[positions].unsqueeze(1).chunk(2, dim=-1)  # [T, 1, rot_dim/2] each
    half = cos.shape[-1]
    for x in (q, k):
        x1, x2 = x[..., : 2 * half].float().chunk(2, dim=-1)
        x[..., : 2 * half] = torch.cat([x1 * cos - x2 * sin, x2 * cos + x1 * sin], dim=-1).to(x.dtype)


def reshape_and_cache(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    """Write each token's k and v into its slot; slot -1 means "do not store this token".

    k, v: [T, Hk, D], caches: [num_blocks, Hk, block_size, D], slot_mapping: [T] int64, slot = block *
    block_size + offset.
    """
    kept = slot_mapping >= 0
    slots, block_size = slot_mapping[kept], k_cache.shape[2]
    blocks, offsets = slots // block_size, slots % block_size
    # Two index tensors around a slice put the indexed dimension first: the left side is [kept, Hk, D].
    k_cache[blocks, :, offsets] = k[kept].to(k_cache.dtype)
    v_cache[blocks, :, offsets] = v[kept].to(v_cache.dtype)


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
    """rotary_embedding, then reshape_and_cache: what every attention layer does between qkv and attention."""
    rotary_embedding(positions, q, k, cos_sin_cache)
    reshape_and_cache(k, v, k_cache, v_cache, slot_mapping)


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
    """rms_norm of each head of q and k, in place, then rope_and_cache. q_weight, k_weight: [D]."""
    q.copy_(rms_norm(q, q_weight, eps))
    k.copy_(rms_norm(k, k_weight, eps))
    rope_and_cache(positions, q, k, v, cos_sin_cache, k_cache, v_cache, slot_mapping)


def gather_kv(cache: Tensor, block_table_row: Tensor, start: int, stop: int) -> Tensor:
    """Positions [start, stop) of one request as one tensor. cache: [num_blocks, Hk, block_size, D] -> [Hk,
    stop-start, D].
    """
    block_size = cache.shape[2]
    first = start // block_size
    blocks = cache[block_table_row[first : -(-stop // block_size)].long()]  # [n, Hk, block_size, D]
    tokens = blocks.transpose(0, 1).flatten(1, 2)  # [Hk, n * block_size, D]
    return tokens[:, start - first * block_size : stop - first * block_size]


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
) -> Tensor:
    """Causal attention of a mixed batch over the paged cache, with sums in fp32.

    q: [T, Hq, D], rows query_start_loc[r] to query_start_loc[r + 1] are request r's: the last of its
    seq_lens[r] positions. caches: [num_blocks, Hk, block_size, D]; block_table: [R, max_blocks], entry i of a
    row holds positions i * block_size on; sliding_window: a query sees so many tokens, itself included.
    Returns out, or a new tensor like q. See `learnvllm.model_layers.ops.paged_attention`.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    group = q.shape[1] // k_cache.shape[1]
    starts = query_start_loc.tolist()
    for r, seq_len in enumerate(seq_lens.tolist()):
        first, last = starts[r], starts[r + 1]
        if first == last:
            continue
        pos = torch.arange(
            seq_len - (last - first), seq_len, device=q.device
        )  # absolute position of each query
        begin = 0 if sliding_window is None else max(0, int(pos[0]) - sliding_window + 1)
        key_pos = torch.arange(begin, seq_len, device=q.device)
        visible = key_pos <= pos[:, None]
        if sliding_window is not None:
            visible &= key_pos > pos[:, None] - sliding_window
        keys = gather_kv(k_cache, block_table[r], begin, seq_len).float().repeat_interleave(group, dim=0)
        values = gather_kv(v_cache, block_table[r], begin, seq_len).float().repeat_interleave(group, dim=0)
        scores = q[first:last].float().transpose(0, 1) @ keys.transpose(1, 2) * scale  # [Hq, n, keys]
        probs = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)
        out[first:last] = (probs @ values).transpose(0, 1).to(out.dtype)
    return out


def paged_attention_with_sinks(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    scale: float,
    sliding_window: int | None,
    out: Tensor,
    sinks: Tensor,
) -> Tensor:
    """paged_attention where each head has a sink: a score that takes part in the softmax and has no value.

    So a head may attend to nothing. sinks: [Hq]; the rest as above. Paper: arXiv 2309.17453; GPT-OSS learns
    them.
    """
    paged_attention(q, k_cache, v_cache, block_table, seq_lens, query_start_loc, scale, sliding_window, out)
    group, starts = q.shape[1] // k_cache.shape[1], query_start_loc.tolist()
    for r, seq_len in enumerate(seq_lens.tolist()):
        for row in range(starts[r], starts[r + 1]):
            last = seq_len - starts[r + 1] + row + 1
            begin = 0 if sliding_window is None else max(0, last - sliding_window)
            keys = gather_kv(k_cache, block_table[r], begin, last).float().repeat_interleave(group, dim=0)
            scores = (keys @ q[row].float()[:, :, None])[..., 0] * scale  # [Hq, keys]
            share = torch.sigmoid(scores.logsumexp(dim=-1) - sinks.float())  # the keys', beside the sink's
            out[row] = (out[row].float() * share[:, None]).to(out.dtype)
    return out
