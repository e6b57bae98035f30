"""`learnvllm check`: grade the learner's file, once or whenever it is saved, and say what to do next."""

from __future__ import annotations

import argparse
import math
import threading
import time
from contextlib import suppress

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from learnvllm.study import watch
from learnvllm.study.catalogue import find_exercise
from learnvllm.study.checking import TIME_LIMIT_S, Checked, check
from learnvllm.study.exercise import Exercise
from learnvllm.study.grading import TestReport
from learnvllm.study.overview import course
from learnvllm.study.terminal import console, plural, print_json, readable, shown

PASSED, FAILED = 0, 1
_FULL_MESSAGES = 3
"""Failures told in full; of the others the first line, so that those to begin with stay on the screen. Most
of the later ones have the same cause."""


def configure_check(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "exercise", nargs="?", metavar="ID", help="An exercise, or the end of its id; left out: the next one."
    )
    add(
        "--watch",
        action="store_true",
        help="Check again whenever the file is saved; without an ID, go on after a pass. Ctrl-C ends it.",
    )
    add("--verbose", action="store_true", help="Every message in full, and all that the code printed.")
    add(
        "--timeout",
        type=_seconds,
        default=TIME_LIMIT_S,
        metavar="S",
        help="Seconds until the code is stopped (default: %(default)g)",
    )
    add("--json", action="store_true", help="For programs; with --watch one object per check and line.")


def _seconds(text: str) -> float:
    """A time limit: without an end (inf) it would be none."""
    with suppress(ValueError):
        if 0 < float(text) < math.inf:
            return min(float(text), threading.TIMEOUT_MAX)
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")


def run_check(args: argparse.Namespace) -> int:
    exercise = find_exercise(args.exercise) if args.exercise is not None else next_exercise()
    if exercise is None:
        return _all_done(args.json)
    if args.watch:
        return _watch(exercise, args)
    return PASSED if _check_and_show(exercise, args).report.passed else FAILED


def next_exercise() -> Exercise | None:
    """The first that has not passed."""
    state = course().next_exercise()
    return state.exercise if state else None


def _all_done(as_json: bool) -> int:
    if as_json:
        print_json({"exercise": None, "message": "every exercise has passed"})
    else:
        console().print(
            "Every exercise has passed. `learnvllm progress` shows them; `learnvllm serve --mine` runs them."
        )
    return PASSED


def _check_and_show(exercise: Exercise, args: argparse.Namespace) -> Checked:
    out = console()
    if args.json:
        checked = check(exercise, timeout_s=args.timeout)
        print_json(checked.to_json(), compact=args.watch)
        return checked
    show_subject(out, exercise)
    if out.is_terminal:
        with out.status("grading …", spinner="line") as status:
            checked = check(
                exercise,
                timeout_s=args.timeout,
                on_test=lambda name: status.update(escape(readable(name))),
            )
    else:
        checked = check(exercise, timeout_s=args.timeout)
    show_report(out, checked, verbose=args.verbose)
    return checked


def _watch(exercise: Exercise, args: argparse.Namespace) -> int:
    """Until Ctrl-C, which is the way out and no error: the code says how the last check went."""
    follow = args.exercise is None
    passed = False
    try:
        while True:
            before = watch.state_of([exercise.path])
            checked = _check_and_show(exercise, args)
            passed = checked.report.passed
            following = next_exercise() if passed and follow else exercise
            if following is None:
                return _all_done(args.json)
            if following != exercise:
                exercise = following
                continue
            if not args.json:
                console().print(f"[faint]Watching {shown(exercise.path)}. Ctrl-C ends it.[/]\n")
            next(watch.changes([exercise.path], time.sleep, since=before))
    except KeyboardInterrupt:
        return PASSED if passed else FAILED


# --------------------------------------------------------------------------------------------------- showing


def show_subject(out: Console, exercise: Exercise) -> None:
    """Whose file is graded."""
    out.print(f"[head]{escape(exercise.title)}[/] [faint]({exercise.id}, {exercise.level})[/]")
    out.print(f"Grading your file {shown(exercise.path)}\n", soft_wrap=True)


def show_report(out: Console, checked: Checked, *, verbose: bool = False) -> None:
    """The grader's verdict, test by test, and the next step."""
    report, left = checked.report, _FULL_MESSAGES
    width = max((len(readable(test.name)) for test in report.tests), default=0)
    for test in report.tests:
        good = test.outcome == "passed"
        won = plural(test.points, "point") if good else f"{test.points:g} of {test.max_points:g}"
        mark = "[good]✓[/]" if good else "[bad]✗[/]"
        out.print(f"  {mark} {escape(readable(test.name)):<{width}}  [faint]{won}[/]", soft_wrap=True)
        if not good and test.outcome != "not_written" and test.message != "not run":
            _show_message(out, test, in_full=verbose or left > 0)
            left -= 1
        _show_output(out, test, verbose, good)
    if report.problem:
        out.print(Text(report.problem, style="bad"), soft_wrap=True)
    if report.not_written and not report.passed:
        out.print(f"\nNot written yet: {escape(', '.join(report.not_written))}")
    for note in (*report.notes, *checked.problems):
        out.print(Text(f"Note: {note}"), soft_wrap=True)
    if left < 0 and not verbose:
        out.print("\nThe first failures stand in full: fix those first. --verbose shows all in full.")
    _show_verdict(out, checked)


def chat_with(exercise: Exercise) -> str:
    """The command that runs its code, with the flags without which nothing would call it."""
    return f"learnvllm chat --mine {exercise.name} {exercise.flags}".rstrip()


def _show_message(out: Console, test: TestReport, *, in_full: bool) -> None:
    lines = test.message.strip().splitlines() or ["it failed without a message"]
    if not in_full and len(lines) > 1:
        lines = [f"{lines[0]} …"]
    for line in lines:
        out.print(Text(f"      {line}"), soft_wrap=True)


def _show_output(out: Console, test: TestReport, verbose: bool, good: bool) -> None:
    """What the code printed: of failures the end, for whoever debugs with print."""
    if not test.output.strip() or (good and not verbose):
        return
    lines = test.output.rstrip().splitlines()
    shown = lines if verbose else lines[-10:]
    out.print("      [faint]it printed:[/]")
    for line in shown:
        out.print(Text(f"      | {line}", style="faint"), soft_wrap=True)


def _show_verdict(out: Console, checked: Checked) -> None:
    report, exercise = checked.report, checked.exercise
    points = f"{report.points:g} of {report.max_points:g} points"
    if not report.passed:
        out.print(f"\n[bad]Not yet:[/] {points}. A hint: [cmd]learnvllm hint {exercise.name}[/]")
        return
    tries = f", {plural(checked.record.attempts, 'attempt')}" if checked.record else ""
    hints = f", {plural(checked.record.hints, 'hint')}" if checked.record else ""
    out.print(f"\n[good]Passed:[/] {points}{tries}{hints}.")
    out.print(f"  in the engine      [cmd]{escape(chat_with(exercise))}[/]")
    out.print(f"  ours, to compare   [cmd]learnvllm solution {exercise.name}[/]")
    if checked.journal:
        out.print(f"  your log           [cmd]learnvllm journal {exercise.day}[/]")
    out.print("  what comes next    [cmd]learnvllm next[/]")
