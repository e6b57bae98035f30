"""The study screen, driven by its keys."""

from __future__ import annotations

import io
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from rich.console import Console
from textual.pilot import Pilot
from textual.widgets import Markdown, RichLog, Static, TabbedContent, Tree
from textual.widgets.markdown import MarkdownBlock

from learnvllm.study import grading, progress
from learnvllm.study.checking import TIME_LIMIT_S
from learnvllm.study.exercise import Exercise
from learnvllm.study.screen import StudyApp
from learnvllm.study.terminal import names_kept, print_markdown

SIZE = (120, 40)


def log_text(app: StudyApp) -> str:
    return "\n".join(line.text for line in app.query_one("#log", RichLog).lines)


def labels(app: StudyApp) -> list[str]:
    tree: Tree[Exercise] = app.query_one("#days", Tree)
    return [str(node.label) for day in tree.root.children for node in (day, *day.children)]


async def settled(app: StudyApp, pilot: Pilot[None]) -> None:
    await app.workers.wait_for_complete()
    await pilot.pause()


async def test_it_begins_with_what_comes_next(tiny: Exercise) -> None:
    app = StudyApp()
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause()
        assert " 1 Architecture  0/1" in labels(app)
        assert "  Tiny" in labels(app)
        assert "# Tiny" in app.query_one("#exercise", Markdown).source
        assert "0 of 2 exercises" in str(app.query_one("#standing", Static).render())


@pytest.mark.parametrize("width", [80, 110, 160])
async def test_what_is_on_the_right_is_wrapped_at_the_edge(width: int, tiny: Exercise) -> None:
    app = StudyApp("tiny")
    async with app.run_test(size=(width, 40)) as pilot:
        await pilot.pause()
        page = app.query_one("#exercise", Markdown)
        assert page.region.width > width // 3
        shown = [app.query_one("#tabs"), page, *page.query("*")]
        assert max(widget.region.right for widget in shown) <= width
        assert page.query("*").first().region.center[0] == pytest.approx(page.region.center[0], abs=1)


async def test_a_check_runs_beside_the_screen_and_is_recorded(tiny: Exercise, graded: dict[str, Any]) -> None:
    app = StudyApp("tiny")
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("c")
        await settled(app, pilot)
        assert app.query_one("#tabs", TabbedContent).active == "check-tab"
        assert "Passed: 2 of 2 points" in log_text(app)
        assert "✓ Tiny" in labels(app)
        await pilot.press("n")
        await pilot.pause()
        assert "# A free queue" in app.query_one("#exercise", Markdown).source
    assert progress.load_progress().of(tiny.id).passed


