"""`learnvllm hint`, `solution`, `reset` and `update`: help with a file, and ways to get it back."""

from __future__ import annotations

import argparse
import difflib

from rich.syntax import Syntax
from rich.text import Text

from learnvllm.study import files, progress, update
from learnvllm.study.catalogue import find_exercise, usable_exercises
from learnvllm.study.commands.check import next_exercise
from learnvllm.study.exercise import Exercise, StudyError
from learnvllm.study.terminal import console, print_json, print_markdown, shown


def configure_hint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("exercise", nargs="?", metavar="ID", help="Left out: the next one.")
    parser.add_argument("--again", action="store_true", help="Those already shown; no further one.")
    parser.add_argument("--json", action="store_true", help="For programs.")


def run_hint(args: argparse.Namespace) -> int:
    exercise = find_exercise(args.exercise) if args.exercise is not None else next_exercise()
    if exercise is None:
        raise StudyError("Every exercise has passed: name one to see its hints.")
    record = progress.load_progress().of(exercise.id)
    before = record.hints
    count = before if args.again else progress.record_hint(exercise)
    if args.json:
        print_json({"id": exercise.id, "hints": list(exercise.hints[:count]), "of": len(exercise.hints)})
        return 0
    out = console()
    first = 0 if args.again or record.passed else before
    for number, hint in enumerate(exercise.hints[first:count], first + 1):
        out.print(f"[head]Hint {number} of {len(exercise.hints)}[/] [faint]({exercise.id})[/]")
        print_markdown(out, hint)
        out.print()
    out.print(_about_more_hints(exercise, first, count), soft_wrap=True)
    return 0


def _about_more_hints(exercise: Exercise, first: int, count: int) -> str:
    """What the reader of hints `first` to `count` may want next."""
    again = f"[cmd]learnvllm hint {exercise.name} --again[/]"
    if count == 0:
        return f"No hint was shown yet. [cmd]learnvllm hint {exercise.name}[/] shows the first."
    if first == count:
        solution = f"[cmd]learnvllm solution {exercise.name} --give-up[/]"
        return f"There are no more; {again} repeats them. If you are stuck: {solution} (it is recorded)."
    return f"[faint]Those before it: {again}[/]" if first else ""


# -------------------------------------------------------------------------------------------------- solution


def configure_solution(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("exercise", nargs="?", metavar="ID", help="Left out: the next one.")
    parser.add_argument("--give-up", action="store_true", help="Show it before you have passed; recorded.")
    parser.add_argument("--json", action="store_true", help="For programs.")


def run_solution(args: argparse.Namespace) -> int:
    exercise = find_exercise(args.exercise) if args.exercise else next_exercise()
    if exercise is None:
        raise StudyError("Every exercise has passed: name one to see our code for it.")
    solution = reveal(exercise, give_up=args.give_up)
    if args.json:
        print_json({"id": exercise.id, "module": exercise.module, "diff": solution})
        return 0
    out = console()
    out.print(f"The reference's code for {exercise.id}, from [head]{exercise.module}[/]:\n", soft_wrap=True)
    if out.is_terminal:
        out.print(Syntax(solution, "diff", word_wrap=True, background_color="default"))
    else:
        out.out(solution, end="")
    return 0


def reveal(exercise: Exercise, *, give_up: bool) -> str:
    """What turns the starter into the solution, as a diff with whole functions around it.

    Raises:
        StudyError: it has not passed, and nobody gave up.
    """
    from learnvllm.study.starters import render_solution, render_starter

    record = progress.load_progress().of(exercise.id)
    if not record.passed and not record.gave_up:
        if not give_up:
            hints = f"{record.hints} of {len(exercise.hints)} hints shown"
            if record.hints < len(exercise.hints):
                hints += f" (one more: `learnvllm hint {exercise.name}`)"
            raise StudyError(
                f"{exercise.id} has not passed yet, {hints}. --give-up shows the solution, and is recorded."
            )
        progress.record_giving_up(exercise.id)
    starter, solution = (
        text.splitlines(keepends=True) for text in (render_starter(exercise), render_solution(exercise))
    )
    return "".join(difflib.unified_diff(starter, solution, "starter", "solution", n=6))


# -------------------------------------------------------------------------------------------- reset, update


def configure_reset(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("exercise", metavar="ID", help="An exercise, or the end of its id.")
    parser.add_argument("--json", action="store_true", help="For programs.")


def run_reset(args: argparse.Namespace) -> int:
    exercise = find_exercise(args.exercise)
    # Read first: a state file that cannot be used is found before anything is written.
    had_passed = progress.load_progress().of(exercise.id).passed is not None
    backup = update.reset(exercise)
    progress.record_reset(exercise.id)
    if args.json:
        print_json({"id": exercise.id, "file": str(exercise.path), "backup": backup and str(backup)})
        return 0
    out = console()
    again = "is the starter again" if backup else "is the starter"
    out.print(f"{shown(exercise.path)} {again}.", soft_wrap=True)
    if backup:
        out.print(f"What it was before: {shown(backup)}", soft_wrap=True)
    if had_passed:
        out.print("That it had passed no longer counts: the next check decides.")
    return 0


def configure_update(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("exercise", nargs="?", metavar="ID", help="Left out: all.")
    add(
        "--resolved",
        action="store_true",
        help="You have settled the conflict in your file: take it as it is.",
    )
    add("--json", action="store_true", help="For programs.")


def run_update(args: argparse.Namespace) -> int:
    exercises = [find_exercise(args.exercise)] if args.exercise is not None else usable_exercises()
    if args.resolved:
        if not args.exercise:
            raise StudyError("--resolved needs the exercise's ID.")
        update.resolved(exercises[0])
        if args.json:
            print_json({"id": exercises[0].id, "outcome": "resolved"})
        else:
            console().print(
                f"{exercises[0].id}: your file is taken as it is; later updates start from today's starter."
            )
        return 0
    one_by_one = update.update if args.exercise else update.try_update
    updates = [one_by_one(exercise) for exercise in exercises]
    if args.json:
        print_json({"updates": [done.to_json() for done in updates]})
    else:
        _show_updates(updates)
    return int(any(done.outcome in (update.CONFLICT, update.NO_BASE, update.FAILED) for done in updates))


def _show_updates(updates: list[update.Update]) -> None:
    out = console()
    for done in updates:
        for line in _lines_of(done):
            out.print(Text(line), soft_wrap=True)
    same = sum(done.outcome == update.UNCHANGED for done in updates)
    out.print(f"{same} of {len(updates)} files were up to date.")


def _lines_of(done: update.Update) -> list[str]:
    name, exercise = done.exercise.id, done.exercise
    backup = [f"  before: {files.shown(done.backup)}"] if done.backup else []
    settle = f"  then `learnvllm update {exercise.name} --resolved`"
    if done.outcome == update.FAILED:
        return [f"{name}: not updated. {done.problem}"]
    if done.outcome == update.MERGED:
        return [f"{name}: the new starter was merged into your code; check it again.", *backup]
    if done.outcome == update.REPLACED:
        return [f"{name}: you had not changed it; it is the new starter.", *backup]
    if done.outcome == update.CONFLICT and done.proposal:
        merged = files.shown(done.proposal)
        return [f"{name}: the starter changed where you did. Your file is as it was.",
                f"  both, with conflict marks: {merged}", *backup, settle]  # fmt: skip
    if done.outcome == update.NO_BASE and done.proposal:
        unknown = f"{name}: never checked, so the starter you began with is unknown. Your file is as it was."
        return [unknown, f"  the new starter: {files.shown(done.proposal)}", settle]
    return []
