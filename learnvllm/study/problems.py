"""What kept a grader from its work, in a sentence for the learner: no file, no Python, no end, no process.

Each function answers None when it has nothing to say.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

from learnvllm.study import proof
from learnvllm.study.bounded_process import MEMORY_LIMIT, Ending
from learnvllm.study.exercise import EXERCISES_PACKAGE, Exercise
from learnvllm.study.grader_events import Events
from learnvllm.study.subject import SourceError, SubjectError, parse_source

BROKE_DOWN = "The grader broke down"
"""Begins the problem that is pytest's, whatever the file under grading did."""

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def before_run(exercise: Exercise, path: Path) -> str | None:
    """What can be seen of the files themselves."""
    if problem := of_files(exercise, path):
        return problem
    try:
        tree = parse_source(path)
    except SourceError as error:
        return _of_source(path, error)
    if problem := of_targets(exercise, path, tree):
        return problem
    if problem := of_syntax(exercise.test_path):
        return f"{problem.rstrip('.')}. `git checkout -- {exercise.test_path}` brings back the original."
    return None


def of_syntax(path: Path) -> str | None:
    try:
        parse_source(path)
    except SourceError as error:
        return _of_source(path, error)
    return None


def _of_source(path: Path, error: SourceError) -> str:
    said = str(error)
    if said.startswith("it "):
        return f"{path.name} {said.removeprefix('it ')}."
    return f"{path.name}{', ' if said.startswith('line ') else ': '}{said}"  # ends with a line of code


def of_files(exercise: Exercise, path: Path) -> str | None:
    shared = (exercise.root / name for name in ("conftest.py", "pytest.ini"))
    for file in (path, exercise.test_path, *shared):
        if file.is_file():
            continue
        restored = f"{_restoring(exercise, file)} brings back the original."
        if file == path != exercise.path:  # not one of ours: nothing brings it back
            restored = "Name the file that is to be graded."
        if os.path.lexists(file):
            return f"{file.name} in {file.parent} is {_kind(file)}, no file. {restored}"
        others = sorted(other.name for other in exercise.folder.glob("*.py") if other != exercise.test_path)
        seen = f" (there is {', '.join(others)}: rename it back?)" if others and file == exercise.path else ""
        return f"{file.name} is missing from {file.parent}{seen}. {restored}"
    return None


def _restoring(exercise: Exercise, file: Path) -> str:
    return f"`learnvllm reset {exercise.id}`" if file == exercise.path else f"`git checkout -- {file}`"


def _kind(path: Path) -> str:
    if path.is_dir():
        return "a folder"
    if path.is_symlink() and not path.exists():
        return f"a link to nothing ({os.readlink(path)})"
    return "a pipe, a socket or a device"


def of_targets(exercise: Exercise, path: Path, tree: ast.Module) -> str | None:
    """A target that is imported is the reference's: all would pass with nothing written."""
    defined = {node.name for node in tree.body if isinstance(node, Definition)}
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "learnvllm"
        for alias in node.names
    }
    for symbol in exercise.symbols:
        if symbol not in defined and imported & {symbol, "*"}:
            return (
                f"{path.name} imports the reference's {symbol} instead of defining it. "
                f"`learnvllm reset {exercise.id}` brings the starter back (yours is kept)."
            )
    return None


def of_run(
    exercise: Exercise, path: Path, ending: Ending, events: Events, timeout_s: float, line: str | None
) -> str | None:
    """What kept the grader from reaching its end. `line`: where the file was when time ran short."""
    if events.collect_errors:
        return _in_plain_words(events.collect_errors[0], path)
    if events.collected:
        meanwhile = f"while {events.running} ran" if events.running else "between two tests"
    else:
        meanwhile = f"while {path.name} was imported"
    if events.exited:
        name, message = events.exited
        return f"{message}, while {name} ran. Library code raises an exception; it never leaves the process."
    if events.interrupted_by:
        return f"{events.interrupted_by} ended the run, {meanwhile}."
    if ending.reason == "time":
        where = f" It was at {line}." if line else ""
        return (
            f"Time limit: not done after {timeout_s:g} s, stopped {meanwhile}.{where} A loop that never ends?"
        )
    if ending.reason == "memory":
        limit = f"{MEMORY_LIMIT / 2**30:g} GiB"
        return f"Memory limit: above {limit}, stopped {meanwhile}. Does a list grow for ever?"
    if events.finished and not events.running:
        return None if events.collected else f"{exercise.test_path.name} holds no test any more."
    if events.internal_errors:
        return f"{BROKE_DOWN} {meanwhile}: {events.internal_errors[-1].strip().splitlines()[-1]}"
    how = f"signal {-ending.code}" if ending.code < 0 else f"exit code {ending.code}"
    last = ending.output.strip().splitlines()
    said = f" Its last words: {last[-1][:300]}" if last else ""
    return f"The process ended ({how}) {meanwhile}: os._exit, an interrupt, or a crash.{said}"


def _in_plain_words(error: str, path: Path) -> str:
    """Why the grader's file could not be imported: nearly always because of the file under grading."""
    first = error.strip().splitlines()[0].removeprefix(f"{SubjectError.__module__}.SubjectError: ")
    known = rf"AttributeError: module '{EXERCISES_PACKAGE}\..*' has no attribute '(\w+)'"
    gone = re.fullmatch(known, first)
    return f"{path.name} does not define {gone[1]}: was it renamed or deleted?" if gone else first


def of_points(exercise: Exercise, events: Events) -> str | None:
    """A grader from which a test was taken could be passed with the work undone."""
    worth = sum(events.collected.values())
    if worth == exercise.points:
        return None
    gone = sorted(set(proof.known_tests(exercise)) - events.collected.keys())
    which = f": {', '.join(gone)} missing" if gone else ""
    return (
        f"{exercise.test_path.name} has tests worth {worth:g} points, exercise.toml says "
        f"{exercise.points}{which}. `git checkout -- {exercise.test_path}` brings back the original."
    )
