"""What does the scheduler cost, without any model? Milliseconds a step while 16 to 512 requests decode.

    python benchmarks/scheduler.py [--json out.json] [--steps 320] [--repeat 3]

A stand-in for the model answers at once, so what is measured is schedule() + update_from_output(): CPU time
of the thread, which other processes do not blur. Prompts of 64 to 79 tokens, which nobody shares, take
their next block in different steps; the pool is large enough that nobody is preempted. A row is the median
of the repeats.
Targets: at most 5 ms a step at 256 running requests, a cost per request at 512 of at most 1.2 times that at
16, and an import without torch.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from learnvllm.architecture.request import Request
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.architecture.step import ModelRunnerOutput, SchedulerOutput
from learnvllm.scheduling.async_scheduler import AsyncScheduler
from learnvllm.scheduling.scheduler import Scheduler
from tests.scheduling.fake_runner import make_config, make_kv_cache_config

SIZES = (16, 64, 256, 512)
BLOCK_SIZE = 16
MAX_PROMPT_TOKENS = 80
WARM_UP_STEPS = 20
MAX_MS_AT_256 = 5.0
MAX_GROWTH = 1.2


@dataclass(frozen=True)
class Variant:
    """What is switched on."""

    name: str
    caching: bool = True
    async_scheduling: bool = False
    windows: tuple[int | None, ...] = (None,)


VARIANTS = (
    Variant("no prefix caching", caching=False),
    Variant("prefix caching"),
    Variant("prefix caching, async", async_scheduling=True),
    Variant("full + sliding window", windows=(None, 64)),
)


@dataclass(frozen=True)
class Row:
    variant: str
    running: int
    mean_ms: float
    p99_ms: float

    @property
    def us_per_request(self) -> float:
        return self.mean_ms * 1e3 / self.running


def make_scheduler(variant: Variant, num_running: int, steps: int) -> Scheduler:
    """A scheduler with `num_running` requests that will not end within `steps` steps."""
    length = MAX_PROMPT_TOKENS + WARM_UP_STEPS + steps + 16
    num_blocks = len(variant.windows) * num_running * (length // BLOCK_SIZE + 2) + 64
    config = make_config(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_model_len=length,
        max_num_batched_tokens=num_running * MAX_PROMPT_TOKENS,
        max_num_seqs=num_running,
        enable_prefix_caching=variant.caching,
    )
    scheduler_class = AsyncScheduler if variant.async_scheduling else Scheduler
    scheduler = scheduler_class(config, make_kv_cache_config(num_blocks, BLOCK_SIZE, variant.windows))
    for index in range(num_running):
        prompt = [index, *range(MAX_PROMPT_TOKENS - 1 - index % BLOCK_SIZE)]
        params = SamplingParams(max_tokens=length)
        request = Request(f"request-{index}", prompt, params, block_hasher=scheduler.block_hasher)
        scheduler.add_request(request)
    return scheduler


def answer(output: SchedulerOutput) -> ModelRunnerOutput:
    """A token for everybody: no prompt here is cut."""
    ids = list(output.num_scheduled_tokens)
    return ModelRunnerOutput(ids, [[output.step_id % 1000] for _ in ids])


def measure(variant: Variant, num_running: int, steps: int) -> Row:
    """Drive one engine; time every step after the warm-up."""
    scheduler = make_scheduler(variant, num_running, steps)
    depth = 2 if variant.async_scheduling else 1
    in_flight: deque[SchedulerOutput] = deque()
    seconds: list[float] = []
    gc.collect()
    for _ in range(WARM_UP_STEPS + steps):
        begin = time.thread_time()
        while len(in_flight) < depth:
            in_flight.append(scheduler.schedule())
        scheduled = time.thread_time() - begin
        output = in_flight.popleft()
        result = answer(output)
        begin = time.thread_time()
        scheduler.update_from_output(output, result)
        seconds.append(scheduled + time.thread_time() - begin)
    assert scheduler.get_request_counts() == (num_running, 0)
    seconds = sorted(seconds[WARM_UP_STEPS:])
    p99 = seconds[min(int(len(seconds) * 0.99), len(seconds) - 1)]
    return Row(variant.name, num_running, statistics.fmean(seconds) * 1e3, p99 * 1e3)


def median_row(rows: list[Row]) -> Row:
    return Row(
        rows[0].variant,
        rows[0].running,
        statistics.median(row.mean_ms for row in rows),
        statistics.median(row.p99_ms for row in rows),
    )


def check_imports() -> tuple[bool, float]:
    """In a fresh process: (torch stayed out, seconds to import the scheduler and the block pool)."""
    code = (
        "import sys, time; start = time.perf_counter();"
        "import learnvllm.scheduling.async_scheduler, learnvllm.kv_cache.manager;"
        "print(int('torch' in sys.modules), time.perf_counter() - start)"
    )
    root = Path(__file__).resolve().parent.parent
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    loaded, seconds = run.stdout.split()
    return loaded == "0", float(seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=320, help="timed steps of a run")
    parser.add_argument("--repeat", type=int, default=3, help="runs of a row")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()

    torch_free, import_seconds = check_imports()
    print(f"importing scheduler and block pool: {import_seconds:.2f} s, without torch: {torch_free}\n")
    print(f"{'variant':<24}{'running':>8}{'ms/step':>10}{'p99 ms':>9}{'us/request':>12}{'vs 16':>7}")
    table: list[Row] = []
    for variant in VARIANTS:
        first = 0.0
        for size in SIZES:
            row = median_row([measure(variant, size, args.steps) for _ in range(args.repeat)])
            table.append(row)
            first = first or row.us_per_request
            print(
                f"{row.variant:<24}{row.running:>8}{row.mean_ms:>10.3f}{row.p99_ms:>9.3f}"
                f"{row.us_per_request:>12.2f}{row.us_per_request / first:>7.2f}"
            )
    per_request = {(row.variant, row.running): row.us_per_request for row in table}
    worst_256 = max(row.mean_ms for row in table if row.running == 256)
    growth = max(per_request[v.name, 512] / per_request[v.name, 16] for v in VARIANTS)
    ok = torch_free and worst_256 <= MAX_MS_AT_256 and growth <= MAX_GROWTH
    print(f"\n256 running: {worst_256:.2f} ms a step (at most {MAX_MS_AT_256})")
    print(f"cost per request, 512 against 16 running: {growth:.2f} (at most {MAX_GROWTH})")
    print("targets met" if ok else "TARGETS MISSED")
    if args.json:
        rows = [asdict(row) | {"us_per_request": row.us_per_request} for row in table]
        figures = {"torch_free": torch_free, "import_s": import_seconds, "rows": rows, "ok": ok}
        args.json.write_text(json.dumps(figures, indent=2), encoding="utf-8")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
