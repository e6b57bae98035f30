"""Quizzes: a wrong file is told by its question, an answer is judged and explained, and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from learnvllm.study import files, quiz
from learnvllm.study.exercise import StudyError
from learnvllm.study.progress import load_progress
from tests.study.loop.conftest import Shell

ROOT = Path(__file__).resolve().parents[3]
NUMBERS = json.loads((ROOT / "tests/site/js/numbers.json").read_text("utf-8"))
QUIZ = """\
day: 4
title: KV cache
questions:
  - id: kv-01
    question: "Which **block** leaves first?"
    type: choice
    choices:
      - {text: "the newest", explain: "It may be hit again."}
      - {text: "the least recently used", correct: true, explain: "LRU."}
    read: topics/kv_cache/concepts.md#eviction
  - id: kv-02
    question: "Which have a hash?"
    type: multiple
    choices:
      - {text: "full blocks", correct: true, explain: "Their tokens are final."}
      - {text: "partial blocks", explain: "Their tokens may still grow."}
      - {text: "shared blocks", correct: true, explain: "Sharing goes by hash."}
  - id: kv-03
    question: "Blocks of 16 for 900 tokens?"
    type: number
    unit: blocks
    imports: ["from learnvllm.architecture.math_utils import cdiv"]
    expression: "cdiv(900, 16)"
    answer: 57
    explain: "Round up."
