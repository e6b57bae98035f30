"""What computes a mixture of experts, by number of tokens: `python benchmarks/moe.py`.

Runs one layer of 64 experts (100 million weights, more than any cache holds), 8 for each token, by every back
end that --moe-backend may name, and prints milliseconds by number of tokens, with the experts that the tokens
together chose. Writes what it printed to benchmarks/results/moe.txt.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from learnvllm.model_layers.fused_moe.modular_kernel import MoEKernelConfig
from learnvllm.model_layers.fused_moe.oracle import MoEBackend, UnquantizedMoEOracle
from learnvllm.model_layers.fused_moe.routed_experts import RoutedExperts
from learnvllm.model_layers.fused_moe.router import FusedTopKRouter
from learnvllm.model_layers.weights import RandomTensors, Weights


def measure(computes: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Milliseconds of each at its fastest, in `seconds` of its own and at least 3 calls. They take turns, so
    that what else the machine does hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in computes}
    waiting = list(computes)
    while waiting:
        for name in waiting:
            start = time.perf_counter()
            computes[name]()
            times[name].append(time.perf_counter() - start)
        waiting = [name for name in waiting if sum(times[name]) < seconds or len(times[name]) < 4]
    return {name: min(taken[1:]) * 1e3 for name, taken in times.items()}  # the first warms up


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64, 128, 512])
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--top-k", type=int, default=8)
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--intermediate-size", type=int, default=512)
    parser.add_argument("--backends", nargs="+", default=[backend.value for backend in MoEBackend])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1.0, help="per back end and number of tokens")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.set_grad_enabled(False)
    torch.manual_seed(0)

    sizes = args.experts, args.top_k, args.hidden_size, args.intermediate_size
    config = MoEKernelConfig(*sizes, "silu", "fp16", torch.float32, "cpu")
    oracle, source = UnquantizedMoEOracle(), Weights(RandomTensors(), "fp16")
    kernels = {name: oracle.make_kernel(MoEBackend(name), config) for name in args.backends}
    weights = {name: RoutedExperts(source, kernel.experts, config) for name, kernel in kernels.items()}
    router = FusedTopKRouter(args.top_k, renormalize=True)

    size = args.experts * 3 * args.hidden_size * args.intermediate_size
    lines = [
        f"One layer of {args.experts} experts, {args.top_k} a token, hidden {args.hidden_size}, inner "
        f"{args.intermediate_size} ({size / 1e6:.0f}M weights), {args.threads} threads, fastest ms",
        f"{'tokens':>7}{'chosen':>8}" + "".join(f"{name:>12}" for name in kernels),
    ]
    print("\n".join(lines), flush=True)
    for tokens in args.tokens:
        hidden = torch.randn(tokens, args.hidden_size)
        topk_weights, topk_ids = router.select_experts(torch.randn(tokens, args.experts))
        chosen = hidden, topk_weights, topk_ids
        times = measure({n: partial(k.apply, *chosen, weights[n]) for n, k in kernels.items()}, args.seconds)
        row = f"{tokens:>7}{len(topk_ids.unique()):>8}" + "".join(f"{ms:>12.2f}" for ms in times.values())
        lines.append(row)
        print(row, flush=True)
    for name, kernel in kernels.items():
        lines.append(f"{name}: {kernel.experts.explain()}")
        print(lines[-1])
    (Path(__file__).parent / "results" / "moe.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
