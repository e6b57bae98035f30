"""`learnvllm bench`: throughput and latency of an engine, or of a running server under arriving requests.

Prompts are random token ids, as in vLLM's random dataset, so that no prefix is shared and lengths are exact.
Upstream namesakes: vllm/benchmarks/{throughput,latency,serve}.py.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from typing import Any

from learnvllm.architecture.errors import ValidationError
from learnvllm.architecture.sampling_params import RequestOutputKind, SamplingParams
from learnvllm.architecture.text import to_path
from learnvllm.engine_core.llm_engine import LLMEngine
from learnvllm.serving.bench_progress import Progress, Stage
from learnvllm.serving.bench_stats import Row, print_table, quantiles

KINDS = {
    "throughput": "Many requests at once: tokens per second.",
    "latency": "One batch, again and again: seconds.",
    "serve": "A running server under Poisson arrivals: time to first token, time per token.",
}
EXAMPLES = {
    "learnvllm bench throughput --num-prompts 8": "8 requests at once, an engine of its own",
    "learnvllm bench latency --batch-size 1": "one request at a time, again and again",
    "learnvllm bench serve --request-rate 2": "a server that runs already (learnvllm serve)",
}
LOADING, WARM_UP, MEASURING = "Loading the engine", "Warming up", "Measuring"
COVERS = {
    "throughput": "time: from the first request to the end of the last; loading and warm-up came before it.",
    "latency": "batch: from its first request to the end of its last; loading and warm-up came before them.",
    "serve": "time: from the first request sent to the end of the last answer.",
}
"""What the figures are of."""
FIRST_TOKEN_ID = 16
"""Random prompts leave out the ids before it: special tokens in most vocabularies."""


def add_flags(parser: argparse.ArgumentParser, kind: str) -> None:
    add = parser.add_argument
    add(
        "--input-len",
        type=int,
        default=32 if kind == "latency" else 128,
        help="Prompt tokens (default: %(default)s)",
    )
    add("--output-len", type=int, default=128, help="Output tokens (default: %(default)s)")
    add("--prompt-seed", type=int, default=0, help="Of lengths, tokens and arrivals (default: %(default)s)")
    add("--json", action="store_true", help="Print JSON instead of a table.")
    add("--output-json", metavar="FILE", help="Write the figures to a file, too.")
    if kind == "latency":
        add("--batch-size", type=int, default=8, help="Requests at once (default: %(default)s)")
        add("--num-iters-warmup", type=int, default=1, help="Rounds not counted (default: %(default)s)")
        add("--num-iters", type=int, default=5, help="Rounds counted (default: %(default)s)")
        return
    add("--num-prompts", type=int, default=32, help="Requests (default: %(default)s)")
    add(
        "--random-range-ratio",
        type=float,
        default=0.0,
        help="Lengths vary uniformly by this share either way (default: %(default)s)",
    )
    if kind == "serve":
        add("--base-url", default="http://127.0.0.1:8000", help="The server (default: %(default)s)")
        add("--model", help="Left out: the server's own.")
        add("--api-key", metavar="KEY", help="Default: LEARNVLLM_API_KEY.")
        add(
            "--request-rate",
            type=float,
            default=float("inf"),
            help="Requests a second (default: all at once)",
        )
        add("--max-concurrency", type=int, help="Most requests at once (default: no limit)")
        add("--vocab-size", type=int, default=300, help="Random ids stay below it (default: %(default)s)")


def check_flags(args: argparse.Namespace) -> None:
    """Check the flags before an engine is started for them.

    Raises:
        ValidationError: a length, count or rate that makes no sense, or a file that cannot be written.
    """
    for name in ("input_len", "output_len", "num_prompts", "batch_size", "num_iters", "max_concurrency"):
        value = getattr(args, name, None)
        if value is not None and value < 1:
            flag = "--" + name.replace("_", "-")
            raise ValidationError(f"{flag} {value}: must be at least 1.", parameter=name, value=value)
    if getattr(args, "num_iters_warmup", 0) < 0:
        raise ValidationError(
            f"--num-iters-warmup {args.num_iters_warmup}: must be 0 or above.", value=args.num_iters_warmup
        )
    ratio, rate = getattr(args, "random_range_ratio", 0.0), getattr(args, "request_rate", 1.0)
    if not 0 <= ratio < 1:
        raise ValidationError(f"--random-range-ratio {ratio}: must be from 0 to below 1.", value=ratio)
    if not rate > 0:
        raise ValidationError(f"--request-rate {rate}: must be above 0 requests a second.", value=rate)
    vocab_size = getattr(args, "vocab_size", FIRST_TOKEN_ID + 1)
    if vocab_size <= FIRST_TOKEN_ID:
        raise ValidationError(
            f"--vocab-size {vocab_size}: must be above {FIRST_TOKEN_ID}; lower ids are not used.",
            value=vocab_size,
        )
    if args.output_json:
        try:
            to_path(args.output_json).open("a", encoding="utf-8").close()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise ValidationError(
                f"--output-json {args.output_json} cannot be written: {reason}.",
                value=args.output_json,
            ) from None


def random_requests(args: argparse.Namespace, count: int, vocab_size: int) -> list[tuple[list[int], int]]:
    """(prompt token ids, output length) for each request."""
    ratio = getattr(args, "random_range_ratio", 0.0)
    rng = random.Random(args.prompt_seed)

    def length(mean: int) -> int:
        return max(1, rng.randint(round(mean * (1 - ratio)), round(mean * (1 + ratio))))

    return [
        (
            [rng.randrange(FIRST_TOKEN_ID, vocab_size) for _ in range(length(args.input_len))],
            length(args.output_len),
        )
        for _ in range(count)
    ]


def run_throughput(engine: LLMEngine, args: argparse.Namespace, progress: Progress) -> int:
    vocab_size = engine.config.model_config.arch.vocab_size
    # One more to warm up with: a prompt seen before would come from the prefix cache.
    warmup, *requests = random_requests(args, args.num_prompts + 1, vocab_size)
    with progress.stage(WARM_UP) as stage:
        _run_batch(engine, [warmup], stage)
    with progress.stage(MEASURING, len(requests)) as stage:
        elapsed, num_output = _run_batch(engine, requests, stage)
    num_input = sum(len(prompt) for prompt, _ in requests)
    report(
        args,
        "throughput",
        [
            ("requests", len(requests), ""),
            ("time", elapsed, "s"),
            ("requests per second", len(requests) / elapsed, "req/s"),
            ("total tokens per second", (num_input + num_output) / elapsed, "tok/s"),
            ("output tokens per second", num_output / elapsed, "tok/s"),
            *_before(progress),
        ],
    )
    return 0


def run_latency(engine: LLMEngine, args: argparse.Namespace, progress: Progress) -> int:
    size, vocab_size = args.batch_size, engine.config.model_config.arch.vocab_size
    # For all rounds at once, so that no round finds its prompts cached.
    rounds = args.num_iters_warmup + args.num_iters
    everything = random_requests(args, size * rounds, vocab_size)
    batches = [everything[i * size : (i + 1) * size] for i in range(rounds)]
    with progress.stage(WARM_UP, size * args.num_iters_warmup) as stage:
        for batch in batches[: args.num_iters_warmup]:
            _run_batch(engine, batch, stage)
    with progress.stage(MEASURING, size * args.num_iters) as stage:
        counted = [_run_batch(engine, batch, stage)[0] for batch in batches[args.num_iters_warmup :]]
    rows = [("batch size", size, ""), *quantiles("batch", counted, "s"), *_before(progress)]
    report(args, "latency", rows)
    return 0


def _run_batch(engine: LLMEngine, requests: list[tuple[list[int], int]], stage: Stage) -> tuple[float, int]:
    """Run all requests at once; (seconds, output tokens)."""
    before = stage.finished
    began = time.perf_counter()
    for i, (prompt, output_len) in enumerate(requests, before):
        params = SamplingParams(
            temperature=0.0, max_tokens=output_len, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY
        )
        engine.add_request(f"{stage.name}-{i}", prompt, params)
    tokens = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            output.raise_failure()
            tokens += sum(len(completion.token_ids) for completion in output.outputs)
            stage.finished += 1
        stage.moves += 1
    return time.perf_counter() - began, tokens


def _before(progress: Progress) -> list[Row]:
    """What went before the measured time."""
    return [
        ("loading", progress.seconds.get(LOADING, 0.0), "s"),
        ("warm-up", progress.seconds.get(WARM_UP, 0.0), "s"),
    ]


def run_serve(args: argparse.Namespace, progress: Progress) -> int:
    from learnvllm.serving.bench_client import measure_server

    requests = random_requests(args, args.num_prompts, args.vocab_size)
    report(args, "serve", measure_server(args, requests, progress))
    return 0


def report(args: argparse.Namespace, kind: str, rows: list[Row]) -> None:
    """Print the figures as a table or JSON, and write them where asked."""
    figures: dict[str, Any] = {name: value for name, value, _ in rows}
    document = {
        "benchmark": kind,
        "input_len": args.input_len,
        "output_len": args.output_len,
        "figures": figures,
    }
    if args.json:
        print(json.dumps(document))
    else:
        print_table(f"{kind}: {args.input_len} tokens in, {args.output_len} out", rows)
        print(f"  {COVERS[kind]}")
    if args.output_json:
        to_path(args.output_json).write_text(json.dumps(document, indent=2), encoding="utf-8")
