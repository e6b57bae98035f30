"""A day's quiz: `quizzes/dayNN.yml`, checked when it is read, asked in the terminal and shown on the page.

Every wrong choice has an explanation, and a number's answer is an expression over the engine that a test
evaluates. The page judges as we do here (docs/assets/js/quiz_logic.js); the same cases test both.
"""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from learnvllm.study import files
from learnvllm.study.catalogue import find_day
from learnvllm.study.exercise import StudyError

FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
"""５７ and ， of a Chinese keyboard -> 57 and a comma."""
TYPES = ("choice", "multiple", "number")
_NUMBER = re.compile(r"(?ai)[+-]?(\d{1,3}([, \u00a0\u202f]\d{3})+|\d+)?(\.\d*)?(e[+-]?\d+)?")
"""57, 1,626, 1 626, 57.0, .5, 2e3."""


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One choice. A wrong one says why it is wrong."""

    text: str
    correct: bool = False
    explain: str = ""


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One question."""

    id: str
    question: str
    type: str
    """`choice`: one is right; `multiple`: any number are; `number`."""
    choices: tuple[Choice, ...] = ()
    read: str = ""
    """The page, and section, that answers it."""
    explain: str = ""
    """How to get a number's answer."""
    unit: str = ""
    imports: tuple[str, ...] = ()
    expression: str = ""
    """Python over the engine, after `imports`: a test proves that `answer` is its value."""
    answer: float | None = None
    tolerance: float = 0.0

    @property
    def right_choices(self) -> frozenset[int]:
        """Numbers of the right choices, from 1."""
        return frozenset(n for n, choice in enumerate(self.choices, 1) if choice.correct)


class Quiz(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One day's questions."""

    day: int
    title: str
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class Verdict:
    """A judged answer, and what the learner should read about it."""

    right: bool
    remarks: tuple[str, ...]


def quiz_path(day: int) -> Path:
    """Where a day's quiz is."""
    return files.ROOT / "quizzes" / f"day{day:02d}.yml"


def load_quiz(day: int) -> Quiz:
    """Raises StudyError: there is none for that day, or it is wrong: where, and what."""
    path = quiz_path(find_day(day).number)
    try:
        text = files.read_text(path)
    except FileNotFoundError:
        raise StudyError(f"Day {day} has no quiz yet.") from None
    return parse_quiz(text, files.shown(path), day)


def parse_quiz(text: str, name: str, day: int) -> Quiz:
    """Raises StudyError that names the line, or the question and its field."""
    import yaml

    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        raise StudyError(f"{name}, line {line}: {getattr(error, 'problem', None) or 'no YAML'}.") from None
    try:
        quiz = msgspec.convert(document, Quiz)
    except msgspec.ValidationError as error:
        raise StudyError(f"{name}: {_with_question_id(str(error), document)}.") from None
    mistake = _first_mistake(quiz, day)
    if mistake:
        raise StudyError(f"{name}: {mistake}.")
    return quiz


def _with_question_id(said: str, document: Any) -> str:
    """`$.questions[3].x` with the question's id beside it: authors do not count."""
    found = re.search(r"\$\.questions\[(\d+)\]", said)
    if not found:
        return said
    question = document["questions"][int(found[1])]
    return f"{said} (question {question.get('id', '?')})" if isinstance(question, dict) else said


def _first_mistake(quiz: Quiz, day: int) -> str | None:
    """What a type cannot say. None when all is well."""
    ids = [question.id for question in quiz.questions]
    if quiz.day != day:
        return f"day: {quiz.day} should be {day}, as in the file's name"
    if not ids:
        return "it has no questions"
    for question in quiz.questions:
        mistake = _mistake_in(question) or (ids.count(question.id) > 1 and "another has the same id")
        if mistake:
            return f"question {question.id}: {mistake}"
    return None


def _mistake_in(question: Question) -> str | None:
    if question.type not in TYPES:
        return f"type: {question.type!r} is none of {', '.join(TYPES)}"
    if not question.question.strip():
        return "it asks nothing"
    return _mistake_in_number(question) if question.type == "number" else _mistake_in_choices(question)


def _mistake_in_number(question: Question) -> str | None:
    if question.choices:
        return "a number has no choices"
    if question.answer is None:
        return "a number needs its answer"
    if not question.expression:
        return "a number needs the expression that gives its answer"
    if not question.explain:
        return "a number needs an explain: how to get it"
    if question.tolerance < 0:
        return f"tolerance: {question.tolerance} is below 0"
    return None


def _mistake_in_choices(question: Question) -> str | None:
    right = len(question.right_choices)
    if len(question.choices) < 2:
        return "it needs two choices or more"
    if question.type == "choice" and right != 1:
        return f"{right} of its choices are correct; type choice has one"
    if right == 0:
        return "none of its choices is correct"
    for choice in question.choices:
        if not choice.correct and not choice.explain.strip():
            return f"the wrong choice {choice.text!r} has no explain"
    return None


# ------------------------------------------------------------------------------------------------- answering


def read_given(question: Question, given: str) -> frozenset[int] | float:
    """What the learner typed, as a value.

    Raises:
        StudyError: it is no answer to this question (no number; no such choice).
    """
    text = given.strip()
    if question.type == "number":
        return _read_number(text, question.unit)
    parts = [part for part in re.split(r"[\s,]+", text) if part]
    count = len(question.choices)
    if not parts or not all(part.isascii() and part.isdigit() and 1 <= int(part) <= count for part in parts):
        raise StudyError(f"{text!r} is no answer. Type a number from 1 to {count}.")
    chosen = frozenset(int(part) for part in parts)
    if question.type == "choice" and len(chosen) > 1:
        raise StudyError("One of them is right. Type one number.")
    return chosen


def _read_number(text: str, unit: str) -> float:
    """1,500 is 1500; 1,5 might be meant as 1.5 and is asked about."""
    digits = text.translate(FULL_WIDTH).replace("_", "").removesuffix(unit).strip()
    if _NUMBER.fullmatch(digits):
        with suppress(ValueError):  # a point, or a sign, without a digit
            if math.isfinite(number := float(re.sub(r"[, \u00a0\u202f]", "", digits))):
                return number
    if "," in digits:
        raise StudyError(f"{text!r}: a comma parts thousands here (1,500). Type fractions with a point: 1.5.")
    raise StudyError(f"{text!r} is no number. Type one, like 57.")


def judge(question: Question, value: frozenset[int] | float) -> Verdict:
    """Is it right, and what is there to say about it."""
    if isinstance(value, frozenset):
        right = value == question.right_choices
        remarks = [question.choices[n - 1].explain for n in sorted(value)]
        missed = sorted(question.right_choices - value)
        if not right:
            choices = [question.choices[n - 1] for n in missed]
            remarks += [f"Right: {choice.text} {choice.explain}" for choice in choices]
    else:
        assert question.answer is not None
        slack = 1e-9 * max(1, abs(question.answer))  # 22.6 is within 0.1 of 22.5, whatever floats say
        right = abs(value - question.answer) <= question.tolerance + slack
        remarks = [] if right else [f"It is {question.answer:g}{question.unit and ' ' + question.unit}."]
        remarks.append(question.explain)
    if not right and question.read:
        remarks.append(f"Read: docs/{question.read}")
    return Verdict(right, tuple(remark.strip() for remark in remarks if remark.strip()))
