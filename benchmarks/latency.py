"""Mixed load, pauses, start-up, memory and the engine's own share: `python benchmarks/latency.py`.

Five questions, each with the goal it is held against: is continuous batching worth it (against transformers'
two ways), does a long prompt hold up running decodes, how much of a step is ours, how soon is the first token
there, how much memory is held beyond weights and KV cache.
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def child(arguments: list[str], env: dict[str, str] | None = None) -> dict:
    """Run one measurement in a process of its own; its last line of output is JSON."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env={**os.environ, **(env or {})}
    )
    if done.returncode != 0:
        sys.exit(f"{arguments} failed ({done.returncode}):\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def mixed(args: argparse.Namespace) -> dict:
    """Output tok/s of the mixed workload, engines in turn within every round."""
    runs: dict[str, list[float]] = {}
    engines = ["ours"] + (["transformers-static", "transformers-continuous"] if args.hf_model else [])
    for round_ in range(args.rounds):
        for engine in engines:
            command = [str(HERE / "mixed.py"), "--engine", engine, "--seed", str(round_)]
            report = child(command + (["--hf-model", args.hf_model] if args.hf_model else []))
            show(f"mixed, {engine}", report)
            runs.setdefault(engine, []).append(report["output_tok_s"])
    medians = {name: statistics.median(values) for name, values in runs.items()}
    for peer, goal in (("transformers-static", 2.5), ("transformers-continuous", 3.0)):
        if peer in medians:
            say(f"mixed: output tok/s vs {peer}", medians["ours"] / medians[peer], goal, at_least=True)
    return {"runs": runs, "medians": medians}


def pauses(args: argparse.Namespace) -> dict:
    """Eight requests decode; a 900-token prompt arrives. p99 of their inter-token latency over its median.

    In the same round, for comparison: the prompt takes all of a step's budget.
    """
    ratios: dict[str, list[float]] = {"pauses": [], "pauses-whole-budget": []}
    for round_ in range(args.rounds):
        for name, values in ratios.items():
            report = child([str(HERE / "latency.py"), "--child", name, "--seed", str(round_)])
            show(name, report)
            values.append(report["p99_ms"] / report["p50_ms"])
    ours, whole = map(statistics.median, ratios.values())
    say("p99 inter-token latency / median while a 900-token prompt arrives", ours, 3.0)
    print(f"the same where a prompt may take the whole budget: {whole:.3g}", flush=True)
    return {"ratios": ratios}


def share(args: argparse.Namespace) -> dict:
    """Everything but the model forward, of a decode step at 16 requests."""
    shares = [child([str(HERE / "latency.py"), "--child", "share"])["share"] for _ in range(args.rounds)]
    say("engine's own share of a decode step at 16 requests", statistics.median(shares), 0.08)
    return {"shares": shares}


def startup(args: argparse.Namespace) -> dict:
    """`learnvllm generate` from a cold process to its first token, seconds; and `learnvllm --help`."""
    first, helps = [], []
    for _ in range(args.rounds):
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "learnvllm", "generate", "The capital of France is", "--max-tokens", "1"],
            check=True,
            capture_output=True,
        )
        first.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "learnvllm", "--help"], check=True, capture_output=True)
        helps.append(time.perf_counter() - begin)
    say("start-up to first token, s", statistics.median(first), 6.0)
    say("learnvllm --help, s", statistics.median(helps), 0.4)
    return {"first_token_s": first, "help_s": helps}


def memory(args: argparse.Namespace) -> dict:
    """Resident bytes of both processes, after serving, beyond weights and the KV pool's touched part."""
    beyond = []
    for _ in range(args.rounds):
        report = child([str(HERE / "latency.py"), "--child", "memory"])
        show("memory", report)
        beyond.append(report["beyond_mb"])
    say("resident beyond weights and what is touched of the KV pool, MB", statistics.median(beyond), 600.0)
    return {"beyond_mb": beyond}


def show(name: str, report: dict) -> None:
    """One run's figures, for whoever waits."""
    figures = (f"{key} {value:.4g}" for key, value in report.items() if isinstance(value, int | float))
    print(f"  {name}: {', '.join(figures)}", file=sys.stderr, flush=True)


def say(what: str, value: float, goal: float, at_least: bool = False) -> None:
    reached = value >= goal if at_least else value <= goal
    sign = ">=" if at_least else "<="
    print(f"{what}: {value:.3g} (goal {sign} {goal:g}) {'reached' if reached else 'MISSED'}", flush=True)


# ------------------------------------------------------------------------------- measured in a child process