"""


@pytest.fixture
def day4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exercises: Path) -> Path:
    """A checkout with this one quiz."""
    monkeypatch.setattr(files, "ROOT", tmp_path)
    path = tmp_path / "quizzes/day04.yml"
    path.parent.mkdir()
    path.write_text(QUIZ, "utf-8")
    return path


def test_answers_are_judged_explained_and_kept(day4: Path, shell: Shell) -> None:
    assert shell("quiz 4", stdin="1\n1 2\n57 blocks\n") == 0
    out = shell.out
    assert "Which **block** leaves first?" in out
    for text in (
        "It may be hit again.",
        "Right: the least recently used LRU.",
        "docs/topics/kv_cache/concepts.md",
    ):
        assert text in out
    assert "Their tokens may still grow." in out
    assert "Right: shared blocks" in out
    assert "1 of 3 right." in out
    answers = load_progress().quizzes["day04"].answers
    assert {name: (a.right, a.given) for name, a in answers.items()} == {
        "kv-01": (False, "1"),
        "kv-02": (False, "1 2"),
        "kv-03": (True, "57 blocks"),
    }


def test_only_what_is_not_right_is_asked_again(day4: Path, shell: Shell) -> None:
    shell("quiz 4", stdin="2\nq\n")
    assert shell("quiz 4", stdin="3,1\n57\n") == 0
    assert "leaves first" not in shell.out
    assert "2 of 2 right." in shell.out
    assert shell("quiz 4") == 0
    assert "All 3 are right" in shell.out
    assert shell("quiz 4 --again", stdin="2\n") == 0
    assert "leaves first" in shell.out
    assert shell("progress") == 0
    assert "quiz 3/3" in shell.out


def test_nonsense_is_asked_for_again(day4: Path, shell: Shell) -> None:
    assert shell("quiz 4", stdin="x\n\n3\n1 2\n2\n1 3\nmany\n57\n") == 0
    assert "3 of 3 right." in shell.out
    assert "Type a number from 1 to 2" in shell.out
    assert "'many' is no number" in shell.out


def test_a_program_reads_questions_without_their_answers(day4: Path, shell: Shell) -> None:
    shell("quiz 4", stdin="2\n")
    assert shell("quiz 4 --json") == 0
    told = json.loads(shell.out)
    assert [q["right"] for q in told["questions"]] == [True, None, None]
    assert "explain" not in shell.out
    assert "57" not in shell.out


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("day: 4", "day: 5", "day: 5 should be 4"),
        ('question: "Blocks of 16', '"', "line 20"),
        ("id: kv-02", "id: kv-01", "question kv-01: another has the same id"),
        ("type: choice", "type: guess", "'guess' is none of"),
        (", correct: true, explain: \"LRU.\"", ", explain: none", "question kv-01: 0 of its choices"),
        (', explain: "It may be hit again."', "", "kv-01: the wrong choice 'the newest' has no explain"),
        ("answer: 57", "answer: many", "(question kv-03)"),
        ("    answer: 57\n", "", "a number needs its answer"),
        ('    expression: "cdiv(900, 16)"\n', "", "question kv-03: a number needs the expression"),
        ("unit: blocks", "units: blocks", "units"),
        ("unit: blocks", "compute: cdiv", "compute"),
        ("    unit: blocks", "    tolerance: -1", "question kv-03: tolerance: -1"),
        ("    unit: blocks", "    choices: [{text: x}]", "question kv-03: a number has no choices"),
        ('question: "Which have a hash?"', 'question: " "', "question kv-02: it asks nothing"),
        ("  - id: kv-01\n", "  - ident: kv-01\n", "questions[0]"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_told_by_its_question(old: str, new: str, says: str) -> None:
    assert QUIZ.count(old) == 1
    with pytest.raises(StudyError) as error:
        quiz.parse_quiz(QUIZ.replace(old, new), "day04.yml", 4)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("given", ["57", " 57 ", "57.0", "57 blocks", "5_7"])
def test_a_number_may_be_written_in_many_ways(given: str) -> None:
    question = quiz.parse_quiz(QUIZ, "day04.yml", 4).questions[2]
    assert quiz.judge(question, quiz.read_given(question, given)).right
    assert not quiz.judge(question, quiz.read_given(question, "56")).right


@pytest.mark.parametrize(("given", "value"), NUMBERS)
def test_a_number_is_what_it_is_on_the_page(given: str, value: float | None) -> None:
    """tests/site/js/quiz.test.mjs goes through the same cases."""
    question = quiz.parse_quiz(QUIZ, "day04.yml", 4).questions[2]
    if value is None:
        with pytest.raises(StudyError):
            quiz.read_given(question, given)
    else:
        assert quiz.read_given(question, given) == value


def test_a_tolerance_reaches_as_far_as_it_says() -> None:
    question = quiz.Question("q", "How much?", "number", answer=22.5, tolerance=0.1, explain="So.")
    assert quiz.judge(question, quiz.read_given(question, "22.6")).right
    assert not quiz.judge(question, quiz.read_given(question, "22.61")).right


@pytest.mark.parametrize("given", ["5,7", "57,0", ",57", "nan", "inf", "1,57"])
def test_a_number_that_may_mean_two_things_is_asked_about(given: str) -> None:
    question = quiz.parse_quiz(QUIZ, "day04.yml", 4).questions[2]
    with pytest.raises(StudyError, match=r"1\.5|no number"):
        quiz.read_given(question, given)
    assert quiz.read_given(question, "1,057") == 1057


# ------------------------------------------------------------------------------------- the quizzes there are

QUIZZES = sorted(int(path.stem.removeprefix("day")) for path in (ROOT / "quizzes").glob("day*.yml"))


@pytest.mark.parametrize("day", QUIZZES)
def test_every_quiz_is_sound_and_its_numbers_are_the_engines(day: int) -> None:
    loaded = quiz.load_quiz(day)
    numbers = [question for question in loaded.questions if question.type == "number"]
    assert len(loaded.questions) >= 8
    assert len(numbers) >= 2
    for question in numbers:
        names: dict[str, Any] = {}
        exec("\n".join(question.imports), names)
        value = eval(question.expression, names)
        assert question.answer is not None
        assert abs(value - question.answer) <= question.tolerance, f"{question.id}: {value}"


@pytest.mark.parametrize("day", QUIZZES)
def test_every_question_says_where_to_read(day: int) -> None:
    for question in quiz.load_quiz(day).questions:
        page = question.read.partition("#")[0]
        assert page, question.id
        assert (ROOT / "docs" / page).is_file(), f"{question.id}: docs/{page} is not there"
