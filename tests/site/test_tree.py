"""The tree of pages: all in the navigation, the learner's own pages, a folder any generator can build."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from learnvllm.study import notebooks
from learnvllm.study.catalogue import PAGES, find_notebooks
from learnvllm.study.exercise import StudyError
from learnvllm.study.quiz import parse_quiz
from learnvllm.study.site import (
    day_plan,
    log,
    maths,
    nav,
    pages,
    quiz_html,
    routes,
    translation,
    tree,
    wide_tables,
)
from learnvllm.study.site.day_plan import Step


def paths(part: Any) -> list[str]:
    """All pages of a navigation, in order."""
    if isinstance(part, str):
        return [part]
    parts = part.values() if isinstance(part, dict) else part
    return [path for one in parts for path in paths(one)]


@pytest.fixture
def no_notebooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have tests of their own."""
    monkeypatch.setattr(notebooks, "run_all", lambda paths: [])


@pytest.mark.usefixtures("no_notebooks")
def test_every_page_is_in_the_navigation_once() -> None:
    made = tree.site_tree()
    listed = [path for path in paths(nav.navigation(made)) if not path.startswith("notebooks/")]
    assert sorted(listed) == sorted(made)


def test_a_new_start_page_enters_the_navigation_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nav, "DOCS", tmp_path)
    for name in ("zebra.md", "apple.md", "apple.zh.md"):
        (tmp_path / name).write_text("# Page\n", "utf-8")
    start = nav.navigation(["index.md", "performance.md", "zebra.md", "apple.md", "zh/apple.md"])
    assert start[0] == {"Start": ["index.md", "performance.md", "apple.md", "zebra.md"]}
    assert {"中文": ["zh/apple.md"]} in start


