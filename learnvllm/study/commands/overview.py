"""`learnvllm progress`, `day N` and `next`: where you are, what today holds, what to do now."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.markup import escape
from rich.text import Text

from learnvllm.study import journal
from learnvllm.study.catalogue import find_day
from learnvllm.study.overview import Course, DayState, ExerciseState, course, day_state
from learnvllm.study.site import day_plan
from learnvllm.study.terminal import console, minutes, plural, print_json, print_markdown, shown

BOXES = {"done": "[good]\\[x][/]", "started": "\\[~]", "open": "\\[ ]", "to read": "\\[ ]", "coming": "\\[ ]"}
NO_EXERCISES = {"to read": "one page; its exercises are coming", "coming": "coming"}
STATES = {
    "passed": "[good]passed[/]",
    "changed": "passed; the exercise has changed since: check it again",
    "started": "started",
    "open": "open",
}


def configure_progress(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="For programs.")


def run_progress(args: argparse.Namespace) -> int:
    state = course()
    if args.json:
        print_json(state.to_json())
        return 0
    out = console()
    exercises = plural(len(state.exercises), "exercise")
    out.print(f"{state.passed} of {exercises}, {state.points:g} of {state.max_points} points\n")
    for day in state.days:
        out.print(
            f"{BOXES[day.status]} Day {day.day.number:>2}  {day.day.title:<22}{_summary(day)}", soft_wrap=True
        )
        for exercise in day.exercises:
            out.print(f"      {_exercise_line(exercise)}", soft_wrap=True)
    out.print("\nThe site")
    for item in state.site:
        out.print(f"{BOXES['done' if item.done else 'open']} {escape(item.text)}", soft_wrap=True)
    _show_notes(out, state)
    return 0


def _summary(day: DayState) -> str:
    if day.status in NO_EXERCISES:
        return f"[faint]{NO_EXERCISES[day.status]}[/]"
    parts = [
        f"{day.passed} of {plural(len(day.exercises), 'exercise')}",
        f"{day.points:g}/{day.max_points} points",
    ]
    if day.quiz:
        parts.append(f"quiz {day.quiz.right}/{day.quiz.questions}")
    parts.append("journal begun" if day.journal else "no journal yet")
    return ", ".join(parts)


def _exercise_line(state: ExerciseState) -> str:
    record, mark = state.record, "[good]✓[/]" if state.done else " "
    told = [STATES[state.status]]
    if record.points:
        told.append(f"{record.points:g}/{state.exercise.points} points")
    told += [plural(record.hints, "hint")] if record.hints else []
    told += ["gave up"] if record.gave_up else []
    return f"{mark} {state.exercise.id:<38} {', '.join(told)}"


def _show_notes(out: Console, state: Course) -> None:
    out.print()
    for day in state.days:
        if day.journal_problem:
            out.print(Text(f"Journal: {day.journal_problem}", style="bad"), soft_wrap=True)
    if state.vanished:
        gone = ", ".join(state.vanished)
        out.print(
            Text(f"Recorded, but not among the exercises here: {gone}. Their records are kept."),
            soft_wrap=True,
        )
    following = state.next_exercise()
    if following:
        out.print(
            f"Next: [cmd]learnvllm check {following.exercise.name}[/]  ({escape(following.exercise.title)})"
        )
    elif state.exercises:
        out.print("Every exercise has passed. [cmd]learnvllm serve --mine[/] serves a model with your code.")


# ------------------------------------------------------------------------------------------------------ day


def configure_day(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("day", type=int, metavar="N", help="1 to 11.")
    parser.add_argument("--json", action="store_true", help="For programs.")


def run_day(args: argparse.Namespace) -> int:
    day = find_day(args.day)
    steps = day_plan.steps(day)  # the site shows the same
    state = day_state(day.number)
    if args.json:
        print_json({**state.to_json(), "plan": [vars(step) for step in steps]})
        return 0
    out = console()
    total = day_plan.total_minutes(steps)
    title = f"Day {day.number}: {escape(day.title)}"
    out.print(f"[head]{title}[/][faint]{f' ({minutes(total)})' if total else ''}[/]\n")
    told = {f"learnvllm check {e.exercise.id}": _short_state(e) for e in state.exercises}
    if state.quiz:
        told[f"learnvllm quiz {day.number}"] = f"{state.quiz.right} right so far"
    for step in steps:
        where = step.command or f"docs/{step.target}"
        _show_step(out, step.verb, step.title, step.minutes, where, told.get(step.command, ""))
    if not state.exercises:
        out.print("Its exercises are coming.")
    log = f"begun {state.journal.date}" if state.journal else "not begun"
    _show_step(out, "Write", "What you learned", 0, f"learnvllm journal {day.number}", log)
    if state.journal_problem:
        out.print(Text(state.journal_problem, style="bad"), soft_wrap=True)
    return 0


def _short_state(state: ExerciseState) -> str:
    return f"{STATES[state.status]}, {state.record.points:g}/{state.exercise.points} points"


def _show_step(out: Console, verb: str, title: str, length: int, where: str, state: str) -> None:
    took = minutes(length) if length else ""
    left = f"  {verb:<7} {escape(title):<44} {took:>6}"
    right = f"  [cmd]{where:<42}[/] [faint]{state}[/]" if state else f"  [cmd]{where}[/]"
    out.print(left + right, soft_wrap=True)


# ----------------------------------------------------------------------------------------------------- next


def configure_next(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="For programs.")


def run_next(args: argparse.Namespace) -> int:
    state = course()
    following = state.next_exercise()
    if args.json:
        print_json(following.to_json() if following else {"id": None})
        return 0
    out = console()
    if following is None:
        out.print("Every exercise has passed. [cmd]learnvllm progress[/] shows them.")
        return 0
    exercise = following.exercise
    work = f"{exercise.level}, {minutes(exercise.minutes)}, {exercise.points} points"
    out.print(f"[head]{escape(exercise.title)}[/] [faint](day {exercise.day}, {exercise.id}, {work})[/]")
    print_markdown(out, exercise.summary)
    later = [day.day.number for day in state.days if day.day.number > exercise.day and day.passed]
    if later:
        out.print(
            f"You have passed some of day {later[0]} already; next is always the first, in the order of the "
            f"days, that has not passed. For that day: [cmd]learnvllm day {later[0]}[/]",
            soft_wrap=True,
        )
    passed = {e.exercise.id for e in state.exercises if e.record.passed}
    before = [name for name in exercise.prerequisites if name not in passed]
    if before:
        out.print(f"Builds on {', '.join(before)}, not passed yet.")
    if exercise.out_of_scope:
        print_markdown(out, f"Not asked: {exercise.out_of_scope}", faint=True)
    for page in exercise.reading:
        out.print(f"  read    docs/{page}", soft_wrap=True)
    out.print(f"  edit    {shown(exercise.path)}", soft_wrap=True)
    out.print(f"  check   [cmd]learnvllm check {exercise.name} --watch[/]")
    if following.status == "open" and not journal.entry_path(exercise.day).exists():
        out.print(f"  today   [cmd]learnvllm day {exercise.day}[/]")
    return 0
