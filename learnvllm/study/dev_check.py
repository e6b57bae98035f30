"""Prove every exercise: its starter fails, the reference passes, and each plausible wrong version is noticed.

The kill matrix says which test notices which mutant. A result stands as long as the exercise and all of our
modules behind it stay as they are, so a second run is quick.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from learnvllm.study import files, proof, structure
from learnvllm.study.exercise import Exercise, StudyError
from learnvllm.study.grading import GradeReport, grade
from learnvllm.study.mutants import Mutant, apply_mutant, load_mutants
from learnvllm.study.problems import BROKE_DOWN
from learnvllm.study.proof import Killed, KnownTest, Proof
from learnvllm.study.sources import PACKAGE, reference_hash, reference_path
from learnvllm.study.starters import render_solution, render_starter

GRADER_LIMIT_S = 15.0
"""A grader that takes longer on the reference is too slow for the loop of a learner."""
RUN_LIMIT_S = 60.0
STARTER, REFERENCE, MUTANT = "starter", "reference", "mutant "


class CheckReport(msgspec.Struct, frozen=True):
    """What is known of one exercise. No mistakes: it is proved."""

    exercise: str
    mistakes: tuple[str, ...]
    starter_points: float
    """What an untouched file gets."""
    max_points: float
    reference_seconds: float
    proof: Proof | None
    cached: bool = False


@dataclass(frozen=True)
class _Runs:
    """The graders that run for one exercise, and what they prove: what was there when they were begun."""

    exercise: Exercise
    key: str
    content: str
    grader: str
    mutants: tuple[Mutant, ...]
    futures: dict[str, Future[GradeReport]]
    """By what each grades."""


def check(
    exercises: Sequence[Exercise],
    *,
    jobs: int = 1,
    fresh: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> list[CheckReport]:
    """Prove `exercises` and write the proof.json of each that holds.

    Args:
        jobs: graders that run at a time.
        fresh: run all, whatever is known.
        progress: called with a line after every grader.
    """
    reports: list[CheckReport] = []
    with tempfile.TemporaryDirectory(prefix="learnvllm-check-") as scratch, ThreadPoolExecutor(jobs) as pool:
        try:
            plans = [_plan(exercise, pool, Path(scratch), fresh) for exercise in exercises]
            total = sum(len(plan.futures) for plan in plans if isinstance(plan, _Runs))
            done = 0
            for plan in plans:
                if isinstance(plan, CheckReport):
                    reports.append(plan)
                    continue
                for name, future in plan.futures.items():
                    future.result()
                    done += 1
                    progress(f"{done} of {total}: {plan.exercise.id}, {name}")
                reports.append(_judge(plan))
        except BaseException:  # Ctrl-C before all: the pool would first run whatever is still to come
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [_with_structure(exercise, report) for exercise, report in zip(exercises, reports)]


def _with_structure(exercise: Exercise, report: CheckReport) -> CheckReport:
    """What the graders said, and what is wrong besides: pages may change while the rest stands."""
    wrong = dict.fromkeys((*structure.mistakes(exercise), *report.mistakes))
    return msgspec.structs.replace(report, mistakes=tuple(wrong))


def _plan(exercise: Exercise, pool: ThreadPoolExecutor, scratch: Path, fresh: bool) -> CheckReport | _Runs:
    """What is known of the exercise, or what is to be run to know it."""
    try:
        content, grader = proof.content(exercise), proof.grader_hash(exercise)
        key = _key(exercise, content)
        known = None if fresh else _remembered(exercise, key)
        if known is not None:
            return known
        mutants = load_mutants(exercise)
        return _Runs(exercise, key, content, grader, mutants, _start(exercise, mutants, pool, scratch))
    except StudyError as error:
        return CheckReport(exercise.id, (str(error),), 0, exercise.points, 0, None)


def _start(
    exercise: Exercise, mutants: Sequence[Mutant], pool: ThreadPoolExecutor, scratch: Path
) -> dict[str, Future[GradeReport]]:
    solution = render_solution(exercise)
    texts = {STARTER: render_starter(exercise), REFERENCE: solution}
    texts |= {MUTANT + mutant.name: apply_mutant(solution, mutant) for mutant in mutants}
    futures = {}
    for number, (name, text) in enumerate(texts.items()):
        path = scratch / exercise.id / str(number) / "exercise.py"
        path.parent.mkdir(parents=True)
        path.write_text(text, "utf-8")
        futures[name] = pool.submit(grade, exercise, path, timeout_s=RUN_LIMIT_S)
    return futures


# ------------------------------------------------------------------------------------------- the judgement


def _judge(runs: _Runs) -> CheckReport:
    exercise = runs.exercise
    reports = {name: future.result() for name, future in runs.futures.items()}
    reference, starter = reports[REFERENCE], reports[STARTER]
    mutants = tuple(
        Killed(mutant.name, mutant.why, _killers(reports[MUTANT + mutant.name])) for mutant in runs.mutants
    )
    wrong = _mistakes_of_reference(reference)
    if starter.passed:
        wrong.append("the starter passes: there is nothing to do")
    wrong += [f"no test notices the mutant {mutant.name!r}" for mutant in mutants if not mutant.killed_by]
    wrong += [
        f"{name}: {report.problem}"
        for name, report in reports.items()
        if report.problem and report.problem.startswith(BROKE_DOWN)
    ]
    proved = Proof(
        exercise=exercise.id,
        content=runs.content,
        grader=runs.grader,
        tests=tuple(KnownTest(test.name, int(test.max_points)) for test in reference.tests),
        mutants=mutants,
    )
    report = CheckReport(
        exercise.id, tuple(wrong), starter.points, exercise.points, round(reference.seconds, 1), proved
    )
    if not wrong:
        proof.write_proof(exercise, proved)
        _remember(exercise, runs.key, report)
    return report


def _killers(report: GradeReport) -> tuple[str, ...]:
    """The tests that fail; what keeps the grader from running at all is a kill, too."""
    names = tuple(test.name for test in report.tests if test.outcome not in ("passed", "not_run"))
    return names or ((report.problem.partition(":")[0],) if report.problem else ())


def _mistakes_of_reference(report: GradeReport) -> list[str]:
    wrong = []
    if report.problem:
        wrong.append(f"the reference: {report.problem}")
    wrong += [
        f"the reference fails {test.name}: {test.message}"
        for test in report.tests
        if test.outcome != "passed"
    ]
    wrong += [
        f"{test.name} has points({test.max_points:g}): use a whole number above 0"
        for test in report.tests
        if test.max_points <= 0 or test.max_points % 1
    ]
    if report.seconds > GRADER_LIMIT_S:
        wrong.append(
            f"the grader takes {report.seconds:.1f} s on the reference, {GRADER_LIMIT_S:g} s at most"
        )
    return wrong


# --------------------------------------------------------------------------------------------- the memory


class _Memory(msgspec.Struct, frozen=True):
    """A result, and what it was of."""

    key: str
    report: CheckReport


def _key(exercise: Exercise, content: str) -> str:
    """Of all that a result depends on: the exercise, and every module of ours that it or its grader needs."""
    machinery = [PACKAGE / "study" / name for name in ("dev_check.py", "grader_plugin.py")]
    behind = [*machinery, exercise.test_path, reference_path(exercise.module), *proof.support_files(exercise)]
    return hashlib.sha256((content + reference_hash(behind)).encode()).hexdigest()


def _memory_path(exercise: Exercise) -> Path:
    return exercise.root.parent / ".learnvllm" / "dev_check" / f"{exercise.id}.json"


def _remembered(exercise: Exercise, key: str) -> CheckReport | None:
    try:
        memory = msgspec.json.decode(_memory_path(exercise).read_bytes(), type=_Memory)
    except (OSError, msgspec.MsgspecError):
        return None
    if memory.key != key or memory.report.proof is None:
        return None
    proof.write_proof(exercise, memory.report.proof)
    return msgspec.structs.replace(memory.report, cached=True)


def _remember(exercise: Exercise, key: str, report: CheckReport) -> None:
    with contextlib.suppress(StudyError):  # only costs time, the next time
        files.write_text(_memory_path(exercise), msgspec.json.encode(_Memory(key, report)).decode())


# --------------------------------------------------------------------------------------------- the command


def command(
    exercises: Sequence[Exercise], *, as_json: bool, fresh: bool, jobs: int, markdown: str | None
) -> int:
    """`learnvllm dev check`: returns 1 when an exercise is not proved."""
    if jobs < 1:
        raise StudyError(f"--jobs {jobs}: use 1 or more.")
    on_screen = sys.stderr.isatty()

    def progress(line: str) -> None:
        before, end = ("\r\x1b[K", "") if on_screen else ("", "\n")
        print(f"{before}{line}", end=end, file=sys.stderr, flush=True)

    reports = check(exercises, jobs=jobs, fresh=fresh, progress=progress)
    if on_screen:
        print("\r\x1b[K", end="", file=sys.stderr)
    if as_json:
        print(json.dumps(to_json(reports), indent=1))
    else:
        for report in reports:
            print(as_text(report))
        print(summary(reports))
    if markdown:
        files.write_text(Path(markdown), proof.kill_matrix_markdown(exercises))
    return int(any(report.mistakes for report in reports))


def to_json(reports: Sequence[CheckReport]) -> dict[str, Any]:
    killed, mutants = count_killed(reports)
    return {
        "proved": not any(report.mistakes for report in reports),
        "exercises": [msgspec.to_builtins(report) for report in reports],
        "mutants": mutants,
        "killed": killed,
    }


def count_killed(reports: Sequence[CheckReport]) -> tuple[int, int]:
    """Mutants killed, and mutants in all."""
    mutants = [mutant for report in reports if report.proof for mutant in report.proof.mutants]
    return sum(bool(mutant.killed_by) for mutant in mutants), len(mutants)


def summary(reports: Sequence[CheckReport]) -> str:
    killed, mutants = count_killed(reports)
    wrong = [report.exercise for report in reports if report.mistakes]
    known = sum(report.cached for report in reports)
    return (
        f"{len(reports) - len(wrong)} of {len(reports)} exercises proved ({known} known from before), "
        f"{killed} of {mutants} mutants killed." + (f"\nNot proved: {', '.join(wrong)}" if wrong else "")
    )


def as_text(report: CheckReport) -> str:
    """The exercise's kill matrix: a row a mutant, a column a test, x where the test fails."""
    lines = [f"{report.exercise}: {'NOT PROVED' if report.mistakes else 'proved'}"]
    if report.proof is not None:
        killed, mutants = count_killed([report])
        lines[0] += (
            f", starter {report.starter_points:g} of {report.max_points:g} points, "
            f"reference in {report.reference_seconds:.1f} s, {killed} of {mutants} mutants killed"
        )
        names = [test.name for test in report.proof.tests]
        lines += [f"  {number:>2}  {name}" for number, name in enumerate(names, 1)]
        width = max((len(mutant.name) for mutant in report.proof.mutants), default=0)
        lines.append(" " * (width + 4) + "".join(f"{number:>3}" for number in range(1, len(names) + 1)))
        for mutant in report.proof.mutants:
            marks = "".join(f"{'x' if name in mutant.killed_by else '.':>3}" for name in names)
            others = [name for name in mutant.killed_by if name not in names]
            lines.append(f"    {mutant.name:<{width}}{marks}{'  ' + others[0] if others else ''}")
    lines += [f"  ! {mistake}" for mistake in report.mistakes]
    return "\n".join(lines) + "\n"
