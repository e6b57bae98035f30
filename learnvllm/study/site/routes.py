"""The start page's tables: the eleven days, and four ways through them, made from what the days have."""

from __future__ import annotations

from collections.abc import Iterator

from learnvllm.study.catalogue import DAYS, Day, exercises_of
from learnvllm.study.site import day_plan, pages
from learnvllm.study.site.day_plan import Step, linked, total_minutes
from learnvllm.study.site.pages import Link
from learnvllm.study.tables import table
from learnvllm.study.terminal import minutes

HOUR = 60


def days_table(link: Link) -> str:
    """One row a day."""
    rows = []
    for day in DAYS:
        there, exercises = pages.topic_pages(day), exercises_of(day)
        title = f"[{day.title}]({link(there['index'].path)})" if "index" in there else day.title
        points = f"{len(exercises)} exercises, {sum(e.points for e in exercises)} points"
        state = "one page" if there else "*coming*"
        if "concepts" in there:
            state = minutes(total_minutes(day_plan.steps(day)))
        rows.append((day.number, title, state, points if exercises else ""))
    return table(("Day:", "Topic", "", ""), rows)


def routes(link: Link) -> str:
    """The four routes, each a heading and a list."""
    return "\n\n".join((_eleven_days(link), _one_hour(link), _operator(link), _interview(link)))


def _complete_days() -> list[Day]:
    """Those that have all of their pages."""
    return [day for day in DAYS if set(pages.TOPIC_PAGES) <= pages.topic_pages(day).keys()]


def _eleven_days(link: Link) -> str:
    there = _complete_days()
    first = f"[Day 1]({link(f'topics/{there[0].topic}/index.md')})" if there else "Day 1"
    return (
        "### Eleven days\n\n"
        f"One topic a day: read, run, build, answer. Begin with {first}; the terminal keeps count:\n\n"
        "```bash\nlearnvllm day 1       # today's plan\nlearnvllm next        # the next thing to do\n"
        "learnvllm study       # all of it on one screen\n```"
    )


def _one_hour(link: Link) -> str:
    """The concepts of the engine's days, then notebooks, as long as the hour lasts."""
    taken: list[Step] = []
    for step in _most_worth():
        if step.minutes and total_minutes(taken) + step.minutes <= HOUR:
            taken.append(step)
    rows = "\n".join(f"1. {linked(step, link)}, {step.minutes} minutes" for step in taken)
    intro = f"How a request becomes tokens, in {total_minutes(taken)} minutes of reading." if taken else ""
    return f"### One hour\n\n{intro}\n\n{rows}"


def _most_worth() -> Iterator[Step]:
    """What to spend little time on, first things first: concepts, then notebooks, of the days in order."""
    days = [d for d in DAYS if "concepts" in pages.topic_pages(d)]
    for verb in ("Read", "Run"):
        for day in days:
            found = next((s for s in day_plan.steps(day) if s.verb == verb), None)
            if found:
                yield Step(verb, f"{day.title}: {found.title.lower() if verb == 'Read' else found.title}",
                           found.target, found.minutes)  # fmt: skip


OPERATOR = (
    ("reference/configuration.md", "Every setting of the engine, what it means and its default"),
    ("reference/cli.md", "The flags of `learnvllm serve`, named as vLLM's"),
    ("reference/metrics.md", "What `/metrics` says"),
    ("reference/environment.md", "Environment variables"),
    ("reference/http_api.md", "The HTTP API"),
    (
        "reference/mechanisms.md",
        "Mechanisms and faults: what was reported, and what holds it here",
    ),
)
"""For whoever runs vLLM: what to turn and what to look at; concepts come before."""


def _operator(link: Link) -> str:
    concepts = [
        f"- [{day.title}: why it behaves as it does]({link(f'topics/{day.topic}/concepts.md')})"
        for day in DAYS
        if day.topic in ("scheduling", "kv_cache", "executor_worker") and "concepts" in pages.topic_pages(day)
    ]
    rows = [f"- [{title}]({link(page)})" for page, title in OPERATOR]
    return "### I operate vLLM\n\nWhat to turn, what to watch, what breaks.\n\n" + "\n".join(concepts + rows)


def _interview(link: Link) -> str:
    days = [day for day in DAYS if {"concepts", "quiz"} <= pages.topic_pages(day).keys()]
    rows = [
        f"- {day.title}: [what to be able to explain]({link(f'topics/{day.topic}/concepts.md')}), "
        f"[the questions]({link(f'topics/{day.topic}/quiz.md')})"
        for day in days
    ]
    last = f"- [The words, in English and Chinese]({link('reference/glossary.md')})"
    head = "### I interview tomorrow\n\nThe mental models, the questions, the words."
    overview = f"- [The way of a request]({link('architecture.md')})"
    return "\n".join([head + "\n", overview, *rows, last])
