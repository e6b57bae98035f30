"""`learnvllm study`: days, exercises, hints, the grader's words and the journal on one screen.

A view over what the commands do: the grader runs in a thread while the screen stays alive, and every key has
a command of the same name. The learner edits in their own editor beside it; `w` checks whenever they save.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Event
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult, SuspendNotSupported
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.notifications import SeverityLevel
from textual.widgets import Footer, Header, Markdown, RichLog, Static, TabbedContent, TabPane, Tree
from textual.worker import Worker, WorkerState

from learnvllm.study import files, journal, watch
from learnvllm.study.catalogue import find_exercise
from learnvllm.study.checking import Checked, check
from learnvllm.study.exercise import Exercise, StudyError
from learnvllm.study.overview import Course, ExerciseState, course
from learnvllm.study.progress import record_hint
from learnvllm.study.screen_text import (
    INDENT,
    describe,
    hints_text,
    leaf,
    paths_broken,
    report_text,
    standing,
    tree_width,
)
from learnvllm.study.terminal import edit, editor, readable


class StudyApp(App[None]):
    """The whole companion. `start`: the exercise to begin with, or the end of its id."""

    TITLE = "learnvllm"
    CSS = """
    #days { border-right: solid $primary; }
    #tabs { width: 1fr; height: 1fr; }
    #standing { height: 1; padding: 0 1; background: $boost; }
    TabPane { padding: 0 1; }
    Toast { width: auto; max-width: 90%; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "check", "Check"),
        Binding("w", "watch", "Watch"),
        Binding("h", "hint", "Hint"),
        Binding("n", "next", "Next"),
        Binding("e", "edit", "Edit"),
        Binding("j", "journal", "Journal"),
        Binding("r", "refresh", "Refresh", show=False),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(self, start: str | None = None) -> None:
        super().__init__()
        self.course: Course = course()
        self.exercise: Exercise | None = find_exercise(start) if start is not None else self._following()
        self.grading = False
        """A check runs; there is one at a time."""
        self._saved_meanwhile = False
        """While a check ran, the file that is watched was saved: check it again."""
        self._watching: Event | None = None
        self._leaving = Event()

    def compose(self) -> ComposeResult:
        yield Header()
        with Horizontal():
            yield Tree[Exercise]("The eleven days", id="days")
            with TabbedContent(id="tabs"):
                with TabPane("Exercise", id="exercise-tab"), VerticalScroll():
                    yield Markdown(id="exercise")
                with TabPane("Check", id="check-tab"):
                    yield RichLog(id="log", wrap=True, min_width=20)
                with TabPane("Hints", id="hints-tab"), VerticalScroll():
                    yield Markdown(id="hints")
                with TabPane("Journal", id="journal-tab"), VerticalScroll():
                    yield Markdown(id="journal")
        yield Static(id="standing")
        yield Footer()

    def on_mount(self) -> None:
        self._fill_tree()
        self._show_exercise()
        self.query_one(Tree).focus()

    # ---------------------------------------------------------------------------------------------- showing

    def _following(self) -> Exercise | None:
        state = self.course.next_exercise()
        return state.exercise if state else None

    def _fill_tree(self) -> None:
        tree: Tree[Exercise] = self.query_one("#days", Tree)
        tree.clear()
        tree.show_root, tree.guide_depth = False, INDENT
        for day in self.course.days:
            told = f"{day.passed}/{len(day.exercises)}" if day.exercises else day.status
            branch = tree.root.add(f"{day.day.number:>2} {day.day.title}  {told}", expand=bool(day.exercises))
            for state in day.exercises:
                node = branch.add_leaf("", data=state.exercise)
                if self.exercise and state.exercise.id == self.exercise.id:
                    tree.call_after_refresh(tree.move_cursor, node)
        self._fit_tree()
        self._show_standing()

    def _fit_tree(self) -> None:
        """As wide as its titles need and the screen allows; longer titles are cut visibly."""
        width = tree_width(self.course, self.size.width)
        states = {state.exercise.id: state for state in self.course.exercises}
        for tree in self.query("#days").results(Tree):  # none before the screen is composed
            tree.styles.width = width
            for node in (node for day in tree.root.children for node in day.children):
                if node.data is not None:
                    node.set_label(leaf(states[node.data.id], width))

    def on_resize(self) -> None:
        self.call_after_refresh(self._fit_tree)

    def _show_standing(self) -> None:
        told = standing(self.course, watching=self._watching is not None)
        self.query_one("#standing", Static).update(told)

    def _state(self) -> ExerciseState | None:
        here = self.exercise and self.exercise.id
        return next((state for state in self.course.exercises if state.exercise.id == here), None)

    def _show_exercise(self) -> None:
        state = self._state()
        self.query_one("#exercise", Markdown).update(
            describe(state) if state else "# Every exercise has passed"
        )
        self._show_hints(state.record.hints if state else 0)
        self._show_journal()

    def _show_hints(self, count: int) -> None:
        self.query_one("#hints", Markdown).update(hints_text(self.exercise, count))

    def _show_journal(self) -> None:
        day = self.exercise.day if self.exercise else 1
        try:
            entry = journal.read_entry(day)
            text = entry.body if entry else f"No entry for day {day} yet. Press `j` to begin it."
        except StudyError as error:
            text = str(error)
        self.query_one("#journal", Markdown).update(text)

    def _reload(self) -> None:
        """Read everything again; a state file that became unreadable is said, and the last view stays."""
        try:
            self.course = course()
        except StudyError as error:
            self._tell_error(str(error))
        self._fill_tree()
        self._show_exercise()

    def _tell_error(self, said: str) -> None:
        self._tell(said, severity="error", timeout=15)

    def _tell(self, said: str, severity: SeverityLevel = "information", timeout: float | None = None) -> None:
        """Whatever is in it: it is no markup, and a long path breaks where a reader can follow it."""
        told = paths_broken(said, self.size.width * 8 // 10)
        self.notify(told, severity=severity, timeout=timeout, markup=False)

    def _tab(self, name: str) -> None:
        self.query_one("#tabs", TabbedContent).active = f"{name}-tab"

    # ---------------------------------------------------------------------------------------------- actions

    def on_tree_node_selected(self, event: Tree.NodeSelected[Exercise]) -> None:
        if event.node.data is not None and event.node.data != self.exercise:
            self._stop_watching()
            self.exercise = event.node.data
            self._show_exercise()
            self._show_standing()
        if event.node.data is not None:
            self._tab("exercise")

    def action_next(self) -> None:
        self._stop_watching()
        self.exercise = self._following()
        self._fill_tree()
        self._show_exercise()
        self._tab("exercise")

    def action_refresh(self) -> None:
        self._reload()

    def action_hint(self) -> None:
        if self.exercise is None:
            return
        try:
            count = record_hint(self.exercise)
        except StudyError as error:
            self._tell_error(str(error))
            return
        self._reload()
        self._show_hints(count)
        self._tab("hints")

    def action_journal(self) -> None:
        if self.exercise is None:
            return
        try:
            path = journal.refresh(self.exercise.day).path
        except StudyError as error:
            self._tell_error(str(error))
            return
        self._show_journal()
        self._tab("journal")
        self._tell(f"Write in {files.shown(path)}")

    def action_edit(self) -> None:
        if self.exercise is None:
            return
        if not editor():
            shown = files.shown(self.exercise.path)
            self._tell(f"EDITOR is not set. The file: {shown}", timeout=10)
            return
        try:
            with self.suspend():
                edit(self.exercise.path)
        except (StudyError, SuspendNotSupported) as error:
            self._tell_error(str(error))

    def action_check(self) -> None:
        if self.exercise is None or self.grading:
            return
        self.grading = True
        self._tab("check")
        log = self.query_one("#log", RichLog)
        log.clear()
        log.write(Text(f"grading {files.shown(self.exercise.path)} …"))
        self._grade(self.exercise)

    def action_watch(self) -> None:
        if self._watching:
            self._stop_watching()
        elif self.exercise is not None:
            self._watching = Event()
            self._watch(self.exercise, self._watching)
            self.action_check()
        self._show_standing()

    def _stop_watching(self) -> None:
        self._saved_meanwhile = False
        if self._watching:
            self._watching.set()
            self._watching = None

    def on_unmount(self) -> None:
        self._leaving.set()
        self._stop_watching()

    # ------------------------------------------------------------------------------------------- background

    @work(thread=True, group="grade", exit_on_error=False)
    def _grade(self, exercise: Exercise) -> Checked:
        def stop_if_leaving() -> None:
            if self._leaving.is_set():
                raise _Stopped

        say = partial(self._from_thread, self._say_running)
        return check(exercise, on_test=say, on_tick=stop_if_leaving)

    @work(thread=True, group="watch")
    def _watch(self, exercise: Exercise, stop: Event) -> None:
        def wait(seconds: float) -> None:
            if stop.wait(seconds):
                raise _Stopped

        try:
            for _ in watch.changes([exercise.path], wait):
                self._from_thread(self._check_saved)
        except _Stopped:
            pass

    def _check_saved(self) -> None:
        self._saved_meanwhile = self.grading  # what is being graded is not what was saved
        self.action_check()

    def _from_thread(self, call: Callable[..., None], *arguments: str) -> None:
        """Not while the screen closes: then nobody looks any more."""
        if self.is_running and not self._leaving.is_set():
            self.call_from_thread(call, *arguments)

    def _say_running(self, name: str) -> None:
        self.query_one("#log", RichLog).write(Text(f"  {readable(name)}"))

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.worker.group != "grade" or event.state not in (WorkerState.SUCCESS, WorkerState.ERROR):
            return
        self.grading = False
        if self._leaving.is_set():
            return
        log = self.query_one("#log", RichLog)
        log.clear()
        if event.state is WorkerState.SUCCESS:
            checked = event.worker.result
            assert isinstance(checked, Checked)
            log.write(report_text(checked))
        else:
            log.write(Text(f"The check did not run: {event.worker.error}"))
        self._reload()
        if self._saved_meanwhile:
            self._saved_meanwhile = False
            self.action_check()


class _Stopped(Exception):
    """Nobody waits for the check, or watches, any more."""
