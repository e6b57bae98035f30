"""The catalogue finds exercises by any unambiguous name, and says what is wrong in an exercise.toml."""

from collections.abc import Callable
from pathlib import Path

import pytest

import learnvllm
from learnvllm.study.catalogue import DAYS, exercises_root, find_day, find_exercise, load_exercises
from learnvllm.study.exercise import StudyError


def test_a_day_is_a_package() -> None:
    assert [day.number for day in DAYS] == list(range(1, 12))
    package = Path(learnvllm.__file__).parent
    present = [day for day in DAYS if (package / day.topic).is_dir()]
    assert {day.topic for day in present} >= {"architecture", "engine_core", "scheduling", "kv_cache"}
    with pytest.raises(StudyError, match="no day 12"):
        find_day(12)


@pytest.mark.parametrize("name", ["kv_cache.free_queue", "free_queue", "queue"])
def test_an_exercise_is_found_by_any_end_of_its_id(exercises: Path, name: str) -> None:
    assert find_exercise(name).id == "kv_cache.free_queue"


def test_an_exercise_is_found_by_its_path(exercises: Path) -> None:
    folder = exercises / "day04_kv_cache/free_queue"
    assert find_exercise(str(folder)).id == find_exercise(str(folder / "exercise.py")).id


def test_a_name_that_is_none_is_answered_with_what_was_meant(exercises: Path) -> None:
    with pytest.raises(StudyError, match=r"no exercise 'fre_queue'. Did you mean kv_cache.free_queue\?"):
        find_exercise("fre_queue")
    with pytest.raises(StudyError, match="learnvllm progress"):
        find_exercise("")


def test_a_name_of_two_exercises_is_refused(write_exercise: Callable[..., Path]) -> None:
    write_exercise("other_queue")
    with pytest.raises(StudyError, match="architecture.other_queue, kv_cache.free_queue"):
        find_exercise("queue")


def test_exercises_come_by_day_then_order(write_exercise: Callable[..., Path]) -> None:
    write_exercise("b", order="1")
    write_exercise("a", order="2")
    write_exercise("c", order="1", day="day03_scheduling")
    ids = [exercise.id for exercise in load_exercises()]
    assert ids == ["architecture.b", "architecture.a", "scheduling.c", "kv_cache.free_queue"]


def test_without_a_folder_one_is_told_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEARNVLLM_EXERCISES", str(tmp_path / "nowhere"))
    with pytest.raises(StudyError, match="LEARNVLLM_EXERCISES names no folder"):
        exercises_root()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"minutes": '"ten"'}, r"exercise.toml: Expected `int`, got `str` - at `\$.minutes`"),
        ({"minuets": "5"}, "unknown field `minuets`"),
        ({"title": ""}, "missing required field `title`"),
        ({"minutes": ""}, "missing required field `minutes`"),
        ({"id": '"architecture.other"'}, "must be 'architecture.tiny', after its folder"),
        ({"level": '"hard"'}, "level = 'hard' is none of fill-in"),
        ({"folder": '"here"'}, "exercise.toml: its place says what folder would"),
        ({"points": "0"}, "points = 0 must be above 0"),
        ({"targets": "[]"}, "targets is empty"),
        ({"targets": '["learnvllm.architecture.math_utils"]'}, "no ':Symbol'"),
        ({"targets": '["learnvllm.a:X", "learnvllm.b:Y"]'}, "several modules"),
        ({"hints": '["one", "two"]'}, "2 hints: at least 3"),
        ({"hints": '["one", "two", "two"]'}, "two hints are the same"),
        ({"tail": ""}, r"\[\[blank\]\] is needed"),
        ({"level": '"break-and-fix"'}, r"\[bug\] belongs to break-and-fix"),
        ({"prerequisites": '["architecture.tiny"]'}, "its own prerequisite"),
        ({"title": '"open'}, "exercise.toml: .*line 2"),
    ],
)
def test_a_wrong_exercise_toml_is_named_with_its_mistake(
    write_exercise: Callable[..., Path], change: dict[str, str], message: str
) -> None:
    write_exercise(**change)
    with pytest.raises(StudyError, match=message):
        load_exercises()
