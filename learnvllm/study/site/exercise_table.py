"""A day's exercises: a table with level, minutes and points, then what each rebuilds and what checks it."""

from __future__ import annotations

from learnvllm.study.catalogue import Day, exercises_of, load_exercises
from learnvllm.study.exercise import LEVELS, Exercise
from learnvllm.study.site.pages import Link
from learnvllm.study.site.words import Say, listed
from learnvllm.study.tables import table
from learnvllm.study.terminal import names_kept


def exercise_table(day: Day, link: Link, say: Say = str) -> str:
    """One row an exercise, then a section each."""
    exercises = exercises_of(day)
    if not exercises:
        return say("This day has no exercises yet.")
    rows = [
        (number, f"[{e.title}](#{e.name})", say(e.level), e.minutes, e.points)
        for number, e in enumerate(exercises, 1)
    ]
    total = ("", say("All"), "", sum(e.minutes for e in exercises), sum(e.points for e in exercises))
    head = (say("No.:"), say("Exercise"), say("Level"), say("Minutes:"), say("Points:"))
    sections = (_section(exercise, link, say) for exercise in exercises)
    return "\n\n".join([table(head, [*rows, total]), *sections])


def _section(exercise: Exercise, link: Link, say: Say) -> str:
    file = f"exercises/{exercise.folder.parent.name}/{exercise.folder.name}/exercise.py"
    level, asked = say(exercise.level), say(LEVELS[exercise.level])
    facts = [
        say("- **Write** {} in `{}`.").format(_work(exercise, say), file),
        say("- **Level**: {} ({}), {} minutes, {} points, {} hints.").format(
            level, asked, exercise.minutes, exercise.points, len(exercise.hints)
        ),
    ]
    if exercise.reading:
        facts.append(say("- **Read first**: {}.").format(_reading(exercise, link, say)))
    if exercise.prerequisites:
        facts.append(say("- **Do first**: {}.").format(_before(exercise, link, say)))
    if exercise.out_of_scope:
        facts.append(say("- **Not asked**: {}").format(names_kept(exercise.out_of_scope.strip())))
    check, hint = f"learnvllm check {exercise.id}", f"learnvllm hint {exercise.id}"
    commands = (
        f"{check}      # {say('grade it; --watch grades whenever the file is saved')}",
        f"{hint}       # {say('the next hint')}",
    )
    return "\n\n".join(
        [
            f"### {exercise.title} {{ #{exercise.name} }}",
            names_kept(exercise.summary.strip()),
            "\n".join(facts),
            "\n".join(("```bash", *commands, "```")),
        ]
    )


def _work(exercise: Exercise, say: Say) -> str:
    if exercise.bug is not None:
        return say("the repair of {}").format(", ".join(f"`{symbol}`" for symbol in exercise.symbols))
    return ", ".join(f"`{blank.member}`" for blank in exercise.blanks if not blank.omit)


def _reading(exercise: Exercise, link: Link, say: Say) -> str:
    return listed((f"[{_page_name(page, say)}]({link(page)})" for page in exercise.reading), say)


def _page_name(page: str, say: Say) -> str:
    """topics/scheduling/concepts.md#preemption -> concepts, preemption."""
    path, _, anchor = page.partition("#")
    name = say(path.rpartition("/")[2].removesuffix(".md"))
    return say("{}, {}").format(name, anchor.replace("-", " ")) if anchor else name


def _before(exercise: Exercise, link: Link, say: Say) -> str:
    known = {e.id: e for e in load_exercises()}

    def named(name: str) -> str:
        if name not in known:
            return f"`{name}`"
        other = known[name]
        return f"[{other.title}]({link(f'topics/{other.topic}/exercises.md#{other.name}')})"

    return listed(map(named, exercise.prerequisites), say)
