"""Each Triton kernel on a GPU: `python benchmarks/gpu_kernels.py COMMIT`.

In the shapes of Qwen3-0.6B, bfloat16. A kernel's calls are captured in one CUDA graph that walks through the
buffers of several layers, so that data comes from memory and the host does not count; the number is the
median over replays, per call. Bytes are what must be read and written at least; the floor is the larger of
bytes / copy rate and operations / matrix rate, both measured here first. Beside it torch: the twin, called
from the host, or cuBLAS in a graph. Last, whole decode steps of one request. Writes
benchmarks/results/gpu_kernels.txt and .json.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from learnvllm.executor_worker.device import sampling_kernel
from learnvllm.executor_worker.sample import torch_ref as sample_ref
from learnvllm.model_layers.ops import torch_ref
from learnvllm.model_layers.ops import triton_kernels as kernels

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, DIM, VOCAB, LAYERS, BLOCK = 1024, 3072, 16, 8, 128, 151_936, 28, 16
QKV = (HEADS + 2 * KV_HEADS) * DIM
EPS = 1e-6
Call = Callable[[int], object]  # takes the number of the layer


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def in_graph(call: Call, layers: int, replays: int = 20) -> float:
    """Median microseconds of a call in a graph that runs it for each layer."""
    torch.cuda.synchronize()  # what the call reads was made on another stream
    with torch.cuda.stream(torch.cuda.Stream()):
        for layer in range(min(layers, 2)):
            call(layer)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for layer in range(layers):
            call(layer)
    return median_time(graph.replay, replays) / layers


def median_time(run: Callable[[], object], times: int) -> float:
    """Microseconds, by the device's clock."""
    run()
    samples = []
    for _ in range(times):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        samples.append(begin.elapsed_time(end) * 1000)
    return statistics.median(samples)


def copy_rate() -> float:
    """Bytes read and written a microsecond."""
    x, y = randn(1 << 30), randn(1 << 30)
    return 4 * (1 << 30) / median_time(lambda: y.copy_(x), 10)


def matrix_rate() -> float:
    """Operations a microsecond."""
    a, b = randn(8192, 8192), randn(8192, 8192)
    return 2 * 8192**3 / median_time(lambda: a @ b, 10)


class Report:
    """A table that is printed as it grows."""

    def __init__(self, commit: str) -> None:
        self.lines: list[str] = []
        self.rows: list[dict[str, object]] = []
        self.bytes_per_us, self.flops_per_us = copy_rate(), matrix_rate()
        self.environment = (
            f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, Python "
            f"{platform.python_version()}; copy {self.bytes_per_us / 1e6:.2f} TB/s, bf16 8192^3 "
            f"{self.flops_per_us / 1e6:.0f} TFLOP/s; commit {commit}"
        )
        self.say(self.environment)
        self.say(f"{'':<44}{'us':>9}{'GB/s':>8}{'TFLOP/s':>9}{'floor':>7}{'torch us':>11}")

    def say(self, line: str) -> None:
        self.lines.append(line)
        print(line, flush=True)

    def row(self, name: str, us: float, nbytes: float, flops: float, torch_us: float | None = None) -> None:
        floor = max(nbytes / self.bytes_per_us, flops / self.flops_per_us)
        self.rows.append(
            {"name": name, "us": us, "bytes": nbytes, "flops": flops, "floor_us": floor, "torch_us": torch_us}
        )
        self.say(
            f"{name:<44}{us:>9.2f}{nbytes / us / 1e3:>8.0f}{flops / us / 1e6:>9.1f}{floor / us:>7.0%}"
            + (f"{torch_us:>11.1f}" if torch_us is not None else "")
        )


# ------------------------------------------------------------------------------------------------- operators


