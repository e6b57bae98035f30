"""The eleven days, and the pages, notebooks and exercises of each, listed once.

Navigation, progress, journal, command line and tests all read this; nothing else repeats it.
"""

from __future__ import annotations

import difflib
import logging
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from learnvllm.architecture import envs
from learnvllm.study import files
from learnvllm.study.exercise import Exercise, StudyError, read_exercise

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Day:
    """One topic."""

    number: int
    topic: str
    """Its package in learnvllm/, and its folder in docs/topics/."""
    title: str

    @property
    def folder(self) -> str:
        """Its folder in exercises/ and notebooks/."""
        return f"day{self.number:02d}_{self.topic}"


DAYS: tuple[Day, ...] = (
    Day(1, "architecture", "Architecture"),
    Day(2, "engine_core", "Engine core"),
    Day(3, "scheduling", "Scheduling"),
    Day(4, "kv_cache", "KV cache"),
    Day(5, "executor_worker", "Executor and worker"),
    Day(6, "model_layers", "Model layers"),
    Day(7, "quantization", "Quantization"),
    Day(8, "speculative_decoding", "Speculative decoding"),
    Day(9, "multimodal", "Multimodal"),
    Day(10, "distributed", "Distributed"),
    Day(11, "serving", "Serving"),
)


def find_day(number: int) -> Day:
    """Raises StudyError when there is no such day."""
    for day in DAYS:
        if day.number == number:
            return day
    raise StudyError(f"There is no day {number}: the days are 1 to {DAYS[-1].number}.")


PAGES = ("concepts", "exercises", "walkthrough", "upstream", "quiz")
"""Of every day, in the order of the work: the walkthrough shows solutions, so it follows the exercises."""


def find_notebooks(day: Day | None = None) -> list[Path]:
    """A day's notebooks in their order; where none is named, all in the order of the days."""
    folder = day.folder if day else "day[0-9][0-9]_*"
    return sorted((files.ROOT / "notebooks").glob(f"{folder}/[0-9][0-9]_*.py"))


def exercises_root() -> Path:
    """LEARNVLLM_EXERCISES, or exercises/ of the checkout. Raises StudyError when neither is a folder."""
    chosen: Path | None = envs.get("LEARNVLLM_EXERCISES")
    root = chosen or files.ROOT / "exercises"
    if not root.is_dir():
        told = (
            f"LEARNVLLM_EXERCISES names no folder: {root}."
            if chosen
            else f"There is no folder {root}; the exercises come with a checkout of learnvllm."
        )
        raise StudyError(f"{told} Set LEARNVLLM_EXERCISES to your exercises/ folder.")
    return root.resolve()


def place(exercise: Exercise) -> tuple[int, int, str]:
    """Where it stands among all: by day, then `order`, then name."""
    return exercise.day, exercise.order, exercise.name


def load_exercises() -> list[Exercise]:
    """All of them, in the order of `place`. Raises StudyError for an exercise.toml that is wrong."""
    found, broken = _read_all()
    for problem in broken.values():
        raise StudyError(problem)
    return found


def exercises_of(day: Day) -> list[Exercise]:
    """A day's. Raises StudyError for an exercise.toml that is wrong."""
    return [exercise for exercise in load_exercises() if exercise.day == day.number]


def usable_exercises() -> list[Exercise]:
    """The same for a learner at work, whom one wrong exercise.toml must not keep from the others: it is named
    in the log, once."""
    found, broken = _read_all()
    for problem in broken.values():
        warn_once(problem)
    return found


def _read_all() -> tuple[list[Exercise], dict[str, str]]:
    """The exercises; and of each that cannot be read its id and why."""
    root = exercises_root()
    found, broken = [], {}
    for day in DAYS:
        for path in sorted((root / day.folder).glob("*/exercise.toml")):
            try:
                found.append(read_exercise(path.parent, day.number, day.topic))
            except StudyError as error:
                broken[f"{day.topic}.{path.parent.name}"] = (
                    f"{error} `git checkout -- {files.shown(path)}` brings back the original."
                )
    return sorted(found, key=place), broken


@cache
def warn_once(problem: str) -> None:
    """In the log, and only once a process."""
    logger.warning("Left out: %s", problem)


def find_exercise(name: str) -> Exercise:
    """By its id or any unambiguous end of it; a path to its folder or file will do, too.

    Raises:
        StudyError: no exercise goes by that name, or several do.
    """
    exercises, broken = _read_all()
    path = Path(os.path.abspath(name)) if "/" in name or "\\" in name else None
    path = path and path.parent.resolve() / path.name  # exercise.py itself may be a link to anywhere
    for exercise in exercises:
        if exercise.id == name or (path and (path == exercise.folder or path.parent == exercise.folder)):
            return exercise
    ending = [e for e in exercises if e.name == name]
    ending = ending or [e for e in exercises if name and e.id.endswith(name)]
    if len(ending) == 1:
        return ending[0]
    if ending:
        raise StudyError(f"{name!r} could be {', '.join(e.id for e in ending)}: say more of it.")
    for exercise_id, problem in broken.items():
        if name and exercise_id.endswith(name):
            raise StudyError(problem)
    names = {word: e.id for e in exercises for word in (e.id, e.name)}
    close = dict.fromkeys(names[word] for word in difflib.get_close_matches(name, names, n=3))
    told = f"Did you mean {' or '.join(close)}?" if close else "`learnvllm progress` lists all."
    raise StudyError(f"There is no exercise {name!r}. {told}")
