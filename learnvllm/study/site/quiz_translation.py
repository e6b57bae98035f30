"""A quiz in another language: `quizzes/zh/dayNN.yml` has the words; what is right stays in `quizzes`.

Whether the English quiz has changed since is said by the page it stands on: see translation.source_hash.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from learnvllm.study import files
from learnvllm.study.exercise import StudyError
from learnvllm.study.quiz import Choice, Question, Quiz, load_quiz, quiz_path


class _ChoiceWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    explain: str = ""


class _QuestionWords(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    question: str
    choices: tuple[_ChoiceWords, ...] = ()
    explain: str = ""
    unit: str = ""


class _Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str
    questions: dict[str, _QuestionWords]


def load_translated(day: int) -> Quiz | None:
    """The day's quiz in Chinese. None: it has no translation.

    Raises:
        StudyError: it is no YAML of this form, or asks other questions than the English one.
    """
    path = _path(day)
    try:
        text = files.read_text(path)
    except FileNotFoundError:
        return None
    try:
        words = msgspec.yaml.decode(text, type=_Words)
    except msgspec.MsgspecError as error:
        raise StudyError(f"{files.shown(path)}: {error}.") from None
    quiz = load_quiz(day)
    ids = [question.id for question in quiz.questions]
    if list(words.questions) != ids:
        raise StudyError(f"{files.shown(path)}: its questions should be {', '.join(ids)}, in this order.")
    questions = tuple(
        _translated(question, words.questions[question.id], path) for question in quiz.questions
    )
    return Quiz(day, words.title, questions)


def _path(day: int) -> Path:
    return quiz_path(day).parent / "zh" / quiz_path(day).name


def _translated(question: Question, words: _QuestionWords, path: Path) -> Question:
    if len(words.choices) != len(question.choices):
        raise StudyError(
            f"{files.shown(path)}: question {question.id}: {len(words.choices)} choices, there are "
            f"{len(question.choices)}."
        )
    pairs = list(zip(question.choices, words.choices))
    explained = [(question.explain, words.explain), *((old.explain, new.explain) for old, new in pairs)]
    if any(bool(old) != bool(new) for old, new in explained):
        raise StudyError(f"{files.shown(path)}: question {question.id}: explain where the English one does.")
    return msgspec.structs.replace(
        question,
        question=words.question,
        choices=tuple(Choice(new.text, old.correct, new.explain) for old, new in pairs),
        explain=words.explain,
        unit=words.unit,
    )
