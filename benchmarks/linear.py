"""Which matrix product for which dtype and number of rows: `python benchmarks/linear.py`.

Runs every linear layer of SmolLM2-135M (30 layers and the head, 135 million weights, so that nothing stays in
the caches) and prints milliseconds for all of them by kernel and number of rows, with the bytes and
operations a second that this means. Writes the numbers to --json, and what it printed to
benchmarks/results/linear.txt.
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

from learnvllm.model_layers.linear_kernels import FbgemmLinear, OneDNNLinear, make_linear

LAYERS = 30
SHAPES = {"qkv": (960, 576), "o": (576, 576), "gate_up": (3072, 576), "down": (576, 1536)}
HEAD = (49152, 576)

# What is compared. The first two are what `make_linear` offers; the others are what they were chosen over.
KERNELS: dict[str, Callable[[Tensor], Callable[[Tensor], Tensor]]] = {
    "fp16": lambda w: make_linear(w, None, "fp16").forward,
    "fp32": lambda w: make_linear(w, None, "fp32").forward,
    "fp16 (FBGEMM)": lambda w: FbgemmLinear(w, None).forward,
    "fp32 (oneDNN)": lambda w: OneDNNLinear(w, None).forward,
    "F.linear": lambda w: lambda x: F.linear(x, w),
    "(W @ x.T).T": lambda w: lambda x: (w @ x.T).T,
}

OURS = {
    "fp16": "our kernel on weights in half precision, inputs and sums fp32",
    "fp32": "our kernel on fp32 weights, exact",
}


def measure(layers: list[Callable[[Tensor], Tensor]], inputs: list[Tensor], seconds: float) -> float:
    """Median milliseconds for all layers once, over at least 3 turns and about `seconds`."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 4 or time.perf_counter() < end:
        start = time.perf_counter()
        for layer, x in zip(layers, inputs):
            layer(x)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[1:])


def verdict(mode: str, table: dict[int, dict[str, float]]) -> str:
    """What the table says of `mode`: which kernels it is faster than, and for how many rows it is not."""
    won, lost = [], []
    for other in KERNELS:
        if other == mode:
            continue
        behind = [str(rows) for rows, ms in table.items() if ms[mode] >= ms[other]]
        if behind:
            lost.append(f"{other} for {' '.join(behind)}")
        else:
            won.append(other)
    parts = [OURS[mode]]
    parts += [f"for any number of rows faster than {', '.join(won)}"] if won else []
    parts += [f"not faster than {', '.join(lost)}"] if lost else []
    return f"{mode}: {'; '.join(parts)}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128, 512])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.5, help="per kernel and number of rows")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)

    weights = [torch.randn(s) * 0.02 for _ in range(LAYERS) for s in SHAPES.values()] + [
        torch.randn(HEAD) * 0.02
    ]
    parameters = sum(w.numel() for w in weights)
    kernels = {name: [make(w) for w in weights] for name, make in KERNELS.items()}

    lines = [
        f"All linear layers of SmolLM2-135M ({parameters / 1e6:.0f}M weights), {args.threads} threads, ms",
        f"{'rows':>5}" + "".join(f"{name:>16}" for name in kernels) + "   best: GB/s, GFLOP/s",
    ]
    print("\n".join(lines), flush=True)
    table: dict[int, dict[str, float]] = {}
    for rows in args.rows:
        xs = {width: torch.randn(rows, width) for width in {w.shape[1] for w in weights}}
        inputs = [xs[w.shape[1]] for w in weights]
        table[rows] = {name: measure(layers, inputs, args.seconds) for name, layers in kernels.items()}
        best = min(table[rows], key=lambda name: table[rows][name])
        seconds = table[rows][best] / 1e3
        size = 2 if best.startswith("fp16") else 4
        rates = parameters * size / seconds / 1e9, 2 * parameters * rows / seconds / 1e9
        lines.append(
            f"{rows:>5}"
            + "".join(f"{ms:>16.1f}" for ms in table[rows].values())
            + f"   {best}: {rates[0]:.1f}, {rates[1]:.0f}"
        )
        print(lines[-1], flush=True)

    for mode in ("fp16", "fp32"):
        lines.append(verdict(mode, table))
        print(lines[-1])
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "linear.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if args.json:
        report = {"torch": torch.__version__, "threads": args.threads, "parameters": parameters, "ms": table}
        args.json.write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
