"""What the study screen shows: an exercise, its hints, the grader's words, where the learner stands."""

from __future__ import annotations

import io
import re

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from learnvllm.study import files
from learnvllm.study.checking import Checked
from learnvllm.study.commands.check import show_report, show_subject
from learnvllm.study.exercise import Exercise
from learnvllm.study.overview import Course, ExerciseState
from learnvllm.study.terminal import STYLES, minutes, names_kept

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
        f"# {names_kept(exercise.title)}",
        f"{exercise.id} · {exercise.level} · {minutes(exercise.minutes)} · "
        f"{record.points:g} of {exercise.points} points · {state.status}",
        names_kept(exercise.summary),
        *([f"**Not asked:** {names_kept(exercise.out_of_scope)}"] if exercise.out_of_scope else []),
        "\n".join(f"- read `docs/{page}`" for page in exercise.reading),
        f"Your file: `{files.shown(exercise.path)}`",
    ]
    return "\n\n".join(line.strip() for line in lines if line.strip())


def hints_text(exercise: Exercise | None, count: int) -> str:
    """The first `count` hints as Markdown."""
    hints = exercise.hints if exercise else ()
    parts = [f"### Hint {n} of {len(hints)}\n\n{names_kept(hint)}" for n, hint in enumerate(hints[:count], 1)]
    more = "Press `h` for one more." if count < len(hints) else "There are no more."
    return "\n\n".join([*parts, more])


def standing(course: Course, *, watching: bool) -> str:
    """One line for the foot of the screen."""
    said = "  watching: checks when you save" if watching else ""
    exercises = f"{course.passed} of {len(course.exercises)} exercises"
    return f"{exercises}, {course.points:g} of {course.max_points} points{said}"


MARKS = {"passed": "✓", "changed": "!", "started": "~", "open": " "}
INDENT = 2
"""Of an exercise below its day."""
_BESIDE = INDENT + len("✓ ") + 3
"""Cells of an exercise's line in the tree that are not its title: with the border and a scroll bar."""


def tree_width(course: Course, screen: int) -> int:
    """For the longest title, but no more than half of the screen."""
    longest = max((cell_len(state.exercise.title) for state in course.exercises), default=0)
    return min(longest + _BESIDE, screen // 2)


def leaf(state: ExerciseState, width: int) -> Text:
    """An exercise's line in a tree of that width. What does not fit ends in an ellipsis."""
    title = Text(state.exercise.title)
    title.truncate(max(width - _BESIDE, 1), overflow="ellipsis")
    return Text(f"{MARKS[state.status]} ") + title


def paths_broken(said: str, width: int) -> str:
    """Words longer than a line, as paths are, have lines of their own, broken after a /, not within names."""
    broken = re.sub(rf" ?(\S{{{width + 1},}}) ?", lambda word: f"\n{_at_slashes(word[1], width)}\n", said)
    return broken.strip("\n")


def _at_slashes(word: str, width: int) -> str:
    lines = [""]
    for piece in re.findall(r"[^/]*/|[^/]+", word):
        if lines[-1] and len(lines[-1] + piece) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)
