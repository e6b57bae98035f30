"""Grade one file: run the exercise's pytest in a process of its own and say what came of it.

The code under grading may loop for ever, print without end, eat all memory, leave the process or be no Python
at all: the report names each of these, and none reaches whoever asked. As JSON it is exercism's results.json.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from learnvllm.study import bounded_process, problems, proof
from learnvllm.study.bounded_process import Ending
from learnvllm.study.bounded_text import cut
from learnvllm.study.exercise import Exercise, StudyError, file_hash
from learnvllm.study.failures import todo_members
from learnvllm.study.grader_events import Events, last_line, read_events
from learnvllm.study.subject import SourceError, parse_source

EXERCISM = {
    "passed": "pass",
    "failed": "fail",
    "not_written": "fail",
    "time_limit": "error",
    "not_run": "error",
}
KEPT_OUTPUT = 10_000
"""Characters of what a test prints that a report keeps."""
_KEPT_VARIABLES = ("LEARNVLLM_HOME", "LEARNVLLM_NUM_THREADS", "LEARNVLLM_CPU_KERNELS", "LEARNVLLM_EXERCISES")


@dataclass(frozen=True)
class TestReport:
    """One test function; its parametrizations count as one."""

    __test__ = False  # no test for pytest to collect

    name: str
    outcome: str
    """passed, failed, not_written, not_run, time_limit (it was running when the time was up)."""
    points: float
    """Points won: all of the test's, or none."""
    max_points: float
    message: str = ""
    """Why it did not pass, in words for a learner."""
    output: str = ""
    """What the code printed meanwhile; the middle of a long print is cut out."""
    seconds: float = 0.0


@dataclass(frozen=True)
class GradeReport:
    """What became of grading one file."""

    exercise_id: str
    subject: Path
    """Whose file was graded."""
    passed: bool
    points: float
    max_points: float
    tests: tuple[TestReport, ...]
    problem: str | None
    """What kept the grader from its work: a syntax error, the time limit, sys.exit, a test that is gone."""
    seconds: float
    subject_hash: str
    notes: tuple[str, ...] = ()
    """Worth knowing, though nothing is wrong with the result."""
    not_written: tuple[str, ...] = ()
    """The members that are still TODO, whether or not a test came as far as them."""
    output: str = field(default="", repr=False)
    """The end of what the process itself printed: useful when it ended before its time."""

    def to_json(self) -> dict[str, Any]:
        """exercism's results.json (version 3), with what we know besides."""
        return {
            "version": 3,
            "status": "pass" if self.passed else "error" if self.problem else "fail",
            "message": self.problem,
            "exercise": self.exercise_id,
            "subject": str(self.subject),
            "subject_hash": self.subject_hash,
            "points": self.points,
            "max_points": self.max_points,
            "seconds": round(self.seconds, 2),
            "notes": list(self.notes),
            "tests": [
                {
                    "name": test.name,
                    "status": EXERCISM[test.outcome],
                    "outcome": test.outcome,
                    "points": test.points,
                    "max_points": test.max_points,
                    "message": test.message or None,
                    "output": test.output or None,
                    "seconds": test.seconds,
                }
                for test in self.tests
            ],
        }


def grade(
    exercise: Exercise,
    subject: Path | None = None,
    *,
    timeout_s: float = 60,
    on_test: Callable[[str], None] | None = None,
    on_tick: Callable[[], None] | None = None,
) -> GradeReport:
    """Grade `subject`, or the learner's exercise.py. Never hangs, never raises for what the file contains.

    Args:
        timeout_s: seconds until the process and all that it started are ended.
        on_test: called with the name of each test as it begins, for a progress display.
        on_tick: called a few times a second meanwhile; what it raises ends the grader and reaches the caller.

    Raises:
        StudyError: the `study` extra is not installed.
    """
    for package in ("pytest", "hypothesis"):
        if importlib.util.find_spec(package) is None:
            raise StudyError(f'Graders need {package}: pip install "learnvllm[study]", or `make setup`.')
    path = subject or exercise.path
    started = time.monotonic()
    problem = problems.before_run(exercise, path)
    path = Path(os.path.realpath(path))
    report = partial(_report, exercise, path, _hash_of(path), started)
    if problem:
        return report(problem=problem)
    with tempfile.TemporaryDirectory(prefix="learnvllm-grade-", ignore_cleanup_errors=True) as scratch:
        events_path = Path(scratch) / "events.jsonl"
        ending = bounded_process.run(
            _command(exercise, events_path, max(timeout_s - 2, timeout_s / 2)),
            cwd=exercise.root,
            env=_environment(path, Path(scratch)),
            timeout_s=timeout_s,
            watch=_announcer(events_path, on_test, on_tick),
        )
        events = read_events(events_path)
        line = last_line(events_path.with_suffix(".stack"), path)
    problem = problems.of_run(exercise, path, ending, events, timeout_s, line)
    problem = problem or problems.of_points(exercise, events)
    return report(_test_reports(events, ending), problem, proof.changed_grader(exercise), ending.output)


