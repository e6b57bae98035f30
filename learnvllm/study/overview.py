"""Where the learner stands: the eleven days and the site, as a checklist computed from what is there.

Nothing here is stored: it is read from the catalogue, progress.toml, the journal and the folders. Terminal,
study screen, journal and site all show this one view.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learnvllm.study import files
from learnvllm.study.catalogue import (
    DAYS,
    PAGES,
    Day,
    find_day,
    find_notebooks,
    usable_exercises,
    warn_once,
)
from learnvllm.study.exercise import Exercise, StudyError
from learnvllm.study.journal import Entry, read_entry
from learnvllm.study.progress import ExerciseRecord, Progress, load_progress, progress_path, quiz_key

SITE_SOURCES = {".md", ".py", ".yml", ".toml", ".json", ".js", ".css", ".html", ".svg"}
"""Endings of the files that the site is made of."""


@dataclass(frozen=True)
class ExerciseState:
    """An exercise and what is recorded of it."""

    exercise: Exercise
    record: ExerciseRecord

    @property
    def status(self) -> str:
        """`open`, `started`, `passed`, or `changed`: passed, but the exercise is another since."""
        if self.record.passed:
            changed = self.record.exercise_hash != self.exercise.content_hash()
            return "changed" if changed else "passed"
        return "started" if self.record.attempts or self.record.hints or self.record.gave_up else "open"

    @property
    def done(self) -> bool:
        return self.status == "passed"

    def to_json(self) -> dict[str, Any]:
        record = self.record
        return {
            "id": self.exercise.id,
            "title": self.exercise.title,
            "level": self.exercise.level,
            "minutes": self.exercise.minutes,
            "file": str(self.exercise.path),
            "status": self.status,
            "points": record.points,
            "max_points": self.exercise.points,
            "attempts": record.attempts,
            "hints": record.hints,
            "max_hints": len(self.exercise.hints),
            "passed": record.passed and record.passed.isoformat(),
            "gave_up": record.gave_up and record.gave_up.isoformat(),
        }


@dataclass(frozen=True)
class QuizState:
    """A day's quiz: how many questions, how many answered, how many rightly."""

    questions: int
    answered: int
    right: int


@dataclass(frozen=True)
class DayState:
    """One day: its material and how far the learner is."""

    day: Day
    pages: tuple[Path, ...]
    notebooks: tuple[Path, ...]
    exercises: tuple[ExerciseState, ...]
    quiz: QuizState | None
    journal: Entry | None
    journal_problem: str | None = None

    @property
    def points(self) -> float:
        return sum(state.record.points for state in self.exercises)

    @property
    def max_points(self) -> int:
        return sum(state.exercise.points for state in self.exercises)

    @property
    def passed(self) -> int:
        return sum(state.done for state in self.exercises)

    @property
    def status(self) -> str:
        """`coming` (nothing yet), `to read` (pages and no exercises yet), `open`, `started`, or `done`: all
        exercises passed, the quiz right.
        """
        if not self.exercises:
            return "to read" if self.pages else "coming"
        quiz_done = self.quiz is None or self.quiz.right == self.quiz.questions
        if self.passed == len(self.exercises) and quiz_done:
            return "done"
        touched = any(state.status != "open" for state in self.exercises)
        return "started" if touched or (self.quiz is not None and self.quiz.answered) else "open"

    def to_json(self) -> dict[str, Any]:
        return {
            "day": self.day.number,
            "topic": self.day.topic,
            "title": self.day.title,
            "status": self.status,
            "points": self.points,
            "max_points": self.max_points,
            "reading": [str(path) for path in self.pages],
            "notebooks": [str(path) for path in self.notebooks],
            "exercises": [state.to_json() for state in self.exercises],
            "quiz": self.quiz and vars(self.quiz),
            "journal": self.journal and str(self.journal.path),
            "journal_problem": self.journal_problem,
        }


@dataclass(frozen=True)
class Item:
    """One line of a checklist."""

    done: bool
    text: str


