"""One exercise: what its `exercise.toml` says, checked when it is read.

An exercise names symbols of the reference ("targets") and the members of them that the learner writes
("blanks"); everything else, the starter file included, is generated from that.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from learnvllm.architecture.errors import LearnVLLMError

LEVELS = ("fill-in", "module", "break-and-fix", "extend")
"""One method; a module from its contract; a subtly broken file to repair; a feature for the engine."""

MIN_HINTS, MIN_MUTANTS = 3, 5
FILES = ("exercise.toml", "exercise.py", "test_exercise.py", "mutants.toml")


class StudyError(LearnVLLMError):
    """The companion cannot do what was asked: a name, a file or a state is wrong. One line for a user."""


class Blank(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A member whose body the learner writes."""

    member: str
    """`Class.method`, `function`, or `Class` for every method of it."""
    todo: str
    omit: bool = False
    """Leave it out of the starter altogether: a helper of ours that the learner may do without."""


class Bug(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A break-and-fix exercise's starter is the reference with this mutant's edit."""

    mutant: str


class _ExerciseFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """exercise.toml, field by field."""

    id: str
    title: str
    level: str
    minutes: int
    points: int
    summary: str
    targets: tuple[str, ...]
    hints: tuple[str, ...]
    order: int = 100
    reading: tuple[str, ...] = ()
    prerequisites: tuple[str, ...] = ()
    out_of_scope: str = ""
    blank: tuple[Blank, ...] = ()
    bug: Bug | None = None


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One exercise and where it lives."""

    id: str
    """`<topic>.<name>`; stable for ever, as progress is kept under it."""
    title: str
    level: str
    minutes: int
    points: int
    summary: str
    reading: tuple[str, ...]
    """Pages, relative to docs/."""
    prerequisites: tuple[str, ...]
    targets: tuple[str, ...]
    """`module:Symbol`, all of one module."""
    out_of_scope: str
    blanks: tuple[Blank, ...]
    hints: tuple[str, ...]
    """From a nudge to a pointer into vLLM's source."""
    bug: Bug | None
    order: int
    day: int
    folder: Path

    @property
    def topic(self) -> str:
        return self.id.partition(".")[0]

    @property
    def name(self) -> str:
        return self.id.partition(".")[2]

    @property
    def path(self) -> Path:
        """The learner's file."""
        return self.folder / "exercise.py"

    @property
    def test_path(self) -> Path:
        """The grader."""
        return self.folder / "test_exercise.py"

    @property
    def mutants_path(self) -> Path:
        return self.folder / "mutants.toml"

    @property
    def module(self) -> str:
        """The reference module of the targets."""
        return self.targets[0].partition(":")[0]

    @property
    def symbols(self) -> tuple[str, ...]:
        """The targets' names within it."""
        return tuple(target.partition(":")[2] for target in self.targets)

    @property
    def module_name(self) -> str:
        """The learner's file as a module: the same name in every process, so that its objects pickle."""
        return f"learnvllm_exercises.{self.folder.parent.name}.{self.folder.name}"

    def content_hash(self) -> str:
        """Of what a pass was earned with: the grader, its points, the targets and what of them was blank.

        Texts (title, hints, reading, TODOs) may be improved without asking anybody to check again.
        """
        asked = sorted((blank.member, blank.omit) for blank in self.blanks)
        task = (self.points, self.targets, asked, self.bug and self.bug.mutant)
        return hashlib.sha256(repr(task).encode() + read_bytes(self.test_path)).hexdigest()


def read_exercise(folder: Path, day: int, topic: str) -> Exercise:
    """Read `folder`/exercise.toml. Raises StudyError that names the file and the field."""
    path = folder / "exercise.toml"
    try:
        told = msgspec.toml.decode(path.read_bytes(), type=_ExerciseFile)
    except OSError as error:
        raise StudyError(f"{path} cannot be read: {error.strerror}.") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise StudyError(f"{path}: {error}.") from None
    values = {name: getattr(told, name) for name in told.__struct_fields__ if name != "blank"}
    exercise = Exercise(**values, blanks=told.blank, day=day, folder=folder)
    wrong = _first_mistake(exercise, topic)
    if wrong:
        raise StudyError(f"{path}: {wrong}.")
    return exercise


def _first_mistake(exercise: Exercise, topic: str) -> str | None:
    """What a type cannot say. None when all is well."""
    expected = f"{topic}.{exercise.folder.name}"
    broken = exercise.level == "break-and-fix"
    modules = {target.partition(":")[0] for target in exercise.targets}
    checks = (
        (exercise.id == expected, f"id = {exercise.id!r} must be {expected!r}, after its folder"),
        (exercise.level in LEVELS, f"level = {exercise.level!r} is none of {', '.join(LEVELS)}"),
        (exercise.minutes > 0, f"minutes = {exercise.minutes} must be above 0"),
        (exercise.points > 0, f"points = {exercise.points} must be above 0"),
        (bool(exercise.targets), "targets is empty: name at least one module:Symbol"),
        (all(exercise.symbols) if exercise.targets else True, "a target has no ':Symbol' after its module"),
        (len(modules) <= 1, f"targets are of several modules ({', '.join(sorted(modules))}): use one"),
        (len(exercise.hints) >= MIN_HINTS, f"{len(exercise.hints)} hints: at least {MIN_HINTS} are needed"),
        (len(set(exercise.hints)) == len(exercise.hints), "two hints are the same"),
        (all(hint.strip() for hint in exercise.hints), "a hint is empty"),
        (
            broken == (exercise.bug is not None),
            "[bug] belongs to break-and-fix exercises, which need one",
        ),
        (broken != bool(exercise.blanks), "[[blank]] is needed, except in break-and-fix exercises"),
        (exercise.id not in exercise.prerequisites, "an exercise cannot be its own prerequisite"),
    )
    return next((message for holds, message in checks if not holds), None)


def read_bytes(path: Path) -> bytes:
    """A file's content with line ends as in git; nothing where there is none (a pipe would wait)."""
    try:
        return path.read_bytes().replace(b"\r\n", b"\n") if path.is_file() else b""
    except FileNotFoundError:
        return b""


def file_hash(path: Path) -> str:
    """SHA-256 of a file's content, the same on every system."""
    return hashlib.sha256(read_bytes(path)).hexdigest()
