"""The learner's own pages: progress and journal, where there are any; only on a site built locally."""

from __future__ import annotations

import re

from learnvllm.study import journal
from learnvllm.study.catalogue import DAYS
from learnvllm.study.overview import Course, DayState, course
from learnvllm.study.progress import progress_path
from learnvllm.study.tables import table

_INCLUDE = re.compile(r"(?m)^[ \t]*-+8<-+.*\n?")
_CODE_BLOCK = re.compile(r"(?ms)^(`{3,}|~{3,})[ ]*[\w+#-]*\n.*?^\1[`~]*[ ]*$")
"""Only what every Markdown takes for one."""
_REFERENCE = re.compile(r"(?m)^ {0,3}\[[^\]^]+\]:[ \t]*(?!https?://).*\n?")
_LINK = re.compile(
    r"(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`)|!?\[(?P<words>[^\]]*)\]\((?!https?://)[^)]*\)"
)

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
    following = state.next_exercise()
    told = "All exercises have passed."
    if following is not None:
        told = f"Next: {following.exercise.title} (`learnvllm check {following.exercise.id}`)."
    days = table(("Done", "Day", "State", "Exercises:", "Points:", "Quiz:"), map(day_row, state.days))
    exercises = "\n".join(
        f"- {mark(one.done)} {one.exercise.title}: {one.status}, "
        f"{one.record.points:g} of {one.exercise.points} points"
        for one in state.exercises
    )
    site = "\n".join(f"- {mark(item.done)} {item.text}" for item in state.site)
    return (
        f"# Progress\n\n**{state.points:g} of {state.max_points} points.** {told}\n\n"
        f"## Days\n\n{days}\n\n## Exercises\n\n{checklist(exercises)}\n\n## Site\n\n{checklist(site)}\n"
    )


def checklist(items: str) -> str:
    """A list whose marks are its bullets."""
    return f'<div class="checklist" markdown="1">\n\n{items}\n\n</div>'


def mark(done: bool) -> str:
    return "☑" if done else "☐"


def day_row(state: DayState) -> tuple[str, ...]:
    return (
        mark(state.status == "done"),
        f"{state.day.number} · {state.day.title}",
        state.status,
        f"{state.passed} of {len(state.exercises)}",
        f"{state.points:g} of {state.max_points}",
        f"{state.quiz.right} of {state.quiz.questions}" if state.quiz else "",
    )


def journal_page(state: Course) -> str:
    """All entries, headings one level down; a broken one is told of, and hides no other."""
    parts = ["# Journal"]
    for day in state.days:
        if day.journal_problem:
            parts.append(f'!!! failure "Day {day.day.number}"\n\n    {day.journal_problem}')
        if entry := day.journal:
            parts += [harmless(entry.body), f"*Begun {entry.date}, {entry.status}.*"]
    return "\n\n".join(parts) + "\n"


def harmless(body: str) -> str:
    """Text of the learner's that cannot stop the build.

    Nothing is included, and outside of blocks of code links to pages and files become words.
    """
    kept = _INCLUDE.sub("", body)
    parts, at = [], 0
    for block in _CODE_BLOCK.finditer(kept):
        parts += [_unlinked(kept[at : block.start()]), block[0]]
        at = block.end()
    return "".join([*parts, _unlinked(kept[at:])]).strip()


def _unlinked(text: str) -> str:
    """Headings one level down, comments gone, words for links."""
    text = re.sub(r"(?m)^[ \t]*<!--.*\n?", "", text)
    text = re.sub(r"(?m)^#", "##", text)
    text = _REFERENCE.sub("", text)
    return _LINK.sub(lambda found: found[0] if found["ticks"] else found["words"], text)
