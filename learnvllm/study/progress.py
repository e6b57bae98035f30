"""What the learner has done: exercises, hints, quiz answers, measurements, in `.learnvllm/progress.toml`.

Keyed by the exercise's stable id; what this version does not know is kept as it is. Every change reads,
changes and writes under a lock; a file that cannot be read is reported with its line and never overwritten.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from learnvllm.study import files, toml_text
from learnvllm.study.exercise import Exercise, StudyError

if TYPE_CHECKING:
    from learnvllm.study.grading import GradeReport

VERSION = 1
"""Of the file's format. A file of a higher one is left alone."""
_HEADER = "# Your progress in learnvllm, kept by `learnvllm check` and its friends. Comments are not kept."


class ExerciseRecord(msgspec.Struct, omit_defaults=True):
    """What is known of one exercise."""

    passed: datetime | None = None
    """When it first passed."""
    points: float = 0
    """The most that a check gave."""
    attempts: int = 0
    """Versions of the learner's file that were checked: neither the starter nor one checked twice."""
    hints: int = 0
    """How many were shown."""
    gave_up: datetime | None = None
    """When the solution was shown before passing."""
    checked: datetime | None = None
    """The last check, which `checked_passed` says the outcome of and `checked_hash` the file."""
    checked_passed: bool = False
    checked_hash: str = ""
    passed_hash: str = ""
    """Of the learner's file that passed last."""
    exercise_hash: str = ""
    """Of the exercise (Exercise.content_hash) at the last check."""


class Answer(msgspec.Struct, omit_defaults=True):
    """The last answer to one question of a quiz."""

    right: bool
    given: str
    at: datetime


class QuizRecord(msgspec.Struct, omit_defaults=True):
    """The answers to one day's quiz, by question id."""

    answers: dict[str, Answer] = msgspec.field(default_factory=dict)


class Benchmark(msgspec.Struct, omit_defaults=True):
    """One workload, measured with the reference and with the learner's code."""

    what: str = ""
    """The figure, e.g. output tokens per second; more is better."""
    unit: str = ""
    reference: float | None = None
    mine: float | None = None
    parts: list[str] = msgspec.field(default_factory=list)
    """Exercises that `mine` ran with."""
    at: datetime | None = None

    @property
    def change(self) -> float | None:
        """Mine beside the reference: +0.05 is five per cent more. None until both are measured."""
        if self.mine is None or not self.reference:
            return None
        return self.mine / self.reference - 1

    def told(self) -> str:
        """In a sentence, once both are measured."""
        if self.mine is None or self.reference is None or self.change is None:
            return f"{self.what}: not measured on both sides yet."
        return (
            f"{self.what} {self.mine:.4g} {self.unit} with your code, "
            f"{self.reference:.4g} with the reference ({self.change:+.1%})."
        )


class Progress:
    """progress.toml: typed views of what we know, and the document with what we do not."""

    def __init__(self, document: dict[str, Any], path: Path, text: str = "") -> None:
        self._document, self._path, self._text = document, path, text
        self.exercises = self._section("exercises", ExerciseRecord)
        self.quizzes = self._section("quizzes", QuizRecord)
        self.benchmarks = self._section("benchmarks", Benchmark)

    def of(self, exercise_id: str) -> ExerciseRecord:
        """The record of an exercise, a new one where there is none."""
        return self.exercises.setdefault(exercise_id, ExerciseRecord())

    def text(self) -> str:
        """The file's new content: known fields as they are now, all others as they were."""
        document = {"version": VERSION, **self._document}
        for name, records in (
            ("exercises", self.exercises), ("quizzes", self.quizzes), ("benchmarks", self.benchmarks)
        ):  # fmt: skip
            old = self._document.get(name, {})
            document[name] = {**old, **{key: _merge(old.get(key, {}), r) for key, r in records.items()}}
            if not document[name]:
                del document[name]
        return f"{_HEADER}\n{toml_text.dump(document)}"

    def _section(self, name: str, kind: type[_Record]) -> dict[str, _Record]:
        section = self._document.get(name, {})
        if not isinstance(section, dict):
            raise self._error(f"{name} must be a table", "", name)
        records = {}
        for key, value in section.items():
            try:
                records[key] = msgspec.convert(value, kind)
            except msgspec.ValidationError as error:
                said, _, where = str(error).partition(" - at `$")
                path: list[str] = _spell_out(where, value, kind)
                raise self._error(
                    f"{'.'.join((name, key, *path))}: {said}", key, *(path[:2] or [key])
                ) from None
            for field in kind.__struct_fields__:  # nan and inf are numbers to TOML, and none to JSON
                number = getattr(records[key], field)
                if isinstance(number, float) and not math.isfinite(number):
                    raise self._error(f"{name}.{key}.{field}: {number} is no number", key, field)
        return records

    def _error(self, said: str, table: str, *fields: str) -> StudyError:
        line = max(_find_line(self._text, table, field) for field in fields or ("",))
        return StudyError(
            f"{files.shown(self._path)}, line {line}: {said}. Nothing was changed. Correct the line, "
            "or move the file away to start anew."
        )


_Record = TypeVar("_Record", ExerciseRecord, QuizRecord, Benchmark)