def _hash_of(path: Path) -> str:
    """Taken before the run: what is saved while the grader is at work was not graded."""
    try:
        return file_hash(path)
    except StudyError:  # `problem` says that it cannot be read
        return ""


def _report(
    exercise: Exercise,
    path: Path,
    subject_hash: str,
    started: float,
    tests: tuple[TestReport, ...] = (),
    problem: str | None = None,
    note: str | None = None,
    output: str = "",
) -> GradeReport:
    return GradeReport(
        exercise_id=exercise.id,
        subject=path,
        passed=problem is None and bool(tests) and all(test.outcome == "passed" for test in tests),
        points=sum(test.points for test in tests),
        max_points=exercise.points,
        tests=tests,
        problem=problem,
        seconds=time.monotonic() - started,
        subject_hash=subject_hash,
        notes=(note,) if note else (),
        not_written=_still_todo(path),
        output=output,
    )


def _still_todo(path: Path) -> tuple[str, ...]:
    try:
        # A pipe, say, would be waited for.
        return tuple(todo_members(parse_source(path))) if path.is_file() else ()
    except SourceError:  # `problem` says what is wrong
        return ()


def _command(exercise: Exercise, events: Path, stack_after: float) -> list[str]:
    """pytest with nothing loaded that the grader does not need; what tests print goes to our plugin."""
    plugins = ("_hypothesis_pytestplugin", "learnvllm.study.grader_plugin")
    return [
        *(sys.executable, "-X", "utf8", "-m", "pytest", str(exercise.test_path)),
        *("-q", "-s", "--no-header", "--no-summary", "--tb=short", "-p", "no:faulthandler"),
        *(word for plugin in plugins for word in ("-p", plugin)),
        *("-c", str(exercise.root / "pytest.ini")),
        *("--grader-events", str(events), "--grader-stack-after", str(stack_after)),
    ]


def _environment(subject: Path, scratch: Path) -> dict[str, str]:
    """The learner's shell has no say in it: no overlay, no other plugins, the same hash seed every time."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("LEARNVLLM_", "PYTEST_", "HYPOTHESIS_")) or name in _KEPT_VARIABLES
    }
    return env | {
        "LEARNVLLM_SUBJECT": str(subject),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / "hypothesis"),
        "HF_HUB_OFFLINE": "1",
    }


def _announcer(
    events_path: Path, on_test: Callable[[str], None] | None, on_tick: Callable[[], None] | None
) -> Callable[[], None]:
    """Called again and again while the grader runs: passes on which tests have begun."""
    told = 0

    def announce() -> None:
        nonlocal told
        if on_tick is not None:
            on_tick()
        if on_test is None:
            return
        names = read_events(events_path).started
        for name in names[told:]:
            on_test(name)
        told = len(names)

    return announce


def _test_reports(events: Events, ending: Ending) -> tuple[TestReport, ...]:
    """One report a test function, in the order of the file."""
    reports = []
    for name, worth in events.collected.items():
        parts = events.results.get(name, [])
        worst = next((part for part in parts if part.outcome != "passed"), None)
        if worst is not None:
            outcome, message = worst.outcome, worst.message
        elif events.running_test == name and not events.finished:
            outcome = "time_limit" if ending.reason == "time" else "failed"
            message = (
                "it was running when the process was stopped" if ending.reason else "it ended the process"
            )
        elif len(parts) < events.cases[name]:
            outcome, message = "not_run", "not run"
        else:
            outcome, message = "passed", ""
        reports.append(
            TestReport(
                name=name,
                outcome=outcome,
                points=worth if outcome == "passed" else 0,
                max_points=worth,
                message=message,
                output=cut("".join(part.output for part in parts), KEPT_OUTPUT),
                seconds=round(sum(part.seconds for part in parts), 3),
            )
        )
    return tuple(reports)