def small_operators(report: Report, tokens: int) -> None:
    """Norm, activation, rope and cache write."""
    layers = LAYERS if tokens <= 256 else 4
    x, residual = [randn(tokens, HIDDEN) for _ in range(layers)], randn(tokens, HIDDEN)
    weight, head_weight = randn(HIDDEN).float(), randn(DIM).float()
    gate_up = [randn(tokens, 2 * INTERMEDIATE) for _ in range(layers)]
    qkv = [randn(tokens, HEADS + 2 * KV_HEADS, DIM) for _ in range(layers)]
    caches = randn(layers, 2, -(-tokens // BLOCK), KV_HEADS, BLOCK, DIM)
    positions, table = torch.arange(tokens, device="cuda"), torch.randn(tokens, DIM, device="cuda")

    def rope(module) -> Call:  # type: ignore[no-untyped-def]
        def call(i: int) -> None:
            q, k, v = qkv[i].split((HEADS, KV_HEADS, KV_HEADS), dim=1)
            module.qk_norm_rope_and_cache(
                positions, q, k, v, head_weight, head_weight, EPS, table, *caches[i], positions
            )

        return call

    def norm(module) -> Call:  # type: ignore[no-untyped-def]
        return lambda i: module.fused_add_rms_norm(x[i], residual, weight, EPS)

    def act(module) -> Call:  # type: ignore[no-untyped-def]
        return lambda i: module.silu_and_mul(gate_up[i])

    cases = {
        "fused_add_rms_norm": (norm, tokens * HIDDEN * 8),
        "silu_and_mul": (act, tokens * INTERMEDIATE * 6),
        "qk_norm_rope_and_cache": (rope, tokens * DIM * 2 * (2 * HEADS + 5 * KV_HEADS)),
    }
    for name, (make, nbytes) in cases.items():
        twin = make(torch_ref)
        twin_us = median_time(lambda twin=twin: [twin(i) for i in range(layers)], 5) / layers  # type: ignore[misc]
        report.row(f"{name}, {tokens} tokens", in_graph(make(kernels), layers), nbytes, 0, twin_us)


def attention_inputs(lens: list[tuple[int, int]], layers: int) -> tuple[Call, Callable[[], object], int, int]:
    """(ours by layer, the twin, bytes, operations) for requests of (tokens in all, query tokens)."""
    counts = [-(-total // BLOCK) for total, _ in lens]
    ids = torch.randperm(sum(counts), device="cuda").int()
    table = torch.zeros(len(lens), max(counts), dtype=torch.int32, device="cuda")
    for r, row in enumerate(ids.split(counts)):
        table[r, : counts[r]] = row
    caches = [randn(sum(counts), 2, KV_HEADS, BLOCK, DIM).unbind(1) for _ in range(layers)]
    seq_lens = torch.tensor([total for total, _ in lens], dtype=torch.int32, device="cuda")
    queries = [n for _, n in lens]
    starts = torch.tensor([0, *queries], device="cuda").cumsum(0).int()
    q = randn(sum(queries), HEADS, DIM)
    out = torch.empty_like(q)

    def ours(layer: int) -> Tensor:
        return kernels.paged_attention(
            q, *caches[layer], table, seq_lens, starts, DIM**-0.5, None, out, max(queries), 4096
        )

    def twin() -> Tensor:
        return torch_ref.paged_attention(q, *caches[0], table, seq_lens, starts, DIM**-0.5, None, out)

    pairs = sum(n * total - n * (n - 1) // 2 for total, n in lens)
    nbytes = (sum(total for total, _ in lens) * KV_HEADS * DIM * 2 + 2 * sum(queries) * HEADS * DIM) * 2
    return ours, twin, nbytes, 4 * pairs * HEADS * DIM


ATTENTION = {
    "1 decode of 384": [(384, 1)],
    "1 decode of 4096": [(4096, 1)],
    "8 decodes of 600": [(600, 1)] * 8,
    "32 decodes of 600": [(600, 1)] * 32,
    "256 decodes of 100 to 1100": [(100 + 4 * i, 1) for i in range(256)],
    "chunk 1024": [(1024, 1024)],
    "16 chunks 1024": [(1024, 1024)] * 16,
    "200 decodes of 600 and 2 chunks 1024": [(600, 1)] * 200 + [(1024, 1024)] * 2,
}

LINEAR = {
    "qkv (norm)": (QKV, HIDDEN, "norm"),
    "o (add)": (HIDDEN, HEADS * DIM, "add"),
    "gate_up (norm, silu)": (2 * INTERMEDIATE, HIDDEN, "norm, silu"),
    "down (add)": (HIDDEN, INTERMEDIATE, "add"),
    "lm_head (norm)": (VOCAB, HIDDEN, "norm"),
}


def linear_calls(name: str, tiles: tuple[int, int, int] | None = None) -> tuple[Call, Call, int]:
    """(ours with what is around it, cuBLAS alone, layers)."""
    features, in_features, around = LINEAR[name]
    layers = 4 if features == VOCAB else LAYERS
    weights = [randn(features, in_features) for _ in range(layers)]
    x, norm, residual = randn(1, in_features), randn(in_features).float(), randn(1, features)

    def ours(i: int) -> Tensor:
        return kernels.linear_row(
            x, weights[i], None, norm if "norm" in around else None, EPS, "silu" if "silu" in around else "",
            residual if around == "add" else None, tiles,
        )  # fmt: skip

    return ours, lambda i: F.linear(x, weights[i]), layers


def linear(report: Report) -> None:
    for name, (features, in_features, _) in LINEAR.items():
        ours, cublas, layers = linear_calls(name)
        us, torch_us = in_graph(ours, layers), in_graph(cublas, layers)
        nbytes, flops = 2 * features * in_features, 2 * features * in_features
        report.row(f"linear_row {name}", us, nbytes, flops, torch_us)


def a_sampler(rows: int) -> Any:
    """What the sampling kernel reads of a runner's state, for requests of one token."""
    ids = torch.arange(rows, dtype=torch.int32, device="cuda")
    ones = torch.ones_like(ids)
    return SimpleNamespace(
        inputs=SimpleNamespace(row=ids, sampling=ids, seq_lens=ones),
        rows=SimpleNamespace(
            seeds=ids.long(), temperature=0.6 * ones.float(), num_prompt_tokens=ones,
            token_ids=torch.zeros(rows, 8, dtype=torch.int32, device="cuda"), max_tokens=8,
        ),
        chosen=torch.zeros(2, rows, dtype=torch.int32, device="cuda"),
    )  # fmt: skip


def sampling(report: Report, rows: int) -> None:
    logits = [randn(rows, VOCAB) for _ in range(4)]
    temperature = torch.full((rows,), 0.6, device="cuda")
    ones, zeros = torch.ones_like(temperature), torch.zeros_like(temperature)
    seeds = torch.arange(rows, device="cuda")
    sampler = a_sampler(rows)
    us = in_graph(lambda i: sampling_kernel.sample(sampler, logits[i]), 4)

    def twin() -> Tensor:
        return sample_ref.sample(logits[0].float(), temperature, zeros.int(), ones, zeros, seeds, seeds)

    report.row(f"sample, {rows} rows", us, rows * VOCAB * 2, 0, median_time(twin, 2))


# ------------------------------------------------------------------------------------- a step of one request


class Step:
    """Qwen3-0.6B's decode step with random weights, as a sequence of kernels."""

    def __init__(self, rows: int, length: int) -> None:
        self.qkv, self.o, self.gate_up, self.down = (
            [randn(n, k) * 0.02 for _ in range(LAYERS)]
            for n, k in (
                (QKV, HIDDEN),
                (HIDDEN, HEADS * DIM),
                (2 * INTERMEDIATE, HIDDEN),
                (HIDDEN, INTERMEDIATE),
            )
        )
        self.table, self.norm, self.head_norm = (
            randn(VOCAB, HIDDEN),
            randn(HIDDEN).float(),
            randn(DIM).float(),
        )
        blocks = 4096 // BLOCK
        self.caches = [randn(rows * blocks, 2, KV_HEADS, BLOCK, DIM).unbind(1) for _ in range(LAYERS)]
        self.block_table = torch.arange(rows * blocks, device="cuda", dtype=torch.int32).view(rows, blocks)
        self.seq_lens = torch.full((rows,), length, dtype=torch.int32, device="cuda")
        self.starts = torch.arange(rows + 1, dtype=torch.int32, device="cuda")
        self.positions = torch.full((rows,), length - 1, device="cuda")
        self.slots = self.block_table[:, (length - 1) // BLOCK].long() * BLOCK + (length - 1) % BLOCK
        self.rope = torch.randn(4096, DIM, device="cuda")
        self.ids = torch.zeros(rows, dtype=torch.int64, device="cuda")
        self.sampler = a_sampler(rows)

    def attend(self, qkv: Tensor, i: int) -> Tensor:
        q, k, v = qkv.view(qkv.shape[0], -1, DIM).split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        kernels.qk_norm_rope_and_cache(
            self.positions,
            q,
            k,
            v,
            self.head_norm,
            self.head_norm,
            EPS,
            self.rope,
            *self.caches[i],
            self.slots,
        )
        out = kernels.paged_attention(
            q, *self.caches[i], self.block_table, self.seq_lens, self.starts, DIM**-0.5, None, None, 1, 4096
        )
        return out.flatten(1)

    def finish(self, logits: Tensor) -> None:
        sampling_kernel.sample(self.sampler, logits)

    def plain(self, _: int) -> None:
        """Each operator a kernel, products by cuBLAS."""
        hidden, residual = F.embedding(self.ids, self.table), None
        for i in range(LAYERS):
            if residual is None:
                hidden, residual = kernels.rms_norm(hidden, self.norm, EPS), hidden
            else:
                hidden, residual = kernels.fused_add_rms_norm(hidden, residual, self.norm, EPS)
            hidden = F.linear(self.attend(F.linear(hidden, self.qkv[i]), i), self.o[i])
            hidden, residual = kernels.fused_add_rms_norm(hidden, residual, self.norm, EPS)
            hidden = F.linear(kernels.silu_and_mul(F.linear(hidden, self.gate_up[i])), self.down[i])
        assert residual is not None
        hidden, _ = kernels.fused_add_rms_norm(hidden, residual, self.norm, EPS)
        self.finish(F.linear(hidden, self.table))

    def adding(self, _: int) -> None:
        """The same, but cuBLAS adds to the residual stream, so that the norm does not."""
        stream = F.embedding(self.ids, self.table)
        for i in range(LAYERS):
            qkv = F.linear(kernels.rms_norm(stream, self.norm, EPS), self.qkv[i])
            stream.addmm_(self.attend(qkv, i), self.o[i].t())
            inner = F.linear(kernels.rms_norm(stream, self.norm, EPS), self.gate_up[i])
            stream.addmm_(kernels.silu_and_mul(inner), self.down[i].t())
        self.finish(F.linear(kernels.rms_norm(stream, self.norm, EPS), self.table))

    def fused(self, _: int) -> None:
        """Norms, activation and residual inside our products."""
        linear, stream = kernels.linear_row, F.embedding(self.ids, self.table)
        for i in range(LAYERS):
            attended = self.attend(linear(stream, self.qkv[i], None, self.norm, EPS), i)
            linear(attended, self.o[i], residual=stream)
            inner = linear(stream, self.gate_up[i], None, self.norm, EPS, "silu")
            linear(inner, self.down[i], residual=stream)
        self.finish(linear(stream, self.table, None, self.norm, EPS))


def steps(report: Report) -> None:
    weights = (LAYERS * (QKV + HEADS * DIM + 3 * INTERMEDIATE) * HIDDEN + VOCAB * HIDDEN) * 2
    for rows, length in ((1, 384), (8, 384)):
        step = Step(rows, length)
        kv = rows * length * LAYERS * 2 * KV_HEADS * DIM * 2
        for early in (True, False):
            launch_early(early)
            what = f"step, {rows} x {length}" + ("" if early else ", not early")
            report.row(f"{what}, operators + cuBLAS", in_graph(step.plain, 1), weights + kv, 0)
            report.row(f"{what}, cuBLAS adds", in_graph(step.adding, 1), weights + kv, 0)
            if rows == 1:
                report.row(f"{what}, fused", in_graph(step.fused, 1), weights + kv, 0)
    launch_early(True)


def launch_early(yes: bool) -> None:
    """Whether kernels start beside their predecessors."""
    from learnvllm.model_layers.ops.triton_kernels import (
        activation,
        attention_launch,
        norm,
        rope_cache,
        single_row,
    )

    for module in (activation, attention_launch, norm, rope_cache, single_row):
        module.starts_early = lambda device: yes  # type: ignore[attr-defined]


def main() -> None:
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    report = Report(sys.argv[1] if len(sys.argv) > 1 else "not given")
    for tokens in (1, 256, 8192):
        small_operators(report, tokens)
    for name, lens in ATTENTION.items():
        layers = 8 if len(lens) < 100 else 2
        ours, twin, nbytes, flops = attention_inputs(lens, layers)
        report.row(f"paged_attention, {name}", in_graph(ours, layers), nbytes, flops, median_time(twin, 2))
    linear(report)
    for rows in (1, 8, 256):
        sampling(report, rows)
    steps(report)
    results = Path(__file__).parent / "results"
    (results / "gpu_kernels.txt").write_text("\n".join(report.lines) + "\n", encoding="utf-8")
    (results / "gpu_kernels.json").write_text(
        json.dumps({"environment": report.environment, "rows": report.rows}, indent=1) + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
