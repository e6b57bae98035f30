"""Plausible wrong versions of the reference: what a grader must notice.

A mutant is one edit of the exercise's solution. A grader that lets one pass would let the same mistake of a
learner pass.
"""

from __future__ import annotations

import ast

import msgspec

from learnvllm.study.exercise import Exercise, StudyError


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One wrong version."""

    name: str
    why: str
    """Why it is wrong, in a sentence."""
    old: str
    """Text that occurs once in the solution."""
    new: str


class _MutantsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mutant: tuple[Mutant, ...] = ()


def load_mutants(exercise: Exercise) -> tuple[Mutant, ...]:
    """Those of `mutants.toml`. Raises StudyError that names the file and what is wrong in it."""
    path = exercise.mutants_path
    try:
        mutants = msgspec.toml.decode(path.read_bytes(), type=_MutantsFile).mutant
    except OSError as error:
        raise StudyError(f"{path} cannot be read: {error.strerror}.") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise StudyError(f"{path}: {error}.") from None
    names = [mutant.name for mutant in mutants]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise StudyError(f"{path}: two mutants are called {twice[0]!r}.")
    return mutants


def find_mutant(exercise: Exercise, name: str) -> Mutant:
    """Raises StudyError when there is none of that name."""
    for mutant in load_mutants(exercise):
        if mutant.name == name:
            return mutant
    raise StudyError(
        f"{exercise.mutants_path}: there is no mutant {name!r}, which [bug] in exercise.toml names."
    )


def apply_mutant(solution: str, mutant: Mutant) -> str:
    """The solution with the mutant's edit. Raises StudyError when the edit does not fit."""
    count = solution.count(mutant.old)
    if count != 1:
        raise StudyError(
            f"mutant {mutant.name!r}: its old text occurs {count} times in the solution, not once."
        )
    mutated = solution.replace(mutant.old, mutant.new)
    try:
        changed = ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(solution))
    except SyntaxError as error:
        raise StudyError(f"mutant {mutant.name!r}: its edit gives no Python: {error.msg}.") from None
    if not changed:
        raise StudyError(f"mutant {mutant.name!r}: its edit changes no code.")
    return mutated
