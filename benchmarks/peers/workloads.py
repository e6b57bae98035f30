"""Five workloads, defined once, so that every engine is measured alike: an engine is one `generate` function.

Only the standard library is used, because each peer runs this file in its own environment. README.md states
the same definitions in words; the two must not drift apart.
"""

import argparse
import ctypes.util
import glob
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

Prompts = list[list[int]]

# Answers every prompt with exactly `max_tokens` greedy tokens, ignoring end-of-sequence, all prompts
# submitted at once; returns how many tokens it produced in total.
Generate = Callable[[Prompts, int], int]


@dataclass(frozen=True)
class Workload:
    """`requests` prompts of `prompt_len` random ids with `output_len` tokens each."""

    kind: str  # what counts: "prefill" prompt tokens, "decode" tokens after the first, "requests" all output
    requests: int
    prompt_len: int
    output_len: int


WORKLOADS: dict[str, Workload] = {
    "prefill-512": Workload("prefill", requests=1, prompt_len=512, output_len=1),
    "decode-1": Workload("decode", requests=1, prompt_len=128, output_len=128),
    "decode-8": Workload("decode", requests=8, prompt_len=128, output_len=128),
    "decode-16": Workload("decode", requests=16, prompt_len=128, output_len=128),
    "requests-32": Workload("requests", requests=32, prompt_len=128, output_len=128),
}


def random_prompts(count: int, length: int, seed: int) -> Prompts:
    """The same token ids for every engine: 10..49000 keeps clear of SmolLM2's special tokens (0..16)."""
    rng = random.Random(seed)
    return [[rng.randint(10, 49000) for _ in range(length)] for _ in range(count)]


def timed(generate: Generate, prompts: Prompts, max_tokens: int) -> float:
    """Seconds that `generate` takes; an engine that stops early or runs on is an error, not a good result."""
    start = time.perf_counter()
    produced = generate(prompts, max_tokens)
    seconds = time.perf_counter() - start
    if produced != len(prompts) * max_tokens:
        raise RuntimeError(
            f"{len(prompts)} prompts of {max_tokens} output tokens each gave {produced} tokens"
        )
    return seconds


def measure_once(generate: Generate, work: Workload, seed: int) -> float:
    """One measurement of one workload, in tokens per second."""
    prompts = random_prompts(work.requests, work.prompt_len, seed)
    if work.kind == "prefill":
        return work.requests * work.prompt_len / timed(generate, prompts, work.output_len)
    if work.kind == "decode":  # the prompt costs the same in both calls and cancels out
        first = timed(generate, prompts, 1)
        whole = timed(generate, prompts, work.output_len)
        return work.requests * (work.output_len - 1) / (whole - first)
    return work.requests * work.output_len / timed(generate, prompts, work.output_len)


def measure(generate: Generate, names: list[str], repeats: int, seed: int) -> dict[str, dict[str, object]]:
    """Every workload `repeats` times, each time with other prompts (seed, seed + 1 ...); then the median."""
    results: dict[str, dict[str, object]] = {}
    for name in names:
        work = WORKLOADS[name]
        # Untimed: compiles, allocates and warms the caches at this batch size.
        timed(generate, random_prompts(work.requests, work.prompt_len, seed + 1000), min(4, work.output_len))
        runs = [measure_once(generate, work, seed + i) for i in range(repeats)]
        results[name] = summary(runs)
        print(f"{name}: {results[name]}", file=sys.stderr, flush=True)
    return results


def summary(runs: list[float]) -> dict[str, object]:
    return {"tok_s": round(statistics.median(runs), 2), "runs": [round(r, 2) for r in runs]}


def arguments(description: str, model_help: str) -> argparse.ArgumentParser:
    """The options that all peers share."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--model", required=True, help=model_help)
    parser.add_argument(
        "--workloads", type=workload_names, default=",".join(WORKLOADS), help="names, separated by commas"
    )
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument(
        "--repeats", type=int, default=3, help="measurements of each workload; the median counts"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random prompts")
    return parser


def workload_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in WORKLOADS]:
        raise argparse.ArgumentTypeError(f"unknown workload {unknown[0]!r}; there are {', '.join(WORKLOADS)}")
    return names


def only_json_on_stdout() -> TextIO:
    """The real standard output; what libraries print from now on, C++ included, goes to standard error."""
    real = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return real


def print_json(out: TextIO, report: dict[str, object]) -> None:
    print(json.dumps(report), file=out, flush=True)


def preload(marker: str = "PEER_PRELOADED") -> list[str]:
    """Restart this process with tcmalloc and Intel's OpenMP preloaded, as vLLM's CPU guide recommends.

    Returns the libraries that are preloaded; one that is not installed is left out, and the report shows it.
    """
    if marker in os.environ:
        return [path for path in os.environ[marker].split(":") if path]
    tcmalloc = ctypes.util.find_library("tcmalloc_minimal") or ctypes.util.find_library("tcmalloc")
    libraries = ([tcmalloc] if tcmalloc else []) + glob.glob(os.path.join(sys.prefix, "lib", "libiomp5.so"))
    before = os.environ.get("LD_PRELOAD", "")
    os.environ["LD_PRELOAD"] = ":".join(libraries + ([before] if before else []))
    os.environ[marker] = ":".join(libraries)
    os.execv(sys.executable, [sys.executable, *sys.argv])
