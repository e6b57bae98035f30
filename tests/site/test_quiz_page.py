"""A quiz on the page: it judges as the terminal does, explains what was chosen, and remembers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from learnvllm.study.catalogue import find_day
from learnvllm.study.quiz import Choice, Question, Quiz
from learnvllm.study.site import quiz_html
from tests.site.conftest import ROOT, watch

pytestmark = pytest.mark.browser

QUESTIONS = (
    Question(
        id="one",
        question="Which is *right*?",
        type="choice",
        choices=(Choice("this", True, "Because."), Choice("that", explain="Not that.")),
    ),
    Question(
        id="some",
        question="Which are even?",
        type="multiple",
        choices=(Choice("2", True, "Even."), Choice("3", explain="Odd."), Choice("4", True, "Even, too.")),
    ),
    Question(id="many", question="Blocks?", type="number", answer=1626, unit="blocks", explain="`cdiv`."),
)
ASSETS = (ROOT / "docs" / "assets").as_uri()
PAGE = f"""<!doctype html><html lang="en"><meta charset="utf-8">
<link rel="stylesheet" href="{ASSETS}/css/quiz.css">
<body><article class="md-typeset">QUIZ</article>
<script src="{ASSETS}/js/dom.js"></script><script src="{ASSETS}/js/quiz_logic.js"></script>
<script src="{ASSETS}/js/quiz.js"></script></html>"""


@pytest.fixture
def tab(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The quiz above as the site renders it."""
    monkeypatch.setattr(
        quiz_html, "load_quiz", lambda _: Quiz(day=3, title="Scheduling", questions=QUESTIONS)
    )
    monkeypatch.setattr(quiz_html, "quiz_path", lambda _: Path(__file__))
    link: Callable[[str], str] = str
    page = tmp_path / "quiz.html"
    page.write_text(PAGE.replace("QUIZ", quiz_html.quiz(find_day(3), link)), "utf-8")
    troubles: list[str] = []
    context = browser.new_context()
    tab = context.new_page()
    watch(tab, troubles)
    tab.goto(page.as_uri())
    yield tab
    context.close()
    assert troubles == []


def answer(tab: Any, question: str, *choices: str) -> str:
    """Choose by label and check; what the page says."""
    for choice in choices:
        tab.locator(f"#{question}").get_by_label(choice, exact=True).check()
    tab.click(f"#{question} .quiz-check")
    return str(tab.inner_text(f"#{question} .quiz-feedback"))


def test_the_explanation_of_what_was_chosen_is_shown(tab: Any) -> None:
    assert answer(tab, "one", "that") == "Not so."
    assert tab.inner_text("#one .quiz-explain").strip() == "Not that."
    tab.check("#one input >> nth=0")  # another choice: nothing is said until it is checked
    assert tab.locator("#one .quiz-explain").count() == 0
    assert answer(tab, "one") == "Right."
    assert tab.inner_text("#one .quiz-explain").strip() == "Because."


def test_the_page_speaks_its_language(tab: Any) -> None:
    tab.evaluate(
        """() => {
            const root = document.querySelector(".quiz");
            root.lang = "zh";
            delete root.dataset.ready;
            for (const made of root.querySelectorAll("button, .quiz-footer")) made.remove();
        }"""
    )
    tab.add_script_tag(path=str(ROOT / "docs/assets/js/quiz.js"))
    assert tab.inner_text(".quiz-score") == "共 3 题"
    assert answer(tab, "one", "that") == "不对。"
    assert tab.inner_text(".quiz-score") == "已答 1 题，答对 0 题，还剩 2 题"
    assert tab.inner_text(".quiz-reset") == "重新开始"


def test_of_several_all_must_be_chosen(tab: Any) -> None:
    assert "some are missing" in answer(tab, "some", "2")
    assert answer(tab, "some", "4") == "Right."
    assert tab.locator("#some .quiz-explain").count() == 2


def test_a_number_is_read_as_people_write_it_and_enter_checks(tab: Any) -> None:
    assert answer(tab, "many") == "Type a number first."
    tab.fill("#many input", "1,6")
    assert answer(tab, "many").startswith("That is no number.")
    tab.fill("#many input", "1,626 blocks")
    tab.press("#many input", "Enter")
    assert tab.inner_text("#many .quiz-feedback") == "Right."
    assert "cdiv" in tab.inner_text("#many .quiz-explain")


def test_answers_are_kept_until_one_starts_again(tab: Any) -> None:
    answer(tab, "one", "this")
    answer(tab, "some", "3")
    tab.fill("#many input", "7")
    tab.click("#many .quiz-check")
    assert tab.inner_text(".quiz-score") == "1 of 3 right"
    tab.reload()
    assert tab.inner_text(".quiz-score") == "1 of 3 right"
    assert tab.is_checked("#one input >> nth=0")
    assert tab.input_value("#many input") == "7"
    assert tab.inner_text("#some .quiz-explain").strip() == "Odd."
    tab.click(".quiz-reset")
    assert tab.inner_text(".quiz-score") == "3 questions"
    tab.reload()
    assert not tab.is_checked("#one input >> nth=0")


def test_a_store_that_is_not_ours_does_no_harm(tab: Any) -> None:
    for rubbish in ("{", "[]", '"x"', '{"one": {"given": ["9"], "right": true}, "many": {"given": 5}}'):
        tab.evaluate("text => localStorage.setItem('learnvllm.quiz.3', text)", rubbish)
        tab.reload()
        assert tab.inner_text(".quiz-score") == "3 questions"