@pytest.mark.usefixtures("no_notebooks")
def test_the_folder_for_other_generators_is_plain(tmp_path: Path) -> None:
    out = tmp_path / "out"
    tree.write_site(out)
    assert "<!-- routes -->" not in (out / "docs/index.md").read_text("utf-8")
    assert (out / "docs/reference/cli.md").is_file()
    assert (out / "docs/zh/index.md").is_file()
    assert (out / "docs/assets/extra.css").is_file()
    assert not list(out.rglob("*.zh.md"))
    assert not (out / "docs/hooks").exists()
    config = (out / "mkdocs.yml").read_text("utf-8")
    assert "gen-files" not in config
    assert yaml.safe_load(config[config.index("\nnav:") :])["nav"]
    with pytest.raises(StudyError, match="Name a folder that is empty"):
        tree.write_site(out)


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    """The site's pages, without the notebooks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(notebooks, "run_all", lambda paths: [])
        return {name: text for name, text in tree.site_tree().items() if name.endswith(".md")}


def test_every_column_of_every_table_has_a_name(made: dict[str, str]) -> None:
    nameless = [
        f"{name}: {line}"
        for name, text in made.items()
        for is_code, part in maths.split_code(text)
        if not is_code
        for line, rule in pairwise(part.splitlines())
        if line.startswith("|") and re.fullmatch(r"[|:-]+", rule) and not all(wide_tables.cells(line))
    ]
    assert nameless == []


def test_no_page_shows_the_source_of_a_table(made: dict[str, str]) -> None:
    blocks = [part for text in made.values() for is_code, part in maths.split_code(text) if is_code]
    assert not [block for block in blocks if re.search(r"(?m)^\|[|: -]+-[|: -]*\|$", block)]


def test_chinese_pages_have_chinese_punctuation(made: dict[str, str]) -> None:
    prose = {
        name: re.sub(r"`[^`]*`|\{[^}]*\}", "", part)
        for name, text in made.items()
        if name.startswith("zh/")
        for is_code, part in maths.split_code(pages.split_front_matter(text, name)[1])
        if not is_code
    }
    found = {
        name: re.findall(r".{,9}[\u4e00-\u9fff](?:\]\([^)]*\))?[,:;] .{,9}", text)
        for name, text in prose.items()
    }
    assert not {name: places for name, places in found.items() if places}


def test_a_chinese_day_has_its_notebooks_where_the_english_day_has_them(made: dict[str, str]) -> None:
    listed = paths(nav.navigation([*made, *translation.shown().values()]))
    chinese = [path.removeprefix("zh/") for path in listed if path.startswith("zh/")]
    english = [path for path in listed if path in translation.shown()]
    assert chinese == english
    after = chinese[chinese.index("topics/architecture/concepts.md") + 1]
    assert after.startswith("notebooks/day01_architecture/")


def test_a_notebook_in_the_chinese_section_is_chinese_around_and_links_there() -> None:
    path = next(path for path in find_notebooks() if path.parent.name == "day01_architecture")
    notebook = notebooks.read(path)
    text = next(cell for cell in notebook.cells[1:] if cell.cell_type == "markdown")
    text.source = "[x](../../docs/topics/architecture/concepts.md) `a[0](b)`"
    english = pages.notebook_path(path)
    page = tree.notebook_page(notebook, path, "zh/" + english, english)
    meta, body = pages.split_front_matter(page, path.name)
    assert meta["language"] == "zh"
    assert meta["title"].startswith("架构：")
    assert meta["search"] == {"exclude": True}, "the English page is found"
    assert "下载 notebook" in body
    assert f'href="../../../{english.removesuffix(".md")}.ipynb"' in body
    assert "[x](../../topics/architecture/concepts.md) `a[0](b)`" in body
    assert tree.notebook_page(notebook, path, english, None).startswith("---\ntitle: 'Architecture: ")


def test_the_header_says_which_day_a_page_is_of(made: dict[str, str]) -> None:
    titles = [
        pages.split_front_matter(made[f"topics/kv_cache/{name}.md"], name)[0]["title"] for name in PAGES
    ]
    assert titles[:2] == ["KV cache: concepts", "KV cache: exercises"]
    assert all(title.startswith("KV cache: ") for title in titles)


def test_what_a_page_promises_stands_below_its_title() -> None:
    head = "---\nminutes: 20\noutcome: You see it.\nprerequisites: [Python, architecture.md]\n---\n"
    text = tree.page_text(head + "# Concepts\n\nText.\n", "topics/kv_cache/concepts.md")
    after = text.partition("# KV cache: concepts\n")[2]
    before = "**Before:** Python, [Architecture](../../architecture.md)."
    assert f"**Outcome:** You see it.<br>\n**Minutes:** 20.<br>\n{before}" in after


def test_a_directive_that_cannot_be_followed_is_told_by_its_line_in_the_file() -> None:
    with pytest.raises(StudyError, match=r"docs/architecture.md, line 7: <!-- quiz -->"):
        tree.page_text("---\nminutes: 20\n---\n# Title\n\nText.\n<!-- quiz -->\n", "architecture.md")


# ----------------------------------------------------------------------------------------------- the log


def test_a_learner_who_has_begun_has_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEARNVLLM_STUDY_HOME", str(tmp_path))
    assert log.log_pages() == {}
    entry = tmp_path / "journal" / "day-01.md"
    entry.parent.mkdir()
    head = "---\nday: 1\ntitle: Architecture\ndate: 2026-01-31\nstatus: started\n---\n\n"
    entry.write_text(head + '# Day 1\n\nSee [x](nowhere.md).\n--8<-- "nothing"\n', "utf-8")
    made = log.log_pages()
    assert "## Day 1\n\nSee x.\n\n*Begun 2026-01-31, started.*" in made[log.JOURNAL]
    assert "| ☐ | 1 · Architecture |" in made[log.PROGRESS]
    assert "Next:" in made[log.PROGRESS]
    marked = re.findall(r"(?m)^(.*)\n\n- ☐", made[log.PROGRESS])
    assert marked == ['<div class="checklist" markdown="1">'] * 2, "whose style takes the bullets away"
    entry.write_text("no front matter", "utf-8")
    assert "day-01.md, line 1" in log.log_pages()[log.JOURNAL]


def test_what_a_learner_writes_cannot_stop_the_build_and_their_code_stays() -> None:
    code = "```python\n# not a heading\nhandlers[name](event)\n```"
    text = log.harmless(
        f'# Day\n\n[a](b.md) `c[d](e)` [f](https://g.h)\n\n{code}\n\n[i]\n\n[i]: j.md\n-8<- "k"\n'
    )
    assert text == f"## Day\n\na `c[d](e)` [f](https://g.h)\n\n{code}\n\n[i]"
    assert log.harmless("```\n[a](b.md)\n") == "```\na", "a block that does not end is none"


# --------------------------------------------------------------------------------------- routes and plans


def test_an_hour_is_no_longer_than_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = [Step("Read", "A", "a.md", 25), Step("Read", "B", "b.md", 40), Step("Run", "C", "c.md", 30)]
    monkeypatch.setattr(routes, "_most_worth", lambda say: iter(steps))
    text = routes.routes(lambda path: path).partition("### One hour")[2].partition("###")[0]
    assert "in 55 minutes" in text
    assert "[A](a.md), 25 minutes" in text
    assert "[C](c.md)" in text
    assert "[B]" not in text


def test_a_days_plan_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = [Step("Read", "A", "a.md", 25), Step("Build", "B", "b.md#x", 30, "learnvllm check b")]
    monkeypatch.setattr(day_plan, "steps", lambda day, say: plan)
    lines = day_plan.day_table(SimpleNamespace(number=3), lambda path: path).splitlines()  # type: ignore[arg-type]
    assert lines[3] == "| Build | [B](b.md#x) | 30 | `learnvllm check b` |"
    assert lines[4] == "| | **All** | **55** | `learnvllm day 3` |"


# ------------------------------------------------------------------------------------------------ the quiz

QUIZ = """
day: 3
title: Scheduling
questions:
  - id: q1
    question: "Is `a < b`?"
    type: choice
    choices:
      - {text: "Yes", correct: true, explain: "It *is*."}
      - {text: "No <b>", explain: "It is."}
    read: topics/scheduling/concepts.md#budget
  - id: q2
    question: "How many?"
    type: number
    unit: blocks
    expression: "57"
    answer: 57
    explain: "Count."
"""


def test_a_quiz_can_be_read_without_a_script_and_has_all_that_a_script_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "q.yml").touch()
    monkeypatch.setattr(quiz_html, "quiz_path", lambda day: tmp_path / "q.yml")
    monkeypatch.setattr(quiz_html, "load_quiz", lambda day: parse_quiz(QUIZ, "q.yml", 3))
    day = SimpleNamespace(number=3, title="Scheduling", topic="scheduling")
    text = quiz_html.quiz(day, lambda path: "../" + path)  # type: ignore[arg-type]
    assert text.count("<fieldset") == 2
    assert "<legend>1. Is <code>a &lt; b</code>?</legend>" in text
    assert '<label class="quiz-choice" data-correct="true"><input type="radio" name="q1" value="1">' in text
    assert "It <em>is</em>." in text
    assert 'href="../topics/scheduling/concepts.html#budget"' in text
    assert 'data-answer="57" data-tolerance="0"' in text
    assert "\n\n" not in text
