"""What every Triton kernel must do, whether interpreted on a CPU or compiled for a GPU: checks, not tests.

The reference is computed in float64 and densely, so that it shares no code with the kernels; the measure is
||out - reference|| / ||reference|| over the whole result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from learnvllm.model_layers.ops import torch_ref, triton_kernels

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def assert_near(got: Tensor, expected: Tensor, dtype: torch.dtype, times: float = 1) -> None:
    got, expected = got.double().cpu(), expected.double().cpu()
    assert got.shape == expected.shape
    error = (got - expected).norm() / expected.norm().clamp(min=1e-30)
    assert error <= times * TOLERANCE[dtype], f"relative error {error:.2e}"  # false of a NaN


@dataclass
class Place:
    """Where and in which dtype a check runs. Random numbers are drawn on the CPU: the same everywhere."""

    device: str
    dtype: torch.dtype
    seed: int = 0

    def randn(self, *shape: int) -> Tensor:
        self.seed += 1
        x = torch.randn(*shape, generator=torch.Generator().manual_seed(self.seed))
        return x.to(self.device, self.dtype)

    def ints(self, values: list[int] | Tensor, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.as_tensor(values, dtype=dtype, device=self.device)

    def qkv(self, tokens: int, q_heads: int, kv_heads: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
        """Views into one tensor, as a model has them."""
        heads = self.randn(tokens, (q_heads + 2 * kv_heads) * dim).view(tokens, -1, dim)
        q, k, v = heads.split((q_heads, kv_heads, kv_heads), dim=1)
        return q, k, v


# ---------------------------------------------------------------------------------------- norms, activations


def check_rms_norm(at: Place, rows: int, width: int) -> None:
    x, weight = at.randn(rows, width), at.randn(width)
    expected = torch_ref.rms_norm(x.double().float(), weight, 1e-5)
    assert_near(triton_kernels.rms_norm(x, weight, 1e-5), expected, at.dtype)


def check_rms_norm_of_heads_in_a_view(at: Place) -> None:
    q, k, _ = at.qkv(3, 4, 2, 80)
    weight = at.randn(80)
    for x in (q, k):
        assert_near(triton_kernels.rms_norm(x, weight, 1e-6), torch_ref.rms_norm(x, weight, 1e-6), at.dtype)


def check_fused_add_rms_norm(at: Place, rows: int, width: int) -> None:
    x, residual, weight = at.randn(rows, width), at.randn(rows, width), at.randn(width)
    mine, theirs = residual.clone(), residual.clone()
    normed, stream = triton_kernels.fused_add_rms_norm(x, mine, weight, 1e-5)
    expected, _ = torch_ref.fused_add_rms_norm(x, theirs, weight, 1e-5)
    assert stream is mine
    assert_near(normed, expected, at.dtype)
    assert_near(mine, theirs, at.dtype)


def check_activation(at: Place, name: str, rows: int, width: int) -> None:
    x = at.randn(rows, 2 * width) * 5
    x[0, :4] = torch.tensor([-1e4, -88.0, 88.0, 1e4])[: width * 2]
    assert_near(getattr(triton_kernels, name)(x), getattr(torch_ref, name)(x.float()), at.dtype)


# ------------------------------------------------------------------------------------------ RoPE, cache write


def check_rope_and_cache(
    at: Place, name: str, heads: tuple[int, int], dim: int, rot_dim: int, block_size: int
) -> None:
    """name: which of the four operators. The caches are k and v of each block side by side: strided."""
    tokens, blocks = 7, 9 if block_size > 1 else 20
    slots = torch.randperm(blocks * block_size, generator=torch.Generator().manual_seed(5))[:tokens]
    slots[[0, 4]] = -1
    slots, positions = at.ints(slots, torch.int64), at.ints([3, 0, 99, 5, 6, 7, 8], torch.int64)
    angles = at.randn(100, rot_dim // 2).float()
    table, q_weight, k_weight = torch.cat([angles.cos(), angles.sin()], dim=-1), at.randn(dim), at.randn(dim)
    results = []
    for module in (triton_kernels, torch_ref):
        q, k, v = Place(at.device, at.dtype, seed=50).qkv(tokens, *heads, dim)
        both = torch.full((blocks, 2, heads[1], block_size, dim), 7.0, dtype=at.dtype, device=at.device)
        caches = both.unbind(1)
        arguments = {
            "rotary_embedding": (positions, q, k, table),
            "reshape_and_cache": (k, v, *caches, slots),
            "rope_and_cache": (positions, q, k, v, table, *caches, slots),
            "qk_norm_rope_and_cache": (
                positions, q, k, v, q_weight, k_weight, 1e-6, table, *caches, slots,
            ),
        }[name]  # fmt: skip
        getattr(module, name)(*arguments)
        results.append((q, k, v, both))
    for mine, theirs in zip(*results):
        assert_near(mine, theirs, at.dtype)
    written = (results[0][3] != 7.0).any(-1).sum().item()
    assert written == (0 if name == "rotary_embedding" else (tokens - 2) * 2 * heads[1])


# ------------------------------------------------------------------------------------------ a row's linear


def check_linear_row(at: Place, shape: tuple[int, int], bias: bool, around: str) -> None:
    """around: what is done with the product: norm in front, silu or gelu_tanh or add behind."""
    features, in_features = shape
    x, weight, norm = at.randn(1, in_features), at.randn(features, in_features), at.randn(in_features)
    b = at.randn(features) if bias else None
    activation = next((name for name in ("silu", "gelu_tanh") if name in around), "")
    residual = at.randn(1, features // (2 if activation else 1)) if "add" in around else None
    wide = x.double()
    if "norm" in around:
        wide = F.rms_norm(wide, (in_features,), norm.double(), 1e-6)
    expected = F.linear(wide, weight.double(), None if b is None else b.double())
    if activation:
        gate, up = expected.chunk(2, dim=-1)
        expected = up * (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh"))
    if residual is not None:
        expected += residual.double()
    got = triton_kernels.linear_row(
        x, weight, b, norm if "norm" in around else None, 1e-6, activation, residual
    )
    assert residual is None or got is residual
    assert_near(got, expected, at.dtype)


# -------------------------------------------------------------------------------------------- paged attention


class Batch:
    """A random batch: per request (tokens in all, query tokens), blocks scattered over a pool of NaN.

    A request of (0, 1) is what pads a batch to the size of a CUDA graph.
    """

    def __init__(
        self, at: Place, lens: list[tuple[int, int]], heads: tuple[int, int], dim: int, block_size: int
    ) -> None:
        counts = [-(-total // block_size) for total, _ in lens]
        pool = torch.randperm(sum(counts) + 1, generator=torch.Generator().manual_seed(1)).tolist()
        both = torch.full((len(pool), 2, heads[1], block_size, dim), torch.nan)
        self.at, self.lens, self.group, self.scale = at, lens, heads[0] // heads[1], dim**-0.5
        both = both.to(at.device, at.dtype)
        self.k_cache, self.v_cache = both.unbind(1)
        self.q, _, _ = at.qkv(sum(n for _, n in lens), *heads, dim)
        table = torch.full((len(lens), max(counts) + 1), -1, dtype=torch.int32)
        self.keys, self.values = [], []
        for r, (total, _) in enumerate(lens):
            mine = [pool.pop() for _ in range(counts[r])]
            table[r, : counts[r]] = torch.tensor(mine, dtype=torch.int32)
            k, v = at.randn(total, heads[1], dim), at.randn(total, heads[1], dim)
            for i in range(total):
                both[mine[i // block_size], 0, :, i % block_size] = k[i]
                both[mine[i // block_size], 1, :, i % block_size] = v[i]
            self.keys.append(k)
            self.values.append(v)
        self.block_table = table.to(at.device)
        self.seq_lens = at.ints([total for total, _ in lens])
        starts = [0]
        for _, n in lens:
            starts.append(starts[-1] + n)
        self.query_start_loc = at.ints(starts)

    def dense(self, window: int | None, sinks: Tensor | None) -> Tensor:
        """The answer in float64, from keys and values that were never in blocks."""
        out, row = torch.zeros(self.q.shape, dtype=torch.float64), 0
        for (total, n), keys, values in zip(self.lens, self.keys, self.values):
            q = self.q[row : row + n].double().cpu()
            k, v = (x.double().cpu().repeat_interleave(self.group, dim=1) for x in (keys, values))
            scores = torch.einsum("nhd,khd->hnk", q, k) * self.scale
            position, key = torch.arange(total - n, total)[:, None], torch.arange(total)
            visible = (key <= position) & (key > position - (window or total + 1))
            scores = scores.masked_fill(~visible, float("-inf"))
            if sinks is not None:
                sink = sinks.double().cpu()[:, None, None].expand(-1, n, 1)
                scores = torch.cat([scores, sink], dim=-1)
            weights = scores.softmax(dim=-1)[..., :total]
            out[row : row + n] = torch.einsum("hnk,khd->nhd", weights, v)
            row += n
        return out

    def check(self, splits: int | None, window: int | None = None, with_sinks: bool = False) -> None:
        at = self.at
        sinks = at.randn(self.q.shape[1]) if with_sinks else None
        arguments = (self.q, self.k_cache, self.v_cache, self.block_table, self.seq_lens)
        out = torch.full(self.q.shape, torch.nan, dtype=at.dtype, device=at.device)
        got = triton_kernels.paged_attention(
            *arguments, self.query_start_loc, self.scale, window, out,
            max((n for _, n in self.lens), default=0), None, sinks, splits,
        )  # fmt: skip
        assert got is out
        expected = self.dense(window, sinks)
        assert_near(got, expected, at.dtype, times=2)
        reference = (torch_ref.paged_attention, torch_ref.paged_attention_with_sinks)[with_sinks]
        twin = reference(
            *arguments, self.query_start_loc, self.scale, window, torch.zeros_like(out),
            *([] if sinks is None else [sinks]),
        )  # fmt: skip
        assert_near(twin, expected, at.dtype, times=2)


MIXED = [(40, 1), (33, 17), (0, 1), (5, 5), (70, 1), (1, 1), (64, 3), (9, 0)]
DECODES = [(130, 1), (1, 1), (0, 1), (64, 1), (65, 1)]

ATTENTION_CASES = {
    "mixed": (MIXED, (4, 2), 64, 16, 1, None, False),
    "mixed, blocks of one": (MIXED, (6, 1), 64, 1, 1, None, False),
    "mixed, window": (MIXED, (4, 1), 32, 8, 1, 20, False),
    "mixed, window, sinks, splits": (MIXED, (3, 3), 16, 8, 2, 20, True),
    "chunk of two tiles": ([(150, 75)], (8, 1), 64, 32, 1, None, False),
    "a chunk in three splits of keys": ([(260, 20)], (8, 8), 16, 32, 4, None, False),
    "decodes": (DECODES, (8, 1), 128, 16, 1, None, False),
    "decodes, splits of which some are empty": (DECODES, (6, 2), 80, 16, 8, None, False),
    "decodes, sinks": (DECODES, (4, 4), 96, 32, 2, None, True),
    "decodes, window": (DECODES, (8, 2), 256, 8, 4, 70, False),
    "one token of one": ([(1, 1)], (2, 1), 64, 16, None, None, False),
    "only padding": ([(0, 1), (0, 1)], (2, 1), 64, 16, 2, None, True),
    "larger group than a tile's least": ([(20, 1), (4, 4)], (24, 1), 32, 16, 1, None, False),
}


def check_paged_attention(at: Place, case: str) -> None:
    lens, heads, dim, block_size, splits, window, with_sinks = ATTENTION_CASES[case]
    Batch(at, lens, heads, dim, block_size).check(splits, window, with_sinks)
