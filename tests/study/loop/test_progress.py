"""progress.toml: what is recorded is found again, and no accident loses it."""

from __future__ import annotations

import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnvllm.study import files, progress, toml_text
from learnvllm.study.checking import check
from learnvllm.study.exercise import Exercise, StudyError
from learnvllm.study.overview import course
from tests.study.loop.conftest import record_hints


def write(home: Path, text: str | bytes) -> Path:
    home.mkdir(exist_ok=True)
    path = home / "progress.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_nothing_is_recorded_before_the_first_check(home: Path) -> None:
    assert not progress.load_progress().exercises
    assert not home.exists()


def test_a_check_is_found_again(tiny: Exercise, graded: dict[str, Any]) -> None:
    graded["passed"] = False
    check(tiny)
    graded.update(passed=True, hash="b")
    check(tiny)
    record = progress.load_progress().exercises[tiny.id]
    assert (record.attempts, record.points, record.passed_hash) == (2, 2, "b")
    assert record.passed is not None
    assert record.exercise_hash == tiny.content_hash()
    assert progress.load_progress().of(tiny.id).passed


def test_checking_the_same_file_again_is_no_attempt(tiny: Exercise, graded: dict[str, Any]) -> None:
    for _ in range(3):
        check(tiny)
    assert progress.load_progress().of(tiny.id).attempts == 1


def test_a_later_failure_takes_nothing_away(tiny: Exercise, graded: dict[str, Any]) -> None:
    check(tiny)
    graded.update(passed=False, hash="worse")
    check(tiny)
    record = progress.load_progress().of(tiny.id)
    assert record.passed
    assert (record.points, record.checked_passed, record.passed_hash) == (2, False, "a")


def test_a_grader_that_broke_gives_no_points(tiny: Exercise, graded: dict[str, Any]) -> None:
    graded["problem"] = "a test is missing"
    check(tiny)
    assert progress.load_progress().of(tiny.id).points == 0


def test_reset_opens_an_exercise_and_keeps_its_history(tiny: Exercise, graded: dict[str, Any]) -> None:
    check(tiny)
    record_hints(tiny.id, 2)
    progress.record_giving_up(tiny.id)
    progress.record_reset(tiny.id)
    record = progress.load_progress().of(tiny.id)
    assert (record.passed, record.points, record.hints, record.attempts) == (None, 0, 2, 1)
    assert record.gave_up


def test_a_passed_exercise_that_was_changed_since_is_asked_again(
    tiny: Exercise, graded: dict[str, Any]
) -> None:
    check(tiny)
    assert course().days[0].exercises[0].status == "passed"
    tiny.test_path.write_text(tiny.test_path.read_text() + "\n# more\n")
    state = course()
    assert state.days[0].exercises[0].status == "changed"
    following = state.next_exercise()
    assert following is not None
    assert following.exercise.id == tiny.id


UNKNOWN = """\
version = 1
colour = "green"

[exercises."gone.away"]
passed = 2026-01-02T03:04:05Z
mood = "happy"

[exercises."architecture.tiny"]
stars = [1, 2]

[trophies.first]
when = 2026-01-02
"""


