"""Which exercises are to run in the engine: those that passed as they are, all that are written, or by name.

What has not passed runs only when it is named, and what is still TODO not at all; each is said in one line
with the way out of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from learnvllm.study.catalogue import find_exercise, place, usable_exercises
from learnvllm.study.exercise import Exercise, StudyError, file_hash, read_bytes
from learnvllm.study.overlay_plan import Plan, check_conflicts, make_plan
from learnvllm.study.progress import ExerciseRecord, load_progress

PASSED, ALL = "passed", "all"


@dataclass
class Selection:
    """The plans to carry out, and what is to be said about them."""

    plans: list[Plan] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def unproved(self) -> set[str]:
        """Ids of those that are to run although they have not passed as they are now."""
        records = load_progress().exercises
        return {plan.exercise.id for plan in self.plans if not _has_passed(plan.exercise, records)}


def select(words: Iterable[str]) -> Selection:
    """What `passed`, `all` and ids (commas between them are fine) come to.

    Raises:
        StudyError: an id is unknown, a file cannot be used, nothing is left to run, two exercises clash.
    """
    names = list(dict.fromkeys(part.strip() for word in words for part in word.split(",") if part.strip()))
    found = [_find(name) for name in names if name not in (PASSED, ALL)]
    named = {exercise.id: exercise for exercise in found}
    chosen = dict(named)
    selection = Selection()
    if PASSED in names:
        _add_passed(chosen, selection.notes)
    if ALL in names:
        _add_all(chosen, named)
    if not chosen:
        nothing = (
            "no exercise has passed as it is now, so there is no code of yours to run. `learnvllm next` says "
            "where to go on, `learnvllm check ID` grades; --mine ID runs one that has not passed."
        )
        raise StudyError(" ".join([nothing, *selection.notes]))
    asked_for = chosen if ALL in names else named
    for exercise in sorted(chosen.values(), key=place):
        try:
            selection.plans.append(_plan(exercise))
        except StudyError as error:
            if exercise.id in asked_for:
                raise
            selection.notes.append(f"{exercise.id} has passed and is left out all the same: {error}")
    if not selection.plans:
        raise StudyError(" ".join(selection.notes))
    check_conflicts(selection.plans)
    return selection


def _plan(exercise: Exercise) -> Plan:
    """Raises StudyError when the file cannot run in the engine."""
    plan = make_plan(exercise)
    if plan.todo:
        left = [str(part) for part in plan.todo]
        those = ", ".join(left[:-1]) + " and " + left[-1] if left[1:] else left[0]
        are, them = ("are", "them") if left[1:] else ("is", "it")
        raise StudyError(
            f"{exercise.id} cannot run, as {those} {are} still TODO. Write {them}, then: "
            f"learnvllm check {exercise.id}"
        )
    return plan


def _has_passed(exercise: Exercise, records: Mapping[str, ExerciseRecord]) -> bool:
    record = records.get(exercise.id)
    return record is not None and record.passed_hash == file_hash(exercise.path)


def _find(name: str) -> Exercise:
    try:
        return find_exercise(name)
    except StudyError as error:
        raise StudyError(
            f"{error} (--mine takes the word behind it: a MODEL or PROMPT goes before.)"
        ) from None


def _add_passed(chosen: dict[str, Exercise], notes: list[str]) -> None:
    records = load_progress().exercises
    for exercise in usable_exercises():
        record = records.get(exercise.id)
        if record is None or not record.passed_hash or exercise.id in chosen:
            continue
        if _has_passed(exercise, records):
            chosen[exercise.id] = exercise
        else:
            notes.append(
                f"{exercise.id} was changed since it passed and is left out: learnvllm check {exercise.id}"
            )


def _add_all(chosen: dict[str, Exercise], named: Mapping[str, Exercise]) -> None:
    from learnvllm.study.starters import render_starter  # late: parses with libcst

    records = load_progress().exercises
    for exercise in usable_exercises():
        if exercise.id in named or read_bytes(exercise.path) in (b"", render_starter(exercise).encode()):
            continue
        if not _has_passed(exercise, records):
            raise StudyError(
                f"{exercise.id} has not passed as it is now: learnvllm check {exercise.id}. Or run what has "
                f"passed (--mine passed), or name it to run it all the same (--mine all,{exercise.id})."
            )
        chosen[exercise.id] = exercise
