"""Each CPU kernel beside torch: `python benchmarks/cpu_kernels.py`.

As in a model, every call follows a linear layer, whose threads are still spinning when it starts, and
attention walks through the caches of 30 layers, so that keys and values come from memory. Prints median
microseconds a call. Writes the numbers to --json, and what it printed to benchmarks/results/cpu_kernels.txt.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from learnvllm.model_layers import ops
from learnvllm.model_layers.linear_kernels import make_linear
from learnvllm.model_layers.ops import torch_ref

HIDDEN, INTERMEDIATE, Q_HEADS, KV_HEADS, DIM, BLOCK = 576, 1536, 9, 3, 64, 16
Call = Callable[[int], object]  # takes the number of the layer


def measure(call: Call, layers: int, linear: Callable[[], object], seconds: float) -> float:
    """Median microseconds of a call, each after a linear layer."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 * layers or time.perf_counter() < end:
        for layer in range(layers):
            linear()
            start = time.perf_counter()
            call(layer)
            times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times[layers:])


def small_operators(tokens: int) -> dict[str, tuple[Call, Call]]:
    """Name -> (ours, torch) for one number of tokens."""
    x, residual, weight = torch.randn(tokens, HIDDEN), torch.randn(tokens, HIDDEN), torch.randn(HIDDEN)
    gate_up = torch.randn(tokens, 2 * INTERMEDIATE)
    qkv = torch.randn(tokens, Q_HEADS + 2 * KV_HEADS, DIM)
    q, k, v = qkv.split([Q_HEADS, KV_HEADS, KV_HEADS], dim=1)
    caches = torch.zeros(2, -(-tokens // BLOCK), KV_HEADS, BLOCK, DIM)
    table, positions = torch.randn(tokens, DIM), torch.arange(tokens)
    rope = (positions, q, k, v, table, caches[0], caches[1], positions)
    return {
        "rms_norm": (
            lambda _: ops.rms_norm(x, weight, 1e-5),
            lambda _: F.rms_norm(x, (HIDDEN,), weight, 1e-5),
        ),
        "fused_add_rms_norm": (
            lambda _: ops.fused_add_rms_norm(x, residual, weight, 1e-5),
            lambda _: torch_ref.fused_add_rms_norm(x, residual, weight, 1e-5),
        ),
        "silu_and_mul": (lambda _: ops.silu_and_mul(gate_up), lambda _: torch_ref.silu_and_mul(gate_up)),
        "rope_and_cache": (lambda _: ops.rope_and_cache(*rope), lambda _: torch_ref.rope_and_cache(*rope)),
    }


def attention(batch: int, length: int, queries: int, layers: int) -> tuple[Call, Call, Call]:
    """(ours on blocks, torch on blocks it gathers first, torch on contiguous keys) for `batch` equal
    requests.
    """
    blocks = -(-length // BLOCK)
    caches = torch.randn(layers, 2, batch * blocks, KV_HEADS, BLOCK, DIM)
    table = torch.randperm(batch * blocks).int().view(batch, blocks)
    seq_lens = torch.full((batch,), length, dtype=torch.int32)
    starts = torch.arange(batch + 1, dtype=torch.int32) * queries
    q = torch.randn(batch * queries, Q_HEADS, DIM)
    mask = None if queries == 1 else torch.ones(queries, length, dtype=torch.bool).tril(length - queries)
    dense_q = q.view(batch, queries, Q_HEADS, DIM).transpose(1, 2)
    dense = caches.view(layers, 2, batch, KV_HEADS, blocks * BLOCK, DIM)[..., :length, :]

    def on_dense(keys: Tensor, values: Tensor) -> Tensor:
        if queries == length:
            return F.scaled_dot_product_attention(dense_q, keys, values, is_causal=True, enable_gqa=True)
        return F.scaled_dot_product_attention(dense_q, keys, values, mask, enable_gqa=True)

    def gathered(layer: int) -> Tensor:
        picked = caches[layer][:, table.long()]  # [2, batch, blocks, Hk, BLOCK, D]
        keys, values = picked.transpose(2, 3).flatten(3, 4)[..., :length, :]
        return on_dense(keys, values)

    def ours(layer: int) -> Tensor:
        k_cache, v_cache = caches[layer]
        return ops.paged_attention(q, k_cache, v_cache, table, seq_lens, starts, DIM**-0.5)

    return ours, gathered, lambda layer: on_dense(*dense[layer])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.2, help="per line and kernel")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    start = time.perf_counter()
    ops.warm_up_kernels(DIM)
    report: dict[str, dict[str, float]] = {"warm_up_kernels": {"seconds": time.perf_counter() - start}}
    lines = [f"loading or compiling the kernels took {report['warm_up_kernels']['seconds']:.2f} s"]

    def show(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    print(lines[0])
    layer = make_linear(torch.randn(960, HIDDEN), None, "fp16")
    x = torch.randn(8, HIDDEN)

    def linear() -> Tensor:
        return layer(x)

    show(f"{args.threads} threads; median µs a call after a linear layer")
    show(f"{'':<38}{'ours':>8}{'torch':>9}{'torch, contiguous':>19}")
    for tokens in (1, 8, 16, 32, 512):
        for name, calls in small_operators(tokens).items():
            ours, theirs = (measure(call, 30, linear, args.seconds) for call in calls)
            report[f"{name} {tokens}"] = {"ours": ours, "torch": theirs}
            show(f"{name + ', ' + str(tokens) + ' tokens':<38}{ours:>8.0f}{theirs:>9.0f}")
    shapes = [(1, 256, 1), (1, 1024, 1), (8, 256, 1), (8, 1024, 1), (16, 256, 1), (32, 256, 1)]
    shapes += [(1, 128, 128), (1, 512, 512), (1, 512, 64), (1, 1024, 256), (1, 2048, 512)]
    for batch, length, queries in shapes:
        layers = 30 if batch * length <= 4096 else 8
        kinds = ("ours", "torch", "torch, contiguous")
        row = [measure(c, layers, linear, args.seconds) for c in attention(batch, length, queries, layers)]
        name = f"paged_attention, {batch} x {queries} of {length}"
        report[name] = dict(zip(kinds, row))
        show(f"{name:<38}{row[0]:>8.0f}{row[1]:>9.0f}{row[2]:>19.0f}")

    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "cpu_kernels.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
