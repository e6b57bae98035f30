"""A day's plan as a table: what to read, run, build and answer, in which order, and the minutes it takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from learnvllm.study.catalogue import Day, usable_exercises
from learnvllm.study.quiz import load_quiz, quiz_path
from learnvllm.study.site import pages
from learnvllm.study.site.pages import Link
from learnvllm.study.site.words import Say
from learnvllm.study.tables import table


@dataclass(frozen=True)
class Step:
    """One thing to do."""

    verb: str
    title: str
    target: str
    """Page in the site's tree, perhaps with #anchor."""
    minutes: int
    command: str = ""
    """The same in the terminal."""


def steps(day: Day, say: Say = str) -> list[Step]:
    """Concepts (or the only page), notebooks, exercises, then our code (their solutions), vLLM's own, quiz.

    Titles are as `say` has them; verbs are English.
    """
    there = pages.topic_pages(day)

    def read(name: str) -> list[Step]:
        page = there.get(name)
        return [Step("Read", say(pages.LABELS[name]), page.path, page.minutes)] if page else []

    only_page = [Step("Read", page.title, page.path, page.minutes) for page in there.values()][:1]
    run = [
        Step("Run", page.title, page.path, page.minutes, f"learnvllm notebook {day.number}")
        for page in pages.notebook_pages(day)
    ]
    return [
        *(read("concepts") or only_page),
        *run,
        *_builds(day, there),
        *read("walkthrough"),
        *read("upstream"),
        *_quiz(day, say),
    ]


def _builds(day: Day, there: dict[str, pages.Page]) -> list[Step]:
    page = there["exercises"].path if "exercises" in there else ""
    return [
        Step("Build", e.title, page and f"{page}#{e.name}", e.minutes, f"learnvllm check {e.id}")
        for e in usable_exercises()
        if e.day == day.number
    ]


def _quiz(day: Day, say: Say) -> list[Step]:
    if not quiz_path(day.number).is_file():
        return []
    questions = len(load_quiz(day.number).questions)  # a minute each
    command = f"learnvllm quiz {day.number}"
    title = say("Quiz, {} questions").format(questions)
    return [Step("Answer", title, f"topics/{day.topic}/quiz.md", questions, command)]


def total_minutes(plan: Iterable[Step]) -> int:
    """Of all of them."""
    return sum(step.minutes for step in plan)


def day_table(day: Day, link: Link, say: Say = str) -> str:
    """The plan as Markdown."""
    plan = steps(day, say)
    rows = [
        (say(step.verb), linked(step, link), step.minutes or "", f"`{step.command}`" if step.command else "")
        for step in plan
    ]
    total = ("", say("**All**"), f"**{total_minutes(plan)}**", f"`learnvllm day {day.number}`")
    return table((say("Step"), say("Title"), say("Minutes:"), say("In the terminal")), [*rows, total])


def linked(step: Step, link: Link) -> str:
    return f"[{step.title}]({link(step.target)})" if step.target else step.title
