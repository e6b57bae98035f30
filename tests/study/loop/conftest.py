"""A learner of their own for every test: state, journal and exercises in a temporary folder."""

from __future__ import annotations

import io
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from learnvllm import cli
from learnvllm.study import grading, progress, quiz
from learnvllm.study.catalogue import find_exercise
from learnvllm.study.exercise import Exercise
from learnvllm.study.grading import GradeReport, TestReport
from learnvllm.study.site import day_plan
from learnvllm.study.starters import render_starter

GRADER = """
import pytest
from learnvllm.study.subject import load_subject
subject = load_subject(__file__)

@pytest.mark.points(2)
def test_seven_halves_are_four():
    got = subject.cdiv(7, 2)
    assert got == 4, f"cdiv(7, 2): expected 4, got {got}; read docs/topics/architecture"
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """LEARNVLLM_STUDY_HOME; no editor opens."""
    folder = tmp_path / "home"
    monkeypatch.setenv("LEARNVLLM_STUDY_HOME", str(folder))
    for name in ("EDITOR", "VISUAL", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return folder


@pytest.fixture
def tiny(write_exercise: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Exercise:
    """An exercise of one line: cdiv. It is all there is to do on its day, which has no quiz."""
    for module in (quiz, day_plan):
        monkeypatch.setattr(module, "quiz_path", lambda day: tmp_path / "no quiz")
    folder = write_exercise()
    (folder / "test_exercise.py").write_text(GRADER, "utf-8")
    exercise = find_exercise("tiny")
    exercise.path.write_text(render_starter(exercise), "utf-8")
    return exercise


def record_hints(exercise_id: str, shown: int) -> None:
    """As if that many had been shown."""
    with progress.changing_progress() as state:
        state.of(exercise_id).hints = max(state.of(exercise_id).hints, shown)


@dataclass
class Shell:
    """Runs commands as a learner types them; keeps what they printed."""

    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch
    out: str = ""
    err: str = ""

    def __call__(self, line: str, stdin: str = "") -> int:
        self.monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        code = cli.main(shlex.split(line))
        self.out, self.err = self.capsys.readouterr()
        return code


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(capsys, monkeypatch)


@pytest.fixture
def graded(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Stands in for the grader: says what this dictionary says; `calls` counts."""
    says: dict[str, Any] = {"passed": True, "hash": "a", "raises": None, "calls": 0, "problem": None}

    def grade(exercise: Exercise, *args: Any, on_test: Any = None, **kwargs: Any) -> GradeReport:
        says["calls"] += 1
        if says["raises"]:
            raise says["raises"]
        if on_test:
            on_test("test_it")
        passed = says["passed"]
        points = exercise.points if passed else 0
        outcome, message = ("passed", "") if passed else ("failed", "expected 4, got 3\nread the page")
        test = TestReport("test_it_works", outcome, points, exercise.points, message)
        return GradeReport(
            exercise_id=exercise.id,
            subject=exercise.path,
            passed=passed,
            points=points,
            max_points=exercise.points,
            tests=(test,),
            problem=says["problem"],
            seconds=0.1,
            subject_hash=says["hash"],
        )

    monkeypatch.setattr(grading, "grade", grade)
    return says
