"""What the learner's code costs or saves: one benchmark with it and without, in turns, for the journal.

In turns, because a machine is not as fast now as it was a minute ago; the median of each side counts. Every
run is a process of its own, since code is put in place when the engine is imported.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

from learnvllm.study.exercise import StudyError
from learnvllm.study.overlay_bench import UNIT, WHAT
from learnvllm.study.overview import DayState
from learnvllm.study.progress import Benchmark, record_benchmark
from learnvllm.study.terminal import seconds

FLAGS = ("--num-prompts", "16", "--input-len", "64", "--output-len", "32")
WORKLOAD = "throughput, 16 prompts, 64 tokens in, 32 out"
ROUNDS = 3


def measure(day: DayState, say: Callable[[str], None]) -> Benchmark:
    """Measure the day's exercises that have passed, and record both figures.

    Args:
        say: told how far it is and how long the rest will take, and in the end the result.

    Raises:
        StudyError: none has passed, or the benchmark failed.
    """
    parts = [state.exercise.id for state in day.exercises if state.record.passed]
    if not parts:
        raise StudyError(
            f"None of day {day.day.number}'s exercises has passed: there is nothing of yours to measure."
        )
    reference: list[float] = []
    mine: list[float] = []
    turns = [("the reference", reference, []), ("your code", mine, parts)] * ROUNDS
    say(f"{len(turns)} runs, the reference and your code in turns; how long they take, the first will tell.")
    begun = time.monotonic()
    for done, (name, figures, chosen) in enumerate(turns):
        spent = time.monotonic() - begun
        left = f", about {seconds(spent / done * (len(turns) - done))} left" if done else ""
        say(f"run {done + 1} of {len(turns)}: {name}{left}")
        figures.append(run_benchmark(chosen))
    workload = f"day {day.day.number}, {WORKLOAD}"
    record_benchmark(workload, statistics.median(reference), what=WHAT, unit=UNIT)
    measured = record_benchmark(workload, statistics.median(mine), what=WHAT, unit=UNIT, parts=parts)
    # What differs by less than runs of one and the same code do is no difference.
    say(f"{measured.told()} The reference's own runs: {min(reference):.4g} to {max(reference):.4g}.")
    return measured


def run_benchmark(parts: Sequence[str]) -> float:
    """`learnvllm bench throughput`, with these exercises in place. Raises StudyError with its last words.

    A benchmark records itself for the journal; this one does so in a home that is thrown away, as it is the
    median of several that counts.
    """
    mine = ("--mine", ",".join(parts)) if parts else ()
    command = [sys.executable, "-m", "learnvllm", "bench", "throughput", *FLAGS, "--json", *mine]
    with tempfile.TemporaryDirectory(prefix="learnvllm-measure-") as home:
        env = {**os.environ, "LEARNVLLM_STUDY_HOME": home}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise StudyError(f"The benchmark failed (exit code {done.returncode}): {last}")
    figure: float = json.loads(done.stdout.strip().splitlines()[-1])["figures"][WHAT]
    return figure
