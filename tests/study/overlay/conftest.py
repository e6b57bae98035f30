"""A learner with all exercises before them, and programs to run with their code.

Each in a process of its own: an overlay changes a process for good.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from learnvllm.study import progress
from learnvllm.study.catalogue import find_exercise, load_exercises
from learnvllm.study.exercise import Exercise, file_hash
from learnvllm.study.grading import GradeReport
from learnvllm.study.mutants import apply_mutant, find_mutant
from learnvllm.study.starters import render_solution, render_starter
from tests.study.conftest import SOURCE

ROOT = SOURCE.parent


@dataclass
class Learner:
    """Their exercises/ folder, and what they can do with it."""

    root: Path

    def write(self, name: str, text: str) -> Exercise:
        exercise = find_exercise(name)
        exercise.path.write_text(text, "utf-8")
        return exercise

    def solve(self, name: str, *edits: tuple[str, str]) -> Exercise:
        """As the reference does it, with edits of theirs."""
        text = render_solution(find_exercise(name))
        for old, new in edits:
            assert text.count(old) == 1, f"{old!r} occurs {text.count(old)} times"
            text = text.replace(old, new)
        return self.write(name, text)

    def mutate(self, name: str, mutant: str) -> Exercise:
        """Wrong, but plausible."""
        exercise = find_exercise(name)
        return self.write(name, apply_mutant(render_solution(exercise), find_mutant(exercise, mutant)))

    def reset(self, name: str) -> Exercise:
        return self.write(name, render_starter(find_exercise(name)))

    def passes(self, name: str) -> None:
        """The grader's verdict on the file as it is now, without the grader."""
        exercise = find_exercise(name)
        digest = file_hash(exercise.path)
        report = GradeReport(
            exercise.id, exercise.path, True, exercise.points, exercise.points, (), None, 0, digest
        )
        progress.record_check(exercise, report)

    def python(self, code: str, overlay: str | None = None, *, shadow: bool = False) -> str:
        """Run a program that ends well; its output."""
        done = self.try_python(code, overlay, shadow=shadow)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def try_python(
        self, code: str, overlay: str | None = None, *, shadow: bool = False
    ) -> subprocess.CompletedProcess[str]:
        return self.run([sys.executable, "-c", textwrap.dedent(code)], overlay, shadow=shadow)

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run([sys.executable, "-m", "learnvllm", *arguments])

    def run(
        self, command: list[str], overlay: str | None = None, *, shadow: bool = False
    ) -> subprocess.CompletedProcess[str]:
        env = dict(os.environ)
        env |= {"LEARNVLLM_OVERLAY": overlay} if overlay else {}
        env |= {"LEARNVLLM_SHADOW": "1"} if shadow else {}
        return subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, timeout=240)


@pytest.fixture(scope="session")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """exercises/ as it is before anybody has done one, whatever this checkout's owner has."""
    root = tmp_path_factory.mktemp("untouched") / "exercises"
    shutil.copytree(SOURCE, root, ignore=shutil.ignore_patterns("__pycache__", ".hypothesis"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEARNVLLM_EXERCISES", str(root))
        for exercise in load_exercises():
            exercise.path.write_text(render_starter(exercise), "utf-8")
    return root


@pytest.fixture
def learner(untouched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Learner:
    root = tmp_path / "exercises"
    shutil.copytree(untouched, root)
    monkeypatch.setenv("LEARNVLLM_EXERCISES", str(root))
    monkeypatch.setenv("LEARNVLLM_STUDY_HOME", str(tmp_path / "home"))
    return Learner(root)
