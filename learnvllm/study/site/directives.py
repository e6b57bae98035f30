"""What a page may ask for: code by symbol, its day's plan, exercises and quiz, the routes, the days.

    --8<-- "code:learnvllm/scheduling/scheduler.py:Scheduler.schedule"      the source of a symbol
    --8<-- "output:benchmarks/results/throughput.txt"                       what a program printed
    <!-- day -->  <!-- exercises -->  <!-- quiz -->                          of the topic the page belongs to
    <!-- days -->  <!-- routes -->                                           on the start page

Each is a line of its own. One that cannot be followed stops the build and says where it stands.
"""

from __future__ import annotations

import posixpath
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from learnvllm.study.catalogue import DAYS, Day
from learnvllm.study.exercise import StudyError
from learnvllm.study.site import (
    day_plan,
    exercise_table,
    maths,
    quiz_html,
    routes,
    snippets,
    translation,
)
from learnvllm.study.site.words import SAY, Say

_CODE = re.compile(r'^(?P<indent>[ \t]*)--8<-- "(?P<kind>code|output):(?P<what>[^"]+)"[ \t]*$')
_COMMENT = re.compile(r"^(?P<indent>[ \t]*)<!-- (?P<name>[a-z]+) -->[ \t]*$")


@dataclass(frozen=True)
class Place:
    """Where a directive stands: what links in its replacement are relative to."""

    page: str
    """Path of the page in the site's tree, like topics/scheduling/concepts.md."""
    day: Day | None = None

    @property
    def language(self) -> str:
        return "zh" if self.page.startswith(translation.FOLDER) else "en"

    @property
    def say(self) -> Say:
        return SAY[self.language]

    def link(self, target: str) -> str:
        """`target`, a path in the tree, as seen from this page."""
        path, mark, anchor = target.partition("#")
        if self.language == "zh":
            path = translation.shown().get(path, path)
        return posixpath.relpath(path, posixpath.dirname(self.page)) + mark + anchor


def place_of(page: str) -> Place:
    """A page of docs/topics/<topic>/, in whichever language, belongs to that topic's day."""
    parts = PurePosixPath(page).parts
    topic = parts[parts.index("topics") + 1] if "topics" in parts[:-2] else None
    return Place(page, next((day for day in DAYS if day.topic == topic), None))


def _of_day(make: Callable[[Place, Day], str]) -> Callable[[Place], str]:
    def made(place: Place) -> str:
        if place.day is None:
            raise StudyError("only pages in docs/topics/<topic>/ have a day")
        return make(place, place.day)

    return made


GENERATORS: dict[str, Callable[[Place], str]] = {
    "day": _of_day(lambda place, day: day_plan.day_table(day, place.link, place.say)),
    "exercises": _of_day(lambda place, day: exercise_table.exercise_table(day, place.link, place.say)),
    "quiz": _of_day(lambda place, day: quiz_html.quiz(day, place.link, place.language)),
    "days": lambda place: routes.days_table(place.link, place.say),
    "routes": lambda place: routes.routes(place.link, place.say),
}
"""Comment -> what stands in its place."""


def expand(markdown: str, page: str, first_line: int = 1) -> str:
    """Markdown with its directives followed and its formulas set.

    Args:
        page: path of the page in the site's tree.
        first_line: where in its file the Markdown begins.

    Raises:
        StudyError: a directive that cannot be followed, with the page's name and the line.
    """
    place = place_of(page)
    done = []
    line_number = first_line
    for is_code, text in maths.split_code(markdown):
        lines = text.splitlines()
        for line in lines:
            try:
                done.append(line if is_code else _expand_line(line, place))
            except StudyError as error:
                raise StudyError(f"docs/{page}, line {line_number}: {line.strip()}: {error}") from None
            line_number += 1
    try:
        return maths.with_maths("\n".join(done) + "\n")
    except StudyError as error:
        raise StudyError(f"docs/{page}: {error}") from None


def _expand_line(line: str, place: Place) -> str:
    code, comment = _CODE.match(line), _COMMENT.match(line)
    if code:
        made = snippets.fenced_source if code["kind"] == "code" else snippets.printed
        return _block(made(code["what"]), code["indent"])
    if comment and comment["name"] in GENERATORS:
        return _block(GENERATORS[comment["name"]](place), comment["indent"])
    return line


def _block(markdown: str, indent: str) -> str:
    return f"\n{textwrap.indent(markdown, indent)}\n"