def test_what_is_unknown_is_kept(home: Path, tiny: Exercise, graded: dict[str, Any]) -> None:
    path = write(home, UNKNOWN)
    check(tiny)
    kept, before = tomllib.loads(path.read_text()), tomllib.loads(UNKNOWN)
    assert kept["colour"] == "green"
    assert kept["trophies"] == before["trophies"]
    assert kept["exercises"]["gone.away"] == before["exercises"]["gone.away"]
    assert kept["exercises"]["architecture.tiny"]["stars"] == [1, 2]
    assert kept["exercises"]["architecture.tiny"]["attempts"] == 1
    assert course().vanished == ("gone.away",)


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("version = 1\n[exercises.x\n", 2, "]"),
        ("version = 1\n\n[exercises.x]\nhints = 1\nattempts = 'many'\n", 5, "attempts"),
        ("version = 1\n[exercises]\nx = 3\n", 3, "exercises.x: Expected `object`, got `int`"),
        ("exercises = 3\n", 1, "exercises"),
        ("# mine\nversion = 2\n", 2, "version = 2"),
        ("version = 'new'\n", 1, "version"),
        ("version = true\n", 1, "version = True"),
        (b"version = 1\n# \xff\n", 2, "UTF-8"),
        ("version = 1\n[quizzes.day01.answers]\nq = 3\n", 3, "quizzes.day01.answers.q: Expected `object`"),
        (
            "[quizzes.day01.answers]\n"
            "q1 = { right = true, given = 'a', at = 2026-11-01T10:00:00Z }\n"
            "q2 = { right = 'yes', given = 'b', at = 2026-11-01T10:00:00Z }\n",
            3,
            "quizzes.day01.answers.q2.right: Expected `bool`, got `str`",
        ),
        ("version = 1\ntext = '''never\nends\n", 3, ""),
    ],
)
def test_a_file_that_cannot_be_used_is_told_by_its_line_and_left_alone(
    home: Path, text: str | bytes, line: int, says: str, tiny: Exercise, graded: dict[str, Any]
) -> None:
    path = write(home, text)
    before = path.read_bytes()
    with pytest.raises(StudyError, match=f"progress.toml, line {line}: ") as error:
        progress.load_progress()
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    for change in (
        lambda: record_hints("x", 1),
        lambda: progress.record_giving_up("x"),
        lambda: progress.record_reset("x"),
        lambda: progress.record_answer(1, "q", right=True, given="1"),
    ):
        with pytest.raises(StudyError):
            change()
    checked = check(tiny)  # graded all the same
    assert checked.report.passed
    assert checked.record is None
    assert "Not recorded" in checked.problems[0]
    assert path.read_bytes() == before


def test_two_at_once_lose_nothing(home: Path) -> None:
    def record(number: int) -> None:
        record_hints(f"day.exercise{number % 5}", number)
        progress.record_answer(number % 3 + 1, f"q{number}", right=True, given=str(number))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(record, range(60)))
    found = progress.load_progress()
    assert {name: r.hints for name, r in found.exercises.items()} == {
        f"day.exercise{n}": 55 + n for n in range(5)
    }
    assert sum(len(quiz.answers) for quiz in found.quizzes.values()) == 60


def test_a_write_that_fails_leaves_the_old_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record_hints("x.y", 1)
    before = progress.progress_path().read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(StudyError, match="No space left"):
        record_hints("x.y", 2)
    assert progress.progress_path().read_bytes() == before
    assert sorted(path.name for path in home.iterdir()) == ["progress.toml", "progress.toml.lock"]


@pytest.mark.skipif(sys.platform == "win32", reason="flock")
def test_a_disk_without_locks_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def none_left(*_: Any) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none_left)
    with pytest.raises(StudyError, match=r"progress.toml cannot be written: No locks available\."):
        record_hints("x.y", 1)


def test_an_exception_between_reading_and_writing_changes_nothing(home: Path) -> None:
    record_hints("x.y", 1)
    before = progress.progress_path().read_bytes()

    def interrupted() -> None:
        with progress.changing_progress() as state:
            state.of("x.y").hints = 9
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert progress.progress_path().read_bytes() == before
    record_hints("x.y", 3)  # the lock is free again


def test_a_person_can_read_it(tiny: Exercise, graded: dict[str, Any]) -> None:
    check(tiny)
    text = progress.progress_path().read_text()
    assert text.startswith("# Your progress")
    assert '[exercises."architecture.tiny"]' in text
    assert "points = 2" in text


def test_a_benchmark_has_a_change_once_both_were_measured() -> None:
    assert progress.record_benchmark("w", 100, what="speed", unit="tok/s").change is None
    measured = progress.record_benchmark("w", 95, what="speed", unit="tok/s", parts=["a.b"])
    assert measured.change == pytest.approx(-0.05)
    assert progress.load_progress().benchmarks["w"].parts == ["a.b"]


KEYS = st.text(max_size=6)
SCALARS = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
    | st.just(datetime(2026, 1, 2, 3, 4, 5, 600, UTC))
    | st.just(datetime(2026, 1, 2, 3, 4, 5))
    | st.just(date(2026, 1, 2))
    | st.just(time(3, 4, 5))
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_toml_is_read_back_as_it_was(document: dict[str, Any]) -> None:
    assert tomllib.loads(toml_text.dump(document)) == document
