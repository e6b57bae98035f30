"""A day's quiz as HTML that works without a script: answers fold out. quiz.js makes it answerable.

Every question is a <fieldset>; `data-correct` marks right choices, and explanations stand in
`.quiz-explanation`.
"""

from __future__ import annotations

import html
import re

from markdown import markdown

from learnvllm.study.catalogue import Day
from learnvllm.study.quiz import Question, Quiz, load_quiz, quiz_path
from learnvllm.study.site.pages import Link
from learnvllm.study.site.quiz_translation import load_translated
from learnvllm.study.site.words import SAY, Say


def quiz(day: Day, link: Link, language: str = "en") -> str:
    """The whole quiz; in English where it has not been translated.

    Raises:
        StudyError: its YAML is wrong.
    """
    say = SAY[language]
    if not quiz_path(day.number).is_file():
        return say("This day has no quiz yet.")
    translated = load_translated(day.number) if language == "zh" else None
    if translated is None:
        return _quiz(load_quiz(day.number), "en", link)
    return _quiz(translated, language, link)


def _quiz(quiz: Quiz, language: str, link: Link) -> str:
    say = SAY[language]
    label = say("{}: {}").format(say("Quiz"), html.escape(quiz.title))
    head = f'<div class="quiz" data-day="{quiz.day}" lang="{language}" role="group" aria-label="{label}">'
    questions = (_question(number, question, say, link) for number, question in enumerate(quiz.questions, 1))
    return "\n".join([head, *questions, "</div>"])


def _question(number: int, question: Question, say: Say, link: Link) -> str:
    name = html.escape(question.id)
    body = _number_input(question, say) if question.type == "number" else _choices(question, say)
    read = _read(question.read, say, link)
    return (
        f'<fieldset class="quiz-question" id="{name}" data-type="{question.type}">\n'
        f"<legend>{number}. {_inline(question.question)}</legend>\n{_rest(question.question)}{body}\n"
        f'<div class="quiz-feedback" role="status" aria-live="polite"></div>\n'
        f'<details class="quiz-answer" data-search-exclude><summary>{say("The answer")}</summary>\n'
        f"{_answer(question, say)}{read}</details>\n</fieldset>"
    )


def _choices(question: Question, say: Say) -> str:
    kind = "radio" if question.type == "choice" else "checkbox"
    hint = "" if kind == "radio" else f'<p class="quiz-hint">{say("Any number of them may be right.")}</p>\n'
    rows = [
        f'<label class="quiz-choice" data-correct="{str(choice.correct).lower()}">'
        f'<input type="{kind}" name="{html.escape(question.id)}" value="{number}">'
        f"<span>{_inline(choice.text)}</span></label>"
        for number, choice in enumerate(question.choices, 1)
    ]
    return hint + "\n".join(rows)


def _number_input(question: Question, say: Say) -> str:
    return (
        f'<label class="quiz-number">{say("Your answer:")} '
        f'<input type="text" inputmode="decimal" autocomplete="off" '
        f'name="{html.escape(question.id)}" data-answer="{question.answer:g}" '
        f'data-tolerance="{question.tolerance:g}" data-unit="{html.escape(question.unit)}"> '
        f"{html.escape(question.unit)}</label>"
    )


def _answer(question: Question, say: Say) -> str:
    """For readers without a script, and for those who give up."""
    if question.type == "number":
        unit = f" {html.escape(question.unit)}" if question.unit else ""
        explain = f'<div class="quiz-explanation">{_block(question.explain)}</div>'
        return f"<p><strong>{question.answer:g}{unit}</strong></p>\n{explain}\n"
    rows = [
        f'<li data-choice="{number}"><strong>{say("Right") if choice.correct else say("Wrong")}</strong>: '
        f"{_inline(choice.text)}"
        + (f' <div class="quiz-explanation">{_block(choice.explain)}</div>' if choice.explain else "")
        + "</li>"
        for number, choice in enumerate(question.choices, 1)
    ]
    return "<ul>\n" + "\n".join(rows) + "\n</ul>\n"


def _read(page: str, say: Say, link: Link) -> str:
    if not page:
        return ""
    path, _, anchor = page.partition("#")
    target = link(path).removesuffix(".md") + ".html" + (f"#{anchor}" if anchor else "")
    return f'<p class="quiz-read"><a href="{html.escape(target)}">{say("Read about it")}</a></p>\n'


# ------------------------------------------------------------------------------------------------ Markdown


def _block(text: str) -> str:
    """Markdown as HTML without empty lines, which would end a block of HTML for some Markdowns."""
    made = markdown(text.strip(), extensions=["fenced_code", "tables"])
    kept = re.sub(r"<pre>.*?</pre>", lambda pre: pre[0].replace("\n", "&#10;"), made, flags=re.DOTALL)
    return re.sub(r"\n\s*", " ", kept)


def _inline(text: str) -> str:
    """The first paragraph, without the <p>."""
    made = _block(text.strip().partition("\n\n")[0])
    return made.removeprefix("<p>").removesuffix("</p>") if made.count("<p>") == 1 else made


def _rest(text: str) -> str:
    """What follows the first paragraph: a table, code."""
    rest = text.strip().partition("\n\n")[2]
    return _block(rest) + "\n" if rest else ""
