"""The learner's own pages: progress and journal, where there are any; only on a site built locally."""

from __future__ import annotations

import re

from learnvllm.study import journal
from learnvllm.study.catalogue import DAYS
from learnvllm.study.exercise import StudyError
from learnvllm.study.overview import Course, DayState, course
from learnvllm.study.progress import progress_path

PROGRESS, JOURNAL = "log/progress.md", "log/journal.md"


def log_pages() -> dict[str, str]:
    """Path in the tree -> Markdown; nothing where nobody has begun. Raises StudyError: a broken file."""
    entries = any(journal.entry_path(day.number).is_file() for day in DAYS)
    if not entries and not progress_path().is_file():
        return {}
    state = course()
    return {PROGRESS: progress_page(state), **({JOURNAL: journal_page(state)} if entries else {})}


def progress_page(state: Course) -> str:
    """The days and the site as a checklist."""
    points, most = sum(day.points for day in state.days), sum(day.max_points for day in state.days)
    following = state.next_exercise()
    told = "All exercises have passed."
    if following is not None:
        told = f"Next: {following.exercise.title} (`learnvllm check {following.exercise.id}`)."
    rows = "\n".join(day_row(day) for day in state.days)
    exercises = "\n".join(
        f"- {mark(one.done)} {one.exercise.title}: {one.status}, "
        f"{one.record.points:g} of {one.exercise.points} points"
        for one in state.exercises
    )
    site = "\n".join(f"- {mark(item.done)} {item.text}" for item in state.site)
    return (
        f"# Progress\n\n**{points:g} of {most} points.** {told}\n\n"
        f"## Days\n\n| | Day | State | Exercises | Points | Quiz |\n|---|---|---|---:|---:|---:|\n{rows}\n\n"
        f"## Exercises\n\n{exercises}\n\n## Site\n\n{site}\n"
    )


def mark(done: bool) -> str:
    return "☑" if done else "☐"


def day_row(state: DayState) -> str:
    quiz = f"{state.quiz.right} of {state.quiz.questions}" if state.quiz else ""
    name = f"{state.day.number} · {state.day.title}"
    passed = f"{state.passed} of {len(state.exercises)}"
    return (
        f"| {mark(state.status == 'done')} | {name} | {state.status} | {passed} "
        f"| {state.points:g} of {state.max_points} | {quiz} |"
    )


def journal_page(state: Course) -> str:
    """All entries, headings one level down; a broken one is told of, and hides no other."""
    parts = ["# Journal"]
    for day in state.days:
        try:
            entry = journal.read_entry(day.day.number)
        except StudyError as error:
            parts.append(f'!!! failure "Day {day.day.number}"\n\n    {error}')
            continue
        if entry is not None:
            parts += [harmless(entry.body), f"*Begun {entry.date}, {entry.status}.*"]
    return "\n\n".join(parts) + "\n"


def harmless(body: str) -> str:
    """Text of the learner's that cannot stop the build: links to pages and files become words."""
    lines = (("#" + line if line.startswith("#") else line) for line in body.splitlines())
    kept = "\n".join(line for line in lines if not line.lstrip().startswith(("<!--", "--8<--"))).strip()
    return re.sub(r"!?\[([^\]]*)\]\((?!https?://)[^)]*\)", r"\1", kept)
