"""What your code costs: `bench throughput`, with and without --mine, kept side by side for the journal."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from learnvllm.study import overlay
from learnvllm.study.exercise import StudyError
from learnvllm.study.progress import progress_path, record_benchmark

WHAT, UNIT = "output tokens per second", "tok/s"


@contextmanager
def recording(args: argparse.Namespace) -> Iterator[None]:
    """Around a benchmark: what it writes to --output-json is recorded, if somebody is learning here.

    Runs with the same flags are one workload. Under --shadow nothing is recorded: two engines' work is done.
    """
    learning = overlay.active or progress_path().exists()
    if args.kind != "throughput" or args.shadow or not learning:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="learnvllm-bench-") as folder:
        given = args.output_json
        args.output_json = given or str(Path(folder) / "figures.json")
        yield
        value = json.loads(Path(args.output_json).read_text("utf-8"))["figures"][WHAT]
        args.output_json = given
    parts = [plan.exercise.id for plan in overlay.active if plan.parts] or None
    try:
        record_benchmark(_workload(args), value, what=WHAT, unit=UNIT, parts=parts)
    except StudyError as error:  # the figures have been printed: no reason to fail
        print(f"Not recorded for your journal: {error}", file=sys.stderr)


def _workload(args: argparse.Namespace) -> str:
    """Its name in the journal: the numbers that make it, and the flags of the engine that were given."""
    model = args.model or "the embedded model"
    lengths = f"{args.input_len} tokens in, {args.output_len} out"
    name = f"throughput of {model}: {args.num_prompts} prompts, {lengths}"
    told = {
        flag: getattr(args, flag, None)
        for flag in ("async_scheduling", "scheduling_policy", "max_num_seqs", "max_num_batched_tokens")
    }
    return name + "".join(f", {flag}={value}" for flag, value in told.items() if value is not None)
