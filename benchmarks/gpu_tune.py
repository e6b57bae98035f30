"""Which tile sizes, warps and stages the Triton kernels run best with: `python benchmarks/gpu_tune.py`.

What it finds is written into the kernels by hand, with the numbers: a kernel that tunes itself would compile
dozens of variants at every start. `gpu_tune.py compile K N` compiles every N-th variant from K on and nothing
else: run N of these first, side by side. Upstream does the like with benchmarks/kernels/benchmark_moe.py.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator

import gpu_kernels as bench
import torch

from learnvllm.model_layers.ops.triton_kernels import attention_launch


def variants() -> Iterator[tuple[str, str, Callable[[], tuple[bench.Call, int]]]]:
    """(what, variant, () -> the call by layer and how many layers)."""
    for name, rows in itertools.product(bench.LINEAR, (1, 4)):
        choices = ((4, 8, 16, 32), (512, 1024), (2, 4, 8)) if rows == 1 else ((4, 8, 16), (256, 512), (4, 8))
        for tiles in itertools.product(*choices):
            yield (
                f"{name}, {rows} rows",
                f"{tiles}",
                lambda name=name, rows=rows, tiles=tiles: linear(name, rows, tiles),  # type: ignore[misc]
            )
    for name in ("1 decode of 384", "8 decodes of 600", "256 decodes of 100 to 1100"):
        for tile, warps, stages in itertools.product((16, 32, 64, 128), (2, 4, 8), (2, 3)):
            settings = {"DECODE_TILE": tile, "DECODE_WARPS": warps, "DECODE_STAGES": stages}
            yield name, f"{settings}", lambda name=name, s=settings: attention(name, s)  # type: ignore[misc]
    for name in ("16 chunks 1024", "200 decodes of 600 and 2 chunks 1024"):
        for rows, tile, warps, stages in itertools.product((64, 128), (32, 64), (4, 8), (2, 3)):
            settings = {"ROWS": rows, "TILE": tile, "WARPS": warps, "STAGES": stages}
            yield name, f"{settings}", lambda name=name, s=settings: attention(name, s)  # type: ignore[misc]


def linear(name: str, rows: int, tiles: tuple[int, int, int]) -> tuple[bench.Call, int]:
    ours, _, layers = bench.linear_calls(name, rows, tiles)
    return ours, layers


_last_attention: dict[str, bench.Call] = {}


def attention(name: str, settings: dict[str, int]) -> tuple[bench.Call, int]:
    for constant, value in settings.items():
        setattr(attention_launch, constant, value)
    if name not in _last_attention:
        _last_attention.clear()
        _last_attention[name] = bench.attention_inputs(bench.ATTENTION[name], 2)[0]
    return _last_attention[name], 2


def main() -> None:
    torch.manual_seed(0)
    compile_only = sys.argv[2:] if sys.argv[1:2] == ["compile"] else []
    results: dict[str, list[tuple[float, str]]] = {}
    for number, (what, variant, make) in enumerate(variants()):
        if compile_only and number % int(compile_only[1]) != int(compile_only[0]):
            continue
        try:
            call, layers = make()
            if compile_only:
                call(0)
            else:
                results.setdefault(what, []).append((bench.in_graph(call, layers, 5), variant))
        except Exception as error:  # too many registers, too much shared memory: not a variant
            print(what, variant, type(error).__name__, str(error)[:80], flush=True)
    for what, found in results.items():
        found.sort()
        print(f"{what}: " + "; ".join(f"{us:.2f} us {variant}" for us, variant in found[:6]))


if __name__ == "__main__":
    main()
