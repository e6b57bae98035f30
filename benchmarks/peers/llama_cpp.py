"""llama.cpp on the shared workloads: `python llama_cpp.py --model FILE.gguf --bin-dir build/bin`.

Two ways through it. `--through bench` (llama-batched-bench) runs the bare model in lockstep: no scheduler, no
sampling, random tokens in every step; an upper bound. `--through server` (llama-server) sends the token ids
that every other engine gets, over HTTP, to its continuous batching. Prints one line of JSON.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import workloads

SLOTS = 32  # requests that llama-server batches
SLOT_TOKENS = 768  # context of each: the longest workload is 512 + 1


def main() -> None:
    parser = workloads.arguments(__doc__.splitlines()[0], "GGUF file")
    parser.add_argument(
        "--bin-dir",
        type=Path,
        default=os.environ.get("PEER_LLAMA", "build/bin"),
        help="folder of llama-batched-bench and llama-server",
    )
    parser.add_argument("--through", choices=["bench", "server"], default="bench")
    args = parser.parse_args()
    if args.through == "bench":
        results = {name: batched_bench(args, workloads.WORKLOADS[name]) for name in args.workloads}
    else:
        with server(args) as port, ThreadPoolExecutor(SLOTS) as pool:

            def generate(prompts: workloads.Prompts, max_tokens: int) -> int:
                return sum(pool.map(lambda prompt: complete(port, prompt, max_tokens), prompts))

            results = workloads.measure(generate, args.workloads, args.repeats, args.seed)
    workloads.print_json(
        sys.stdout,
        {
            "engine": f"llama.cpp ({args.through})",
            "version": version(args),
            "model": Path(args.model).name,
            "threads": args.threads,
            "workloads": results,
        },
    )


def shared_flags(args) -> list[str]:
    return ["-m", args.model, "-t", str(args.threads), "-tb", str(args.threads), "-ngl", "0"]


def version(args) -> str:
    run = subprocess.run(
        [args.bin_dir / "llama-server", "--version"], capture_output=True, text=True, check=True
    )
    lines = (run.stdout + run.stderr).splitlines()
    return next((line.removeprefix("version: ") for line in lines if line.startswith("version")), "unknown")


def batched_bench(args, work: workloads.Workload) -> dict[str, object]:
    """One workload through llama-batched-bench, whose prompt phase already yields the first output token."""
    steps = max(
        1, work.output_len - 1
    )  # it wants at least one decode step; a prefill workload does not count it
    context = work.requests * (work.prompt_len + steps)
    command = [args.bin_dir / "llama-batched-bench", *shared_flags(args), "-c", str(context)]
    command += ["-npp", str(work.prompt_len), "-ntg", str(steps)]
    # The first run warms up and is dropped. -b and -ub keep their defaults: 2048 tokens a call, 512 a pass.
    command += ["-npl", ",".join([str(work.requests)] * (args.repeats + 1)), "--output-format", "jsonl"]
    run = subprocess.run(command, capture_output=True, text=True)
    text = run.stdout + run.stderr
    rows = [json.loads(line) for line in text.splitlines() if line.startswith('{"n_kv_max"')][1:]
    if run.returncode != 0 or len(rows) != args.repeats:
        raise SystemExit(
            f"llama-batched-bench: exit code {run.returncode}, {len(rows)} of {args.repeats} results\n{text}"
        )
    rate = {
        "prefill": lambda row: work.requests * work.prompt_len / row["t_pp"],
        "decode": lambda row: work.requests * steps / row["t_tg"],
        "requests": lambda row: work.requests * work.output_len / (row["t_pp"] + row["t_tg"]),
    }[work.kind]
    return workloads.summary([rate(row) for row in rows])


@contextmanager
def server(args):
    """A llama-server on a free local port; gives the port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [args.bin_dir / "llama-server", *shared_flags(args), "--host", "127.0.0.1", "--port", str(port)]
    command += ["-np", str(SLOTS), "-c", str(SLOTS * SLOT_TOKENS), "--cache-ram", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_healthy(process, port)
        yield port
    finally:
        process.terminate()
        process.wait()


def wait_until_healthy(process: subprocess.Popen, port: int, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if process.poll() is not None:
            raise SystemExit(f"llama-server ended with exit code {process.returncode}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"llama-server is not ready after {seconds:.0f} s")


def complete(port: int, prompt: list[int], max_tokens: int) -> int:
    """One request; returns the number of tokens that it produced."""
    body = {
        "prompt": prompt,
        "n_predict": max_tokens,
        "ignore_eos": True,
        "temperature": 0.0,
        "samplers": ["temperature"],  # plain greedy: no top-k or top-p pass over the vocabulary first
        "cache_prompt": False,
    }
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    if "tokens_predicted" not in answer:
        raise RuntimeError(f"llama-server refused a request: {answer}")
    return answer["tokens_predicted"]


if __name__ == "__main__":
    main()
