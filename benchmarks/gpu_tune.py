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
from learnvllm.model_layers.ops.triton_kernels.attention_launch import Tiles


def variants() -> Iterator[tuple[str, str, Callable[[], tuple[bench.Call, int]]]]:
    """(what, variant, () -> the call by layer and how many layers)."""
    for name, (_, in_features, _) in bench.LINEAR.items():
        for tiles in itertools.product((2, 4, 8, 16, 32), (1024, 2048, 4096), (2, 4, 8)):
            if tiles[1] < 2 * in_features and 1024 * tiles[2] <= tiles[0] * tiles[1] <= 8192 * tiles[2]:
                yield name, f"{tiles}", lambda name=name, tiles=tiles: linear(name, tiles)  # type: ignore[misc]
    for name in ("1 decode of 384", "8 decodes of 600", "32 decodes of 600", "256 decodes of 100 to 1100"):
        for cut in itertools.starmap(
            Tiles, itertools.product((16,), (16, 32, 64, 128), (2, 4), (3,), (2, 4, 8))
        ):
            if (cut.keys > 16 or name[0] == "1") and (cut.keys < 128 or name[:3] == "256"):
                yield name, f"{cut}", lambda name=name, cut=cut: attention(name, cut)  # type: ignore[misc]
    for name in ("chunk 1024", "16 chunks 1024", "200 decodes of 600 and 2 chunks 1024"):
        for cut in itertools.starmap(
            Tiles,
            itertools.product((64, 128), (32, 64, 128), (4, 8), (2, 3), (1, 2) if name[0] == "c" else (1,)),
        ):
            yield name, f"{cut}", lambda name=name, cut=cut: attention(name, cut)  # type: ignore[misc]


def linear(name: str, tiles: tuple[int, int, int]) -> tuple[bench.Call, int]:
    ours, _, layers = bench.linear_calls(name, tiles)
    return ours, layers


_last_attention: dict[str, bench.Call] = {}


def attention(name: str, cut: Tiles) -> tuple[bench.Call, int]:
    attention_launch.choose_tiles = lambda *_: cut
    if name not in _last_attention:
        _last_attention.clear()
        _last_attention[name] = bench.attention_inputs(bench.ATTENTION[name], 4)[0]
    return _last_attention[name], 4


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
