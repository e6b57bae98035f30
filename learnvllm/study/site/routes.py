"""The start page's tables: the eleven days, and four ways through them, made from what the days have."""

from __future__ import annotations

from collections.abc import Iterator

from learnvllm.study.catalogue import DAYS, Day, load_exercises
from learnvllm.study.site import day_plan, pages
from learnvllm.study.site.day_plan import Step, linked, total_minutes
from learnvllm.study.site.pages import Link
from learnvllm.study.site.words import Say, listed
from learnvllm.study.tables import table
from learnvllm.study.terminal import minutes

HOUR = 60


def days_table(link: Link, say: Say = str) -> str:
    """One row a day."""
    rows, every_exercise = [], load_exercises()
    for day in DAYS:
        there = pages.topic_pages(day)
        exercises = [exercise for exercise in every_exercise if exercise.day == day.number]
        title = say(day.title)
        if "index" in there:
            title = f"[{title}]({link(there['index'].path)})"
        points = say("{} exercises, {} points").format(len(exercises), sum(e.points for e in exercises))
        state = say("one page") if there else say("*coming*")
        if "concepts" in there:
            state = minutes(total_minutes(day_plan.steps(day)))
        rows.append((day.number, title, state, points if exercises else ""))
    return table((say("Day:"), say("Topic"), say("Time"), say("Exercises")), rows)


def routes(link: Link, say: Say = str) -> str:
    """The four routes, each a heading and a list."""
    return "\n\n".join(route(link, say) for route in (_eleven_days, _one_hour, _operator, _interview))


def _complete_days() -> list[Day]:
    """Those that have all of their pages."""
    return [day for day in DAYS if set(pages.TOPIC_PAGES) <= pages.topic_pages(day).keys()]


def _eleven_days(link: Link, say: Say) -> str:
    there = _complete_days()
    first = say("Day 1")
    if there:
        first = f"[{first}]({link(f'topics/{there[0].topic}/index.md')})"
    intro = say("One topic a day: read, run, build, answer. Begin with {}; the terminal keeps count:")
    return (
        f"### {say('Eleven days')}\n\n{intro.format(first)}\n\n"
        f"```bash\nlearnvllm day 1       # {say('the plan of the day')}\n"
        f"learnvllm next        # {say('the next thing to do')}\n"
        f"learnvllm study       # {say('all of it on one screen')}\n```"
    )


def _one_hour(link: Link, say: Say) -> str:
    """The concepts of the engine's days, then notebooks, as long as the hour lasts."""
    taken: list[Step] = []
    for step in _most_worth(say):
        if step.minutes and total_minutes(taken) + step.minutes <= HOUR:
            taken.append(step)
    row = say("{}, {} minutes")
    rows = "\n".join(f"1. {row.format(linked(step, link), step.minutes)}" for step in taken)
    intro = say("How a request becomes tokens, in {} minutes of reading.").format(total_minutes(taken))
    return f"### {say('One hour')}\n\n{intro if taken else ''}\n\n{rows}"


def _most_worth(say: Say) -> Iterator[Step]:
    """What to spend little time on, first things first: concepts, then notebooks, of the days in order."""
    days = [d for d in DAYS if "concepts" in pages.topic_pages(d)]
    for verb in ("Read", "Run"):
        for day in days:
            found = next((s for s in day_plan.steps(day, say) if s.verb == verb), None)
            if found:
                title = found.title.lower() if verb == "Read" else found.title
                yield Step(verb, say("{}: {}").format(say(day.title), title), found.target, found.minutes)


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


def _operator(link: Link, say: Say) -> str:
    why = say("{}: why it behaves as it does")
    concepts = [
        f"- [{why.format(say(day.title))}]({link(f'topics/{day.topic}/concepts.md')})"
        for day in DAYS
        if day.topic in ("scheduling", "kv_cache", "executor_worker") and "concepts" in pages.topic_pages(day)
    ]
    rows = [f"- [{say(title)}]({link(page)})" for page, title in OPERATOR]
    intro = say("What to turn, what to watch, what breaks.")
    return f"### {say('I operate vLLM')}\n\n{intro}\n\n" + "\n".join(concepts + rows)


def _interview(link: Link, say: Say) -> str:
    days = [day for day in DAYS if {"concepts", "quiz"} <= pages.topic_pages(day).keys()]
    explain, questions = say("what to be able to explain"), say("the questions")
    rows = [
        "- "
        + say("{}: {}").format(
            say(day.title),
            listed(
                (
                    f"[{explain}]({link(f'topics/{day.topic}/concepts.md')})",
                    f"[{questions}]({link(f'topics/{day.topic}/quiz.md')})",
                ),
                say,
            ),
        )
        for day in days
    ]
    last = f"- [{say('The words, in English and Chinese')}]({link('reference/glossary.md')})"
    intro = say("The mental models, the questions, the words.")
    overview = f"- [{say('The way of a request')}]({link('architecture.md')})"
    return "\n".join([f"### {say('I interview tomorrow')}\n\n{intro}\n", overview, *rows, last])
