"""A day's exercises as a table: what each rebuilds, how long it takes, the command that checks it."""

from __future__ import annotations

from learnvllm.study.catalogue import Day, exercises_of, load_exercises
from learnvllm.study.exercise import LEVELS, Exercise
from learnvllm.study.site.pages import Link
from learnvllm.study.tables import table


def exercise_table(day: Day, link: Link) -> str:
    """One row an exercise, then a section each."""
    exercises = exercises_of(day)
    if not exercises:
        return "This day has no exercises yet."
    rows = [
        (number, f"[{e.title}](#{e.name})", e.level, e.minutes, e.points)
        for number, e in enumerate(exercises, 1)
    ]
    total = ("", "All", "", sum(e.minutes for e in exercises), sum(e.points for e in exercises))
    overview = table(("", "Exercise", "Level", "Minutes:", "Points:"), [*rows, total])
    return "\n\n".join([overview, *(_section(exercise, link) for exercise in exercises)])


def _section(exercise: Exercise, link: Link) -> str:
    folder = f"exercises/{exercise.folder.parent.name}/{exercise.folder.name}"
    parts = [
        f"### {exercise.title} {{ #{exercise.name} }}",
        exercise.summary.strip(),
        f"- **Write** {_work(exercise)} in `{folder}/exercise.py`.\n"
        f"- **Level**: {exercise.level} ({LEVELS[exercise.level]}), {exercise.minutes} minutes, "
        f"{exercise.points} points, {len(exercise.hints)} hints."
        + (f"\n- **Read first**: {_reading(exercise, link)}." if exercise.reading else "")
        + (f"\n- **Do first**: {_before(exercise, link)}." if exercise.prerequisites else "")
        + (f"\n- **Not needed**: {exercise.out_of_scope.strip()}" if exercise.out_of_scope else ""),
        f"```bash\nlearnvllm check {exercise.id}      # grade it; --watch grades whenever the file is saved\n"
        f"learnvllm hint {exercise.id}       # the next hint\n```",
    ]
    return "\n\n".join(parts)


def _work(exercise: Exercise) -> str:
    if exercise.bug is not None:
        return f"the repair of `{'`, `'.join(exercise.symbols)}`"
    return ", ".join(f"`{blank.member}`" for blank in exercise.blanks if not blank.omit)


def _reading(exercise: Exercise, link: Link) -> str:
    return ", ".join(f"[{_page_name(page)}]({link(page)})" for page in exercise.reading)


def _page_name(page: str) -> str:
    """topics/scheduling/concepts.md#preemption -> concepts, preemption."""
    path, _, anchor = page.partition("#")
    name = path.rpartition("/")[2].removesuffix(".md")
    return f"{name}, {anchor.replace('-', ' ')}" if anchor else name


def _before(exercise: Exercise, link: Link) -> str:
    known = {e.id: e for e in load_exercises()}

    def named(name: str) -> str:
        if name not in known:
            return f"`{name}`"
        other = known[name]
        return f"[{other.title}]({link(f'topics/{other.topic}/exercises.md#{other.name}')})"

    return ", ".join(map(named, exercise.prerequisites))
