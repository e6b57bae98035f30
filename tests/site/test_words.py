"""What a generator says on an English page, it says in Chinese on a Chinese one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from learnvllm.study.catalogue import DAYS
from learnvllm.study.exercise import LEVELS
from learnvllm.study.site import pages, routes, words
from learnvllm.study.site.directives import expand, place_of

SITE = Path(words.__file__).parent
SAID_BY_NAME = {
    *(day.title for day in DAYS),
    *LEVELS,
    *LEVELS.values(),
    *pages.LABELS.values(),
    *(title for _, title in routes.OPERATOR),
    *("Read", "Run", "Build", "Answer"),
    *("concepts", "exercises", "walkthrough", "upstream"),  # pages that an exercise names as its reading
}
"""Texts that reach `say` through a variable."""


def said() -> set[str]:
    """Every text that a generator passes to `say`."""
    found = set()
    for path in SITE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "say":
                found |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return found


def test_every_text_has_a_translation_and_every_translation_is_used() -> None:
    assert said() | SAID_BY_NAME == set(words.CHINESE)


@pytest.mark.parametrize("english", words.CHINESE)
def test_a_translation_has_the_same_gaps_and_alignment(english: str) -> None:
    chinese = words.CHINESE[english]
    assert chinese.count("{}") == english.count("{}")
    if " " not in english:  # the name of a column
        assert chinese.endswith(":") == english.endswith(":")


@pytest.mark.parametrize(
    ("page", "directive"),
    [
        ("index.md", "routes"),
        ("index.md", "days"),
        ("topics/architecture/index.md", "day"),
        ("topics/architecture/exercises.md", "exercises"),
        ("topics/architecture/quiz.md", "quiz"),
    ],
)
def test_a_chinese_page_has_no_english_text_of_ours(page: str, directive: str) -> None:
    text = expand(f"<!-- {directive} -->\n", "zh/" + page)
    assert place_of("zh/" + page).language == "zh"
    left = [one for one in words.CHINESE if " " in one and "{}" not in one and "`" not in one and one in text]
    assert left == []
    assert re.search(r"[\u4e00-\u9fff]", text)