@dataclass(frozen=True)
class Course:
    """Everything: the eleven days and the site."""

    days: tuple[DayState, ...]
    site: tuple[Item, ...]
    vanished: tuple[str, ...]
    """Ids that are recorded, but whose exercise is not there (any more)."""

    @property
    def exercises(self) -> tuple[ExerciseState, ...]:
        return tuple(state for day in self.days for state in day.exercises)

    @property
    def passed(self) -> int:
        return sum(day.passed for day in self.days)

    @property
    def points(self) -> float:
        return sum(day.points for day in self.days)

    @property
    def max_points(self) -> int:
        return sum(day.max_points for day in self.days)

    def next_exercise(self) -> ExerciseState | None:
        """The first, in order of the days, that has not passed; None when all have."""
        return next((state for state in self.exercises if not state.done), None)

    def to_json(self) -> dict[str, Any]:
        following = self.next_exercise()
        return {
            "points": self.points,
            "max_points": self.max_points,
            "next": following and following.exercise.id,
            "days": [day.to_json() for day in self.days],
            "site": [vars(item) for item in self.site],
            "vanished": list(self.vanished),
        }


def course(progress: Progress | None = None) -> Course:
    """The state of everything. Raises StudyError for a broken progress.toml or exercise.toml."""
    progress = progress or load_progress()
    exercises = usable_exercises()
    days = tuple(_day_state(day, exercises, progress) for day in DAYS)
    known = {exercise.id for exercise in exercises}
    return Course(days, _site_items(days), tuple(name for name in progress.exercises if name not in known))


def day_state(number: int, progress: Progress | None = None) -> DayState:
    """One day's state. Raises StudyError when there is no such day."""
    return _day_state(find_day(number), usable_exercises(), progress or load_progress())


def _day_state(day: Day, exercises: list[Exercise], progress: Progress) -> DayState:
    entry, problem = None, None
    try:
        entry = read_entry(day.number)
    except StudyError as error:  # one broken journal entry must not hide the rest
        problem = str(error)
    return DayState(
        day=day,
        pages=pages_of(day),
        notebooks=tuple(find_notebooks(day)),
        exercises=tuple(
            ExerciseState(exercise, progress.exercises.get(exercise.id, ExerciseRecord()))
            for exercise in exercises
            if exercise.day == day.number
        ),
        quiz=_quiz_state(day, progress),
        journal=entry,
        journal_problem=problem,
    )


def _quiz_state(day: Day, progress: Progress) -> QuizState | None:
    from learnvllm.study.quiz import load_quiz, quiz_path

    if not quiz_path(day.number).is_file():
        return None
    try:
        quiz = load_quiz(day.number)
    except StudyError as error:  # as with an exercise.toml: one wrong file must not keep them from the others
        warn_once(str(error))
        return None
    record = progress.quizzes.get(quiz_key(day.number))
    ids = {question.id for question in quiz.questions}
    answers = {name: a for name, a in record.answers.items() if name in ids} if record else {}
    return QuizState(len(ids), len(answers), sum(answer.right for answer in answers.values()))


def pages_of(day: Day) -> tuple[Path, ...]:
    """The day's pages that are there; its first page alone while it is the only one."""
    folder = files.ROOT / "docs" / "topics" / day.topic
    usual = tuple(path for name in PAGES if (path := folder / f"{name}.md").is_file())
    first = folder / "index.md"
    return usual or ((first,) if first.is_file() else ())


def _site_items(days: tuple[DayState, ...]) -> tuple[Item, ...]:
    """What the locally built site has, and whether it is as new as what it is made of."""
    pages = sum(len(day.pages) == len(PAGES) for day in days)
    notebooks = sum(bool(day.notebooks) for day in days)
    quizzes = sum(day.quiz is not None for day in days)
    built = files.ROOT / "site" / "index.html"
    made = built.stat().st_mtime if built.is_file() else None
    current = made is not None and made >= _newest_source()
    return (
        Item(pages == len(days), f"pages of {pages} of {len(days)} days"),
        Item(notebooks == len(days), f"notebooks of {notebooks} of {len(days)} days"),
        Item(quizzes == len(days), f"quizzes of {quizzes} of {len(days)} days"),
        Item(made is not None, "built here: site/index.html" if made else "built here: `make site`"),
        Item(current, "newer than every page, exercise and journal entry" if current else
             "newer than every page, exercise and journal entry: `make site` makes it so"),
    )  # fmt: skip


def _newest_source() -> float:
    """When the site's sources last changed, the learner's own included."""
    folders = [files.ROOT / name for name in ("docs", "notebooks", "quizzes", "exercises")]
    found = (path for folder in [*folders, files.journal_home()] for path in folder.rglob("*"))
    sources = (path for path in found if path.suffix in SITE_SOURCES)
    stamps = [path.stat().st_mtime for path in [*sources, progress_path()] if path.is_file()]
    return max(stamps, default=0.0)
