"""What the study screen shows: an exercise, its hints, the grader's words, where the learner stands."""

from __future__ import annotations

import io

from rich.console import Console
from rich.text import Text

from learnvllm.study import files
from learnvllm.study.checking import Checked
from learnvllm.study.commands.check import show_report, show_subject
from learnvllm.study.exercise import Exercise
from learnvllm.study.overview import Course, ExerciseState
from learnvllm.study.terminal import STYLES, minutes

LOG_WIDTH = 100


def report_text(checked: Checked) -> Text:
    """What `learnvllm check` prints, in its colours."""
    out = Console(file=io.StringIO(), theme=STYLES, force_terminal=True, width=LOG_WIDTH, highlight=False)
    show_subject(out, checked.exercise)
    show_report(out, checked)
    assert isinstance(out.file, io.StringIO)
    return Text.from_ansi(out.file.getvalue())


def describe(state: ExerciseState) -> str:
    """An exercise as Markdown."""
    exercise, record = state.exercise, state.record
    lines = [
        f"# {exercise.title}",
        f"{exercise.id} · {exercise.level} · {minutes(exercise.minutes)} · "
        f"{record.points:g} of {exercise.points} points · {state.status}",
        exercise.summary,
        *([f"**Not asked:** {exercise.out_of_scope}"] if exercise.out_of_scope else []),
        "\n".join(f"- read `docs/{page}`" for page in exercise.reading),
        f"Your file: `{files.shown(exercise.path)}`",
    ]
    return "\n\n".join(line.strip() for line in lines if line.strip())


def hints_text(exercise: Exercise | None, count: int) -> str:
    """The first `count` hints as Markdown."""
    hints = exercise.hints if exercise else ()
    parts = [f"### Hint {n} of {len(hints)}\n\n{hint}" for n, hint in enumerate(hints[:count], 1)]
    more = "Press `h` for one more." if count < len(hints) else "There are no more."
    return "\n\n".join([*parts, more])


def standing(course: Course, *, watching: bool) -> str:
    """One line for the foot of the screen."""
    said = "  watching: checks when you save" if watching else ""
    exercises = f"{course.passed} of {len(course.exercises)} exercises"
    return f"{exercises}, {course.points:g} of {course.max_points} points{said}"