async def test_while_one_check_runs_the_screen_answers_and_no_second_begins(
    tiny: Exercise, graded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, plain = threading.Event(), grading.grade

    def slow(*args: Any, **kwargs: Any) -> Any:
        assert go_on.wait(30)
        return plain(*args, **kwargs)

    monkeypatch.setattr(grading, "grade", slow)
    app = StudyApp("tiny")
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("c", "c", "h")
        await pilot.pause()
        assert app.grading
        assert app.query_one("#tabs", TabbedContent).active == "hints-tab"
        go_on.set()
        await settled(app, pilot)
        assert not app.grading
    assert graded["calls"] == 1


async def test_leaving_ends_the_grader(tiny: Exercise, tmp_path: Path) -> None:
    """A loop that never ends is stopped when the screen closes, long before its time limit."""
    marker = tmp_path / "pid"
    tiny.path.write_text(
        f"import os\nopen({str(marker)!r}, 'w').write(str(os.getpid()) + chr(10))\n"
        "def cdiv(a, b):\n    while True: pass\n"
    )
    app = StudyApp("tiny")
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("c")
        while not (marker.exists() and marker.read_text().endswith("\n")):
            await pilot.pause(0.02)
        assert app.grading
        await pilot.press("q")
    deadline = time.monotonic() + TIME_LIMIT_S / 2
    while psutil.pid_exists(int(marker.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert progress.load_progress().exercises == {}


async def test_hints_come_one_by_one(tiny: Exercise) -> None:
    app = StudyApp("tiny")
    async with app.run_test(size=SIZE) as pilot:
        for count in (1, 2, 3, 3):
            await pilot.press("h")
            await pilot.pause()
            source = app.query_one("#hints", Markdown).source
            assert source.count("### Hint") == count
        assert "There are no more." in source
    assert progress.load_progress().of(tiny.id).hints == 3


async def test_the_journal_is_made_and_shown(tiny: Exercise, home: Path) -> None:
    app = StudyApp("tiny")
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("j")
        await pilot.pause()
        assert app.query_one("#tabs", TabbedContent).active == "journal-tab"
        assert "## Breakthroughs" in app.query_one("#journal", Markdown).source
    assert (home / "journal/day-01.md").exists()


async def test_watching_checks_when_the_file_is_saved(
    tiny: Exercise, graded: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = threading.Event()

    def changes(paths: list[Path], wait: Any) -> Any:
        assert paths == [tiny.path]
        while not saved.is_set():
            wait(0.01)
        yield
        while True:
            wait(0.01)

    monkeypatch.setattr("learnvllm.study.watch.changes", changes)
    app = StudyApp("tiny")
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w")
        while graded["calls"] < 1 or app.grading:
            await pilot.pause(0.01)
        assert "watching" in str(app.query_one("#standing", Static).render())
        saved.set()
        while graded["calls"] < 2 or app.grading:
            await pilot.pause(0.01)
        await pilot.press("w")
        await settled(app, pilot)
        assert "watching" not in str(app.query_one("#standing", Static).render())


async def test_an_exercise_is_chosen_in_the_tree_which_ends_watching(
    tiny: Exercise, graded: dict[str, Any]
) -> None:
    app = StudyApp("tiny")
    async with app.run_test(size=SIZE) as pilot:
        await pilot.press("w")
        while graded["calls"] < 1 or app.grading:
            await pilot.pause(0.01)
        assert "watching" in str(app.query_one("#standing", Static).render())
        tree: Tree[Exercise] = app.query_one("#days", Tree)
        leaf = next(
            n for day in tree.root.children for n in day.children if n.data and n.data.name == "free_queue"
        )
        tree.move_cursor(leaf)
        tree.focus()
        await pilot.press("enter")
        await pilot.pause()
        assert "# A free queue" in app.query_one("#exercise", Markdown).source
        assert "watching" not in str(app.query_one("#standing", Static).render())


async def test_a_state_file_that_breaks_meanwhile_is_said(
    tiny: Exercise, graded: dict[str, Any], home: Path
) -> None:
    app = StudyApp("tiny")
    async with app.run_test(size=SIZE) as pilot:
        home.mkdir(exist_ok=True)
        (home / "progress.toml").write_text("version = [\n")
        await pilot.press("c")
        await settled(app, pilot)
        assert "Not recorded" in log_text(app)
        await pilot.press("h", "j")
        await pilot.pause()
    assert (home / "progress.toml").read_text() == "version = [\n"


async def test_an_error_is_told_whatever_is_in_it(tiny: Exercise, home: Path) -> None:
    """The learner's words are no markup."""
    path = home / "journal" / "day-01.md"
    path.parent.mkdir(parents=True)
    path.write_text('---\ndate: 2026-01-31\nstatus: "[/]"\n---\n', "utf-8")
    app = StudyApp("tiny")
    async with app.run_test(size=SIZE, notifications=True) as pilot:
        await pilot.press("j")
        await pilot.pause()
        shown = "".join(str(toast.render()) for toast in app.query("Toast"))
        assert "status: '[/]' is none of open" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("written", "markdown"),
    [
        ("__lt__, _x and x_", r"\_\_lt\_\_, \_x and x\_"),
        ("max_num_seqs and *words*", "max_num_seqs and *words*"),
        ("`__eq__` and ``a ` __b__``", "`__eq__` and ``a ` __b__``"),
        ("so:\n```python\nself.__dict__\n```\n__c__", "so:\n```python\nself.__dict__\n```\n\\_\\_c\\_\\_"),
    ],
)
def test_underscores_at_the_edge_of_a_word_are_letters_of_it(written: str, markdown: str) -> None:
    assert names_kept(written) == markdown


def test_a_terminal_shows_them_too() -> None:
    out = Console(file=io.StringIO(), force_terminal=True, width=80)
    print_markdown(out, "For __lt__ compare two tuples.")
    assert "For __lt__ compare" in out.file.getvalue()


async def test_a_name_with_underscores_is_shown_as_it_is(tiny: Exercise) -> None:
    """Hints name methods; an author who sets one in italics writes *."""
    hints = ("For __lt__ compare two tuples; `__eq__` and _private too, *never* __len__.", *tiny.hints[1:])
    app = StudyApp("tiny")
    async with app.run_test(size=SIZE) as pilot:
        app.exercise = msgspec.structs.replace(tiny, hints=hints)
        app._show_hints(1)
        app.query_one("#tabs", TabbedContent).active = "hints-tab"
        await pilot.pause()
        blocks = app.query_one("#hints", Markdown).query(MarkdownBlock)
        shown = " ".join(block._content.plain for block in blocks)
    assert "For __lt__ compare two tuples; __eq__ and _private too, never __len__." in shown


@pytest.mark.parametrize(("width", "whole"), [(80, False), (120, True)])
async def test_a_title_is_whole_where_there_is_room_and_else_ends_in_an_ellipsis(
    width: int, whole: bool, tiny: Exercise, monkeypatch: pytest.MonkeyPatch
) -> None:
    title = "A title of fifty letters, about as long as they get"
    app = StudyApp("tiny")
    for state in app.course.exercises:
        if state.exercise.id == tiny.id:
            object.__setattr__(state, "exercise", msgspec.structs.replace(tiny, title=title))
    async with app.run_test(size=(150, 40)) as pilot:
        await pilot.resize_terminal(width, 40)
        await pilot.pause()
        tree = app.query_one("#days", Tree)
        line = next(label for label in labels(app) if "A title" in label)
        assert (line == f"  {title}") == whole
        assert whole or line.endswith("…")
        assert tree.region.width <= width // 2
        assert tree.virtual_size.width <= tree.scrollable_content_region.width, "nothing is cut at its edge"


async def test_a_path_that_is_told_is_not_broken_within_a_name(tiny: Exercise) -> None:
    path = "/" + "/".join(f"a_folder_with_a_long_name_{n}" for n in range(6)) + "/day-01.md"
    app = StudyApp("tiny")
    async with app.run_test(size=(80, 40), notifications=True) as pilot:
        app._tell(f"Write in {path}")
        await pilot.pause()
        toast = app.query_one("Toast")
        lines = [line.rstrip() for line in str(toast.render()).splitlines()]
        assert all(len(line) <= toast.content_region.width for line in lines), "textual breaks no line itself"
    assert "".join(lines[1:]) == path
    assert all(line.endswith("/") for line in lines[1:-1])
