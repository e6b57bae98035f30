"""New starters without losing the learner's code: a three-way merge of old starter, their file, new starter.

The base is the starter that the learner began with, kept in `.learnvllm/base/` at the first check or reset.
`git merge-file` does the merging; where it cannot, the learner's file stays as it is. Either way there is a
backup before anything is written.
"""

from __future__ import annotations

import ast
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learnvllm.study import files
from learnvllm.study.exercise import Exercise, StudyError
from learnvllm.study.starters import render_starter

UNCHANGED, REPLACED, MERGED, CONFLICT, NO_BASE = "unchanged", "replaced", "merged", "conflict", "no-base"
FAILED = "failed"


@dataclass(frozen=True)
class Update:
    """What became of one exercise's file."""

    exercise: Exercise
    outcome: str
    """`unchanged`; `replaced` by the new starter, as nothing was written in it yet; `merged`; `conflict` and
    `no-base` leave the learner's file alone, and so does `failed`: `problem` says why."""
    backup: Path | None = None
    proposal: Path | None = None
    """On a conflict: the merge with its conflict marks. Without a base: the new starter."""
    problem: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.exercise.id,
            "outcome": self.outcome,
            "file": str(self.exercise.path),
            "backup": self.backup and str(self.backup),
            "proposal": self.proposal and str(self.proposal),
            "problem": self.problem,
        }


def base_path(exercise: Exercise) -> Path:
    """The starter that the learner began with."""
    return files.study_home() / "base" / f"{exercise.id}.py"


def keep_base(exercise: Exercise) -> None:
    """Remember the starter as it is now, unless one is remembered already."""
    if not base_path(exercise).exists():
        files.write_text(base_path(exercise), render_starter(exercise))


def update(exercise: Exercise) -> Update:
    """Bring one exercise's file up to the starter that the reference gives now."""
    with files.locked(base_path(exercise)):
        return _update(exercise)


def _update(exercise: Exercise) -> Update:
    new = render_starter(exercise)
    base_file, path = base_path(exercise), exercise.path
    try:
        mine = files.read_text(path)
    except FileNotFoundError:
        files.write_text(path, new)
        files.write_text(base_file, new)
        return Update(exercise, REPLACED)
    base = files.read_text(base_file) if base_file.exists() else None
    if base is None and (mine == new or _committed(path) == new):  # what git brought is what they began with
        base = new
        files.write_text(base_file, new)
    if base == new:
        return Update(exercise, UNCHANGED)
    if base is None:
        return Update(exercise, NO_BASE, proposal=_propose(exercise, new))
    merged, conflicts = (new, False) if mine in (base, new) else merge(mine, base, new)
    if merged == mine and not conflicts:  # git has merged it already, when it pulled
        files.write_text(base_file, new)
        return Update(exercise, UNCHANGED)
    backup = files.back_up(path, exercise.id)
    if conflicts or (_parses(mine) and not _parses(merged)):
        return Update(exercise, CONFLICT, backup, _propose(exercise, merged))
    files.rewrite_text(path, merged)
    files.write_text(base_file, new)
    return Update(exercise, REPLACED if mine == base else MERGED, backup)


def try_update(exercise: Exercise) -> Update:
    """The same where others are to follow: one file that cannot be used does not stop them."""
    try:
        return update(exercise)
    except StudyError as error:
        return Update(exercise, FAILED, problem=str(error))


def resolved(exercise: Exercise) -> None:
    """The learner has put the new starter's changes into their file: it is the base from now on."""
    files.write_text(base_path(exercise), render_starter(exercise))
    _proposal_path(exercise).unlink(missing_ok=True)


def reset(exercise: Exercise) -> Path | None:
    """Put the starter back; returns where the learner's file was copied to, None where nothing was theirs."""
    starter = render_starter(exercise)
    path = exercise.path
    with files.locked(base_path(exercise)):
        untouched = not os.path.lexists(path) or (path.is_file() and path.read_bytes() == starter.encode())
        backup = None if untouched else files.back_up(path, exercise.id)
        files.write_text(path, starter)
        files.write_text(base_path(exercise), starter)
    return backup


def merge(mine: str, base: str, new: str) -> tuple[str, bool]:
    """Both changes of `base` in one text, and whether they conflict.

    Raises:
        StudyError: git is not there, or failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        names = ("mine", "base", "new")
        for name, text in zip(names, (mine, base, new)):
            Path(folder, name).write_text(text, encoding="utf-8", newline="\n")
        labels = ["-L", "your code", "-L", "the starter you began with", "-L", "the new starter"]
        try:
            done = subprocess.run(
                ["git", "merge-file", "-p", *labels, *names], cwd=folder, capture_output=True, check=False
            )
        except FileNotFoundError:
            raise StudyError("git is not installed: it merges new starters into your files.") from None
    if not 0 <= done.returncode <= 127:  # up to 127 it is the number of conflicts
        raise StudyError(f"git merge-file failed: {done.stderr.decode(errors='replace').strip()}.")
    return done.stdout.decode("utf-8"), done.returncode > 0


def _committed(path: Path) -> str | None:
    """The file as git last committed it; None where it did not, or there is no git."""
    command = ["git", "show", f"HEAD:./{path.name}"]
    try:
        done = subprocess.run(command, cwd=path.parent, capture_output=True, check=False)
    except OSError:
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None


def _proposal_path(exercise: Exercise) -> Path:
    return files.study_home() / "updates" / f"{exercise.id}.py"


def _propose(exercise: Exercise, text: str) -> Path:
    files.write_text(_proposal_path(exercise), text)
    return _proposal_path(exercise)


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