def _spell_out(where: str, value: dict[str, Any], kind: type[msgspec.Struct]) -> list[str]:
    """The fields on the way to what is wrong, outermost first. msgspec names no key of a table: find it."""
    fields = re.findall(r"\w+|\[\.\.\.\]", where)
    if fields[1:2] == ["[...]"] and isinstance(table := value[fields[0]], dict):
        for key, item in table.items():
            try:
                msgspec.convert({fields[0]: {key: item}}, kind)
            except msgspec.ValidationError:
                fields[1] = key
                break
    return [field for field in fields if field != "[...]"]


def _merge(old: dict[str, Any], record: msgspec.Struct) -> dict[str, Any]:
    """Fields in their own order, then those that only the file knows."""
    new = msgspec.to_builtins(record, builtin_types=(datetime,))
    return {**new, **{key: value for key, value in old.items() if key not in record.__struct_fields__}}


def _find_line(text: str, table: str, field: str) -> int:
    """The line of `field` in the table whose header names `table`; or else the header's, or 1."""
    start = 1
    lines = text.splitlines()
    if table:
        headers = [n for n, line in enumerate(lines, 1) if line.startswith("[") and table in line]
        start = headers[0] if headers else 1
    for number, line in enumerate(lines[start - 1 :], start):
        if re.match(rf'\s*\[*"?{re.escape(field)}\b', line) and field:
            return number
    return start


# ------------------------------------------------------------------------------------------ reading, writing


def progress_path() -> Path:
    """The state file."""
    return files.study_home() / "progress.toml"


def load_progress() -> Progress:
    """What is recorded; empty where there is no file.

    Raises:
        StudyError: the file is no TOML, or a value in it makes no sense, or a newer version wrote it.
    """
    path = progress_path()
    try:
        text = files.read_text(path)
    except FileNotFoundError:
        return Progress({}, path)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        said, _, where = str(error).partition(" (at ")
        found = re.search(r"line (\d+)", where)
        line = int(found[1]) if found else max(1, len(text.splitlines()))
        raise StudyError(
            f"{files.shown(path)}, line {line}: {said}. Nothing was changed. Correct the line, "
            "or move the file away to start anew."
        ) from None
    version = document.get("version", VERSION)
    if type(version) is not int or version > VERSION:  # true is an int, too
        raise StudyError(
            f"{files.shown(path)}, line {_find_line(text, '', 'version')}: it was written by another "
            f"learnvllm (version = {version!r}; this one knows {VERSION}). Nothing was changed. Update "
            "learnvllm, or move the file away to start anew."
        )
    return Progress(document, path, text)


@contextmanager
def changing_progress() -> Iterator[Progress]:
    """Read, let the caller change, write: one process at a time. An exception leaves the file as it was."""
    path = progress_path()
    with files.locked(path):
        progress = load_progress()
        yield progress
        files.write_text(path, progress.text())


# ------------------------------------------------------------------------------------------------- recording


def record_check(exercise: Exercise, report: GradeReport) -> ExerciseRecord:
    """One graded file. A grader that could not do its work gives no points."""
    passed, subject_hash = report.passed, report.subject_hash
    with changing_progress() as progress:
        record = progress.of(exercise.id)
        record.attempts += record.checked_hash != subject_hash and _was_written(report)
        record.checked, record.checked_passed, record.checked_hash = files.now(), passed, subject_hash
        record.exercise_hash = exercise.content_hash()
        record.points = max(record.points, 0 if report.problem else report.points)
        if passed:
            record.passed, record.passed_hash = record.passed or record.checked, subject_hash
        return record


def _was_written(report: GradeReport) -> bool:
    """The untouched starter is no attempt: all that its tests meet is TODO."""
    return report.problem is not None or any(test.outcome != "not_written" for test in report.tests)


def record_hint(exercise: Exercise) -> int:
    """One more of its hints is shown; returns how many are. Once it has passed all are, and none counts."""
    with changing_progress() as progress:
        record = progress.of(exercise.id)
        if record.passed:
            return len(exercise.hints)
        record.hints = max(record.hints, min(record.hints + 1, len(exercise.hints)))
        return record.hints


def record_giving_up(exercise_id: str) -> None:
    """The solution was shown before passing; the first time counts."""
    with changing_progress() as progress:
        record = progress.of(exercise_id)
        record.gave_up = record.gave_up or files.now()


def record_reset(exercise_id: str) -> None:
    """The exercise is open again; how often it was tried, and with how many hints, stays."""
    with changing_progress() as progress:
        record = progress.of(exercise_id)
        record.passed, record.points, record.passed_hash = None, 0, ""
        record.checked, record.checked_passed, record.checked_hash = None, False, ""


def record_answer(day: int, question_id: str, *, right: bool, given: str) -> None:
    """One answer to a day's quiz; the last one counts."""
    with changing_progress() as progress:
        quiz = progress.quizzes.setdefault(quiz_key(day), QuizRecord())
        quiz.answers[question_id] = Answer(right, given, files.now())


def record_benchmark(
    workload: str, value: float, *, what: str, unit: str, parts: list[str] | None = None
) -> Benchmark:
    """One measurement. `parts`: the exercises whose code ran; None: the reference was measured."""
    with changing_progress() as progress:
        benchmark = progress.benchmarks.setdefault(workload, Benchmark())
        benchmark.what, benchmark.unit, benchmark.at = what, unit, files.now()
        if parts is None:
            benchmark.reference = float(value)
        else:
            benchmark.mine, benchmark.parts = float(value), list(parts)
        return benchmark


def quiz_key(day: int) -> str:
    """Under which a day's quiz is recorded."""
    return f"day{day:02d}"
