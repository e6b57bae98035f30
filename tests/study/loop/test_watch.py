"""Watching: every save is noticed once, and a file that is being replaced is waited for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from learnvllm.study import watch


class Enough(Exception):
    """The test has seen what it wanted."""


def script(*steps: Callable[[], object]) -> Callable[[float], None]:
    """A `wait` that does the next thing each time, and ends the watching after the last."""
    waiting: Iterator[Callable[[], object]] = iter(steps)

    def wait(seconds: float) -> None:
        step = next(waiting, None)
        if step is None:
            raise Enough
        step()

    return wait


def count(path: Path, *steps: Callable[[], object]) -> int:
    seen = 0
    try:
        for _ in watch.changes([path], script(*steps)):
            seen += 1
    except Enough:
        return seen
    raise AssertionError("watching ends with the script")


def nothing() -> None:
    pass


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "exercise.py"
    path.write_text("one")
    return path


def test_a_save_is_noticed_once(file: Path) -> None:
    assert count(file, nothing, lambda: file.write_text("longer"), nothing, nothing) == 1


def test_the_same_size_is_noticed_by_its_time(file: Path) -> None:
    assert count(file, lambda: os.utime(file, ns=(1, 1))) == 1


def test_a_file_that_is_gone_for_a_moment_is_one_change(file: Path) -> None:
    assert count(file, file.unlink, nothing, lambda: file.write_text("again"), nothing) == 1
    assert count(file, file.unlink, nothing) == 0


def test_a_save_while_the_consumer_was_busy_is_noticed(file: Path) -> None:
    before = watch.state_of([file])
    file.write_text("longer")
    next(watch.changes([file], script(nothing), since=before))


def test_no_save_no_check(file: Path) -> None:
    assert count(file, nothing, nothing, nothing) == 0
