"""One check: grade the learner's file, record what came of it, bring the journal up to date.

Terminal and study screen both call this. A state file or journal that cannot be used costs the learner the
record, which is said, and never the grading.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learnvllm.study import grading, journal, update
from learnvllm.study.exercise import Exercise, StudyError
from learnvllm.study.grading import GradeReport
from learnvllm.study.progress import ExerciseRecord, record_check

TIME_LIMIT_S = 60.0


@dataclass(frozen=True)
class Checked:
    """A graded file and what became of the record."""

    exercise: Exercise
    report: GradeReport
    record: ExerciseRecord | None
    """None: it could not be written, and `problems` says why."""
    journal: Path | None
    """The day's entry, where a pass brought it up to date."""
    problems: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        record = self.record
        state = record and {
            "attempts": record.attempts,
            "best_points": record.points,
            "hints": record.hints,
            "passed": record.passed and record.passed.isoformat(),
        }
        return {**self.report.to_json(), "recorded": state, "problems": list(self.problems)}


def check(
    exercise: Exercise,
    *,
    timeout_s: float = TIME_LIMIT_S,
    on_test: Callable[[str], None] | None = None,
    on_tick: Callable[[], None] | None = None,
) -> Checked:
    """Grade and record. Ctrl-C meanwhile, or whatever `on_tick` raises, records nothing."""
    problems = []
    record = entry = None
    try:
        update.keep_base(exercise)
    except StudyError as error:
        problems.append(f"The starter was not kept for later updates: {error}")
    report = grading.grade(exercise, timeout_s=timeout_s, on_test=on_test, on_tick=on_tick)
    try:
        record = record_check(exercise, report)
    except StudyError as error:
        problems.append(f"Not recorded: {error}")
    if record is not None and report.passed:
        try:
            entry = journal.refresh(exercise.day).path
        except StudyError as error:
            problems.append(f"The journal was not brought up to date: {error}")
    return Checked(exercise, report, record, entry, tuple(problems))
