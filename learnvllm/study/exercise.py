"""One exercise: what its `exercise.toml` says, checked when it is read.

An exercise names symbols of the reference ("targets") and the members of them that the learner writes
("blanks"); everything else, the starter file included, is generated from that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from learnvllm.architecture.errors import LearnVLLMError

LEVELS = {
    "fill-in": "write one method",
    "module": "write a module from its contract",
    "break-and-fix": "find the fault in a file that looks right",
    "extend": "add a feature to the engine",
}
"""What each asks for."""

MIN_HINTS, MIN_MUTANTS = 3, 5
EXERCISES_PACKAGE = "learnvllm_exercises"
"""Holds the learner's files as modules. It exists in memory only."""
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


class Exercise(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One exercise: exercise.toml, field by field, and where it lies."""

    id: str
    """`<topic>.<name>`; stable for ever, as progress is kept under it."""
    title: str
    level: str
    minutes: int
    points: int
    summary: str
    targets: tuple[str, ...]
    """`module:Symbol`, all of one module."""
    hints: tuple[str, ...]
    """From a nudge to a pointer into vLLM's source."""
    order: int = 100
    reading: tuple[str, ...] = ()
    """Pages, relative to docs/."""
    prerequisites: tuple[str, ...] = ()
    out_of_scope: str = ""
    flags: str = ""
    """What the engine has to be started with for this code to be reached; empty: it is by default."""
    blanks: tuple[Blank, ...] = msgspec.field(default=(), name="blank")
    bug: Bug | None = None
    day: int
    folder: Path

    @property
    def topic(self) -> str:
        return self.id.partition(".")[0]

    @property
    def name(self) -> str:
        return self.id.partition(".")[2]

    @property
    def root(self) -> Path:
        """exercises/, with what all graders share."""
        return self.folder.parent.parent

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
        return module_name(self.folder)

    def content_hash(self) -> str:
        """Of what a pass was earned with: the grader, its points, the targets and what of them was blank.

        Texts (title, hints, reading, TODOs) may be improved without asking anybody to check again.
        """
        asked = sorted((blank.member, blank.omit) for blank in self.blanks)
        task = (self.points, self.targets, asked, self.bug and self.bug.mutant)
        return hashlib.sha256(repr(task).encode() + read_bytes(self.test_path)).hexdigest()


def module_name(folder: Path) -> str:
    """An exercise's learner file as a module: the same name in every process, so that its objects pickle."""
    return f"{EXERCISES_PACKAGE}.{folder.parent.name}.{folder.name}"


def read_exercise(folder: Path, day: int, topic: str) -> Exercise:
    """Read `folder`/exercise.toml. Raises StudyError that names the file and the field."""
    path = folder / "exercise.toml"
    try:
        told = msgspec.toml.decode(path.read_bytes())
        if placed := told.keys() & {"day", "folder"}:
            raise ValueError(f"its place says what {' and '.join(sorted(placed))} would")
        exercise = msgspec.convert({**told, "day": day, "folder": folder}, Exercise)
    except OSError as error:
        raise StudyError(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:  # msgspec's errors are such, too
        raise StudyError(f"{path}: {error}.") from None
    wrong = next(_mistakes(exercise, topic), None)
    if wrong is not None:
        raise StudyError(f"{path}: {wrong}.")
    return exercise


def _mistakes(exercise: Exercise, topic: str) -> Iterator[str]:
    """What a type cannot say."""
    expected = f"{topic}.{exercise.folder.name}"
    if exercise.id != expected:
        yield f"id = {exercise.id!r} must be {expected!r}, after its folder"
    if exercise.level not in LEVELS:
        yield f"level = {exercise.level!r} is none of {', '.join(LEVELS)}"
    if exercise.minutes <= 0:
        yield f"minutes = {exercise.minutes} must be above 0"
    if exercise.points <= 0:
        yield f"points = {exercise.points} must be above 0"
    if not exercise.targets:
        yield "targets is empty: name at least one module:Symbol"
    if not all(exercise.symbols):
        yield "a target has no ':Symbol' after its module"
    modules = {target.partition(":")[0] for target in exercise.targets}
    if len(modules) > 1:
        yield f"targets are of several modules ({', '.join(sorted(modules))}): use one"
    if len(exercise.hints) < MIN_HINTS:
        yield f"{len(exercise.hints)} hints: at least {MIN_HINTS} are needed"
    if len(set(exercise.hints)) < len(exercise.hints):
        yield "two hints are the same"
    if not all(hint.strip() for hint in exercise.hints):
        yield "a hint is empty"
    broken = exercise.level == "break-and-fix"
    if broken != (exercise.bug is not None):
        yield "[bug] belongs to break-and-fix exercises, which need one"
    if broken == bool(exercise.blanks):
        yield "[[blank]] is needed, except in break-and-fix exercises"
    if exercise.id in exercise.prerequisites:
        yield "an exercise cannot be its own prerequisite"


def read_bytes(path: Path) -> bytes:
    """A file's content with line ends as in git; nothing where there is none (a pipe would wait).

    Raises:
        StudyError: it is there and cannot be read.
    """
    try:
        return path.read_bytes().replace(b"\r\n", b"\n") if path.is_file() else b""
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise StudyError(f"{path} cannot be read: {error.strerror}.") from None


def file_hash(path: Path) -> str:
    """SHA-256 of a file's content, the same on every system."""
    return hashlib.sha256(read_bytes(path)).hexdigest()
