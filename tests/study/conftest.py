"""A folder of exercises, and a state, that a test may do anything with."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from learnvllm.study.catalogue import find_exercise
from learnvllm.study.exercise import Exercise
from learnvllm.study.starters import render_starter

SOURCE = Path(__file__).resolve().parents[2] / "exercises"


@pytest.fixture
def exercises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """exercises/ with its graders' set-up and one exercise, the free queue, untouched."""
    root = tmp_path / "exercises"
    root.mkdir()
    for name in ("conftest.py", "pytest.ini"):
        shutil.copy(SOURCE / name, root / name)
    for name in ("support", "day04_kv_cache/free_queue"):
        shutil.copytree(SOURCE / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("LEARNVLLM_EXERCISES", str(root))
    monkeypatch.setenv("LEARNVLLM_STUDY_HOME", str(tmp_path / "home"))
    exercise = find_exercise("free_queue")
    exercise.path.write_text(render_starter(exercise), "utf-8")
    return root


@pytest.fixture
def free_queue(exercises: Path) -> Exercise:
    return find_exercise("free_queue")


@pytest.fixture
def write_exercise(exercises: Path) -> Callable[..., Path]:
    """Writes an exercise.toml; returns its folder."""

    def write(name: str = "tiny", day: str = "day01_architecture", **changes: str) -> Path:
        topic = day.partition("_")[2]
        fields = {
            "id": f'"{topic}.{name}"',
            "title": '"Tiny"',
            "level": '"fill-in"',
            "minutes": "5",
            "points": "2",
            "summary": '"Rounds up."',
            "targets": '["learnvllm.architecture.math_utils:cdiv"]',
            "hints": '["one", "two", "three"]',
            "tail": '[[blank]]\nmember = "cdiv"\ntodo = "Round up."\n',
        } | changes
        tail = fields.pop("tail")
        folder = exercises / day / name
        folder.mkdir(parents=True, exist_ok=True)
        lines = [f"{field} = {value}" for field, value in fields.items() if value]
        (folder / "exercise.toml").write_text("\n".join([*lines, "", tail]), "utf-8")
        return folder

    return write