def child_pauses(seed: int, prefill_tokens_per_decode: int | None = None) -> dict:
    import random

    from learnvllm import SamplingParams
    from learnvllm.architecture.sampling_params import RequestOutputKind
    from learnvllm.assembly import EngineArgs, build_async_llm, create_engine_config

    rng = random.Random(seed)
    gaps: list[float] = []
    arrived = asyncio.Event()

    def prompt(length: int) -> dict:
        return {"prompt_token_ids": [rng.randint(10, 49000) for _ in range(length)]}

    async def decode(llm, i: int) -> None:
        params = SamplingParams(
            temperature=0.0, max_tokens=128, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        last, tokens = None, 0
        async for _ in llm.generate(prompt(64), params, f"r{i}"):
            now, tokens = time.perf_counter(), tokens + 1
            if last is not None:
                gaps.append(now - last)
            last = now
            if tokens == 32:
                arrived.set()

    async def long_prompt(llm) -> None:
        await arrived.wait()
        params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
        async for _ in llm.generate(prompt(900), params, "long"):
            pass

    async def run() -> None:
        args = EngineArgs(max_model_len=2048, prefill_tokens_per_decode=prefill_tokens_per_decode)
        llm = build_async_llm(create_engine_config(args))
        try:
            async for _ in llm.generate(prompt(16), SamplingParams(max_tokens=4), "warm"):
                pass
            tasks = [asyncio.create_task(decode(llm, i)) for i in range(8)]
            await asyncio.gather(long_prompt(llm), *tasks)
        finally:
            llm.shutdown()

    asyncio.run(run())
    gaps.sort()
    return {
        "p50_ms": 1e3 * statistics.median(gaps),
        "p99_ms": 1e3 * gaps[int(0.99 * (len(gaps) - 1))],
        "max_ms": 1e3 * gaps[-1],
    }


def child_share(seed: int) -> dict:
    """In one process: wall time of decode steps, detokenization included, and of the forwards inside them."""
    os.environ["LEARNVLLM_ENABLE_MULTIPROCESSING"] = "0"
    from learnvllm import LLM, SamplingParams
    from learnvllm.architecture.tracing import RecordingTracer

    tracer = RecordingTracer()
    llm = LLM(max_model_len=2048, enable_prefix_caching=False, async_scheduling=False, tracer=tracer)
    prompts = [{"prompt_token_ids": [17 + i] * 128} for i in range(16)]
    params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
    llm.generate(prompts, params, use_tqdm=False)
    tracer.events.clear()
    llm.generate(prompts, params, use_tqdm=False)
    decodes = [
        e for e in tracer.events if len(e.scheduled) == 16 and all(s.num_tokens == 1 for s in e.scheduled)
    ]
    walls = [b.start - a.start for a, b in itertools.pairwise(decodes)]  # start to start: nothing escapes
    forwards = [e.phases["forward"] for e in decodes[:-1]]
    return {"share": 1 - sum(forwards) / sum(walls), "step_ms": 1e3 * statistics.median(walls)}


def child_memory(seed: int) -> dict:
    import psutil

    from learnvllm import LLM, SamplingParams

    llm = LLM(max_model_len=2048)
    prompts = [{"prompt_token_ids": [17 + i] * 128} for i in range(16)]
    llm.generate(prompts, SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True), use_tqdm=False)
    held = llm.memory_report()  # weight_bytes, kv_cache_bytes
    me = psutil.Process()
    resident = sum(p.memory_full_info().pss for p in [me, *me.children(recursive=True)])
    # Most of the pool has never been written, so it is reserved but not resident: count what was.
    ready = llm.llm_engine.engine_core.ready
    block_bytes = held["kv_cache_bytes"] / ready.num_gpu_blocks
    touched = len(prompts) * (128 + 32) / ready.block_size * block_bytes
    beyond = resident - held["weight_bytes"] - touched
    report = {"resident_mb": resident / 1e6, "touched_mb": touched / 1e6, "beyond_mb": beyond / 1e6}
    return {**report, **held}


def child_pauses_whole_budget(seed: int) -> dict:
    return child_pauses(seed, prefill_tokens_per_decode=0)


CHILDREN = {
    "pauses": child_pauses,
    "pauses-whole-budget": child_pauses_whole_budget,
    "share": child_share,
    "memory": child_memory,
}
QUESTIONS = {"mixed": mixed, "pauses": pauses, "share": share, "startup": startup, "memory": memory}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hf-model", default=os.environ.get("PEER_HF_MODEL"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--questions", default=",".join(QUESTIONS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", choices=list(CHILDREN), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        print(json.dumps(CHILDREN[args.child](args.seed)), file=out, flush=True)
        return
    results = {name: QUESTIONS[name](args) for name in args.questions.split(",")}
    if args.json:
        args.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
