"""Tokens per second, ours against the peers, interleaved: `python benchmarks/throughput.py --hf-model DIR`.

Machines drift by 15 % within the hour, so every round runs every engine once, in turn, and only ratios of
medians over the rounds are compared with the goals. Peers that are not installed are left out and named.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ALL = ["prefill-512", "decode-1", "decode-8", "decode-16", "requests-32"]


@dataclass(frozen=True)
class Engine:
    name: str
    command: list[str]
    workloads: list[str]


@dataclass(frozen=True)
class Goal:
    """`ours` must reach `ratio` times `peer` on `workload`."""

    ours: str
    peer: str
    workload: str
    ratio: float


GOALS = [
    Goal("ours-fp32", "transformers", "decode-1", 1.6),
    Goal("ours-fp32", "transformers", "decode-16", 1.5),
    Goal("ours-fp32", "transformers", "prefill-512", 1.0),
    Goal("ours-fp32", "vllm-cpu", "requests-32", 1.0),
    Goal("ours-auto", "transformers", "decode-1", 3.5),
    Goal("ours-auto", "transformers", "decode-16", 2.3),
    Goal("ours-auto", "vllm-cpu", "requests-32", 1.15),
    Goal("ours-auto", "vllm-cpu", "decode-1", 1.7),
    Goal("ours-auto", "llama-f16", "decode-16", 1.2),
]


def engines(args: argparse.Namespace) -> list[Engine]:
    """What can run here. Peers are found through the environment: benchmarks/peers/README.md."""
    python, found = sys.executable, []
    found.append(Engine("ours-auto", [python, str(HERE / "ours.py"), "--dtype", "auto"], ALL))
    if args.hf_model:
        hf = [python, str(HERE / "peers/transformers_hf.py"), "--model", args.hf_model]
        found.append(Engine("transformers", hf, ["prefill-512", "decode-1", "decode-8", "decode-16"]))
    found.append(Engine("ours-fp32", [python, str(HERE / "ours.py"), "--dtype", "float32"], ALL))
    if args.hf_model and args.vllm_python:
        found.append(
            Engine(
                "vllm-cpu", [args.vllm_python, str(HERE / "peers/vllm_cpu.py"), "--model", args.hf_model], ALL
            )
        )
    if args.llama_model:
        llama = [python, str(HERE / "peers/llama_cpp.py"), "--model", args.llama_model]
        if args.llama_bin:
            llama += ["--bin-dir", args.llama_bin]
        found.append(Engine("llama-f16", llama, ["prefill-512", "decode-1", "decode-8", "decode-16"]))
    wanted = args.engines.split(",") if args.engines else [e.name for e in found]
    for name in sorted({"transformers", "vllm-cpu", "llama-f16"} - {e.name for e in found}):
        print(f"left out: {name} (see benchmarks/peers/README.md)", file=sys.stderr)
    return [e for e in found if e.name in wanted]


def run_once(engine: Engine, wanted: list[str], seed: int) -> dict[str, float]:
    """One engine, one round, in a process of its own. Returns workload -> tok/s."""
    names = [w for w in engine.workloads if w in wanted]
    if not names:
        return {}
    command = [*engine.command, "--workloads", ",".join(names), "--repeats", "1", "--seed", str(seed)]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{engine.name} failed ({done.returncode}):\n{done.stderr[-3000:]}")
    report = json.loads(done.stdout.strip().splitlines()[-1])
    figures = {w: float(r["tok_s"]) for w, r in report["workloads"].items()}
    line = "  ".join(f"{w} {v:.1f}" for w, v in figures.items())
    print(f"{engine.name:13s} {line}   ({time.perf_counter() - start:.0f} s)", file=sys.stderr, flush=True)
    return figures


def table(medians: dict[str, dict[str, float]], wanted: list[str]) -> list[str]:
    lines = ["| engine | " + " | ".join(wanted) + " |", "|---|" + "---:|" * len(wanted)]
    for name, row in medians.items():
        cells = [f"{row[w]:.1f}" if w in row else "–" for w in wanted]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def verdicts(medians: dict[str, dict[str, float]]) -> list[str]:
    lines = ["", "| ours | peer | workload | goal | measured | result |", "|---|---|---|---:|---:|---|"]
    for g in GOALS:
        ours, peer = medians.get(g.ours, {}).get(g.workload), medians.get(g.peer, {}).get(g.workload)
        if ours is None or peer is None:
            continue
        ratio = ours / peer
        mark = "reached" if ratio >= g.ratio else "MISSED"
        lines.append(f"| {g.ours} | {g.peer} | {g.workload} | {g.ratio:.2f}× | {ratio:.2f}× | {mark} |")
    return lines


def main() -> None:
    env = os.environ.get
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hf-model", default=env("PEER_HF_MODEL"), help="directory in Hugging Face form")
    parser.add_argument("--vllm-python", default=env("PEER_VLLM"), help="python of vllm-cpu's environment")
    parser.add_argument("--llama-model", default=env("PEER_LLAMA_MODEL"), help="F16 GGUF")
    parser.add_argument("--llama-bin", default=env("PEER_LLAMA"), help="folder of llama.cpp's programs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workloads", default=",".join(ALL))
    parser.add_argument("--engines", help="only these, separated by commas")
    parser.add_argument("--json", type=Path, help="write every figure here")
    args = parser.parse_args()
    wanted = args.workloads.split(",")
    runs: dict[str, dict[str, list[float]]] = {}
    chosen = engines(args)
    for round_ in range(args.rounds):
        for engine in chosen:
            for workload, value in run_once(engine, wanted, seed=round_).items():
                runs.setdefault(engine.name, {}).setdefault(workload, []).append(value)
    medians = {e: {w: statistics.median(v) for w, v in row.items()} for e, row in runs.items()}
    print("\n".join(table(medians, wanted) + verdicts(medians)))
    if args.json:
        args.json.write_text(json.dumps({"rounds": args.rounds, "tok_s": runs, "medians": medians}, indent=1))


if __name__ == "__main__":
    main()
