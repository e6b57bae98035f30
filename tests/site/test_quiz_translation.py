"""A translated quiz asks what the English one asks, and is noticed when it no longer does."""

from __future__ import annotations

from pathlib import Path

import pytest

from learnvllm.study.catalogue import DAYS, find_day
from learnvllm.study.exercise import StudyError
from learnvllm.study.quiz import load_quiz, quiz_path
from learnvllm.study.site import DOCS, quiz_html, quiz_translation, translation

CHINESE = (quiz_path(1).parent / "zh/day01.yml").read_text("utf-8")


@pytest.fixture
def chinese(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Day 1's translation is read from."""
    path = tmp_path / "day01.zh.yml"
    monkeypatch.setattr(quiz_translation, "_path", lambda day: path)
    return path


@pytest.mark.parametrize("day", [day.number for day in DAYS if quiz_path(day.number).is_file()])
def test_what_is_right_is_right_in_every_language(day: int) -> None:
    quiz, english = quiz_translation.load_translated(day), load_quiz(day)
    if quiz is None:
        assert day != 1
        return
    for ours, theirs in zip(quiz.questions, english.questions, strict=True):
        assert (ours.id, ours.right_choices, ours.answer) == (theirs.id, theirs.right_choices, theirs.answer)
        assert ours.question != theirs.question


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("  arch-02:\n", "  arch-0x:\n", "its questions should be arch-01, arch-02, "),
        ('    unit: ms\n    explain: "1 + 7', '    unit: ms\n    answer: "1 + 7', "answer"),
        (
            '        explain: "worker 没有“以前”：那一行在抢占时就没有了。"\n',
            "",
            "question arch-05: explain where",
        ),
    ],
)
def test_a_translation_of_something_else_stops_the_build(
    chinese: Path, old: str, new: str, said: str
) -> None:
    assert old in CHINESE
    chinese.write_text(CHINESE.replace(old, new), "utf-8")
    with pytest.raises(StudyError, match=said):
        quiz_translation.load_translated(1)


def test_the_number_of_choices_is_the_same(chinese: Path) -> None:
    choice = CHINESE[CHINESE.index('      - text: "设备上的张量。"') : CHINESE.index("  arch-02:")]
    chinese.write_text(CHINESE.replace(choice, ""), "utf-8")
    with pytest.raises(StudyError, match="question arch-01: 3 choices, there are 4"):
        quiz_translation.load_translated(1)


def test_a_quiz_without_a_translation_stays_english(chinese: Path) -> None:
    assert quiz_html.quiz(find_day(1), str, "zh") == quiz_html.quiz(find_day(1), str)


def test_the_page_is_in_its_language() -> None:
    html = quiz_html.quiz(find_day(1), str, "zh")
    assert 'lang="zh"' in html
    assert "<summary>答案</summary>" in html
    assert "Answer" not in html


def test_a_changed_quiz_makes_its_page_outdated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = DOCS / "topics/architecture/quiz.md"
    before = translation.source_hash(page)
    changed = tmp_path / "day01.yml"
    changed.write_text(quiz_path(1).read_text("utf-8").replace("chat request", "request"), "utf-8")
    monkeypatch.setattr(translation, "quiz_path", lambda day: changed)
    assert translation.source_hash(page) != before
