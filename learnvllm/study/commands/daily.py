"""`learnvllm journal`, `quiz`, `notebook` and `study`: what a day has besides its exercises."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from learnvllm.study import files, journal, measure, quiz, to_notebook
from learnvllm.study.catalogue import find_day
from learnvllm.study.exercise import StudyError
from learnvllm.study.overview import day_state
from learnvllm.study.progress import QuizRecord, load_progress, quiz_key, record_answer
from learnvllm.study.terminal import console, edit, editor, print_json, print_markdown, shown


def configure_journal(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", metavar="N|list|export", help="A day, to open its entry; list them; export all as one file.")
    add("--no-open", action="store_true", help="Only create it and bring it up to date.")
    add(
        "--measure",
        action="store_true",
        help="First run a benchmark with your code of that day and with the reference's: minutes.",
    )
    add("--out", type=Path, metavar="FILE", help="Where export writes (default: export.md in the journal).")
    add("--json", action="store_true", help="For programs; opens nothing.")


def run_journal(args: argparse.Namespace) -> int:
    if args.what == "list":
        return _list_journal(args.json)
    if args.what == "export":
        return _export_journal(args)
    if not (args.what.isascii() and args.what.isdigit()):
        raise StudyError(f"{args.what!r} is neither a day, like 3, nor list nor export.")
    day = int(args.what)
    if args.measure:
        measure.measure(day_state(day), lambda text: print(text, file=sys.stderr, flush=True))
    entry = journal.refresh(day)
    if args.json:
        print_json(entry.to_json())
        return 0
    out = console()
    if editor() and out.is_terminal and not args.no_open:
        return edit(entry.path)
    out.print(f"{shown(entry.path)} ({entry.status})", soft_wrap=True)
    return 0


def _list_journal(as_json: bool) -> int:
    entries = journal.list_entries()
    if as_json:
        print_json({"entries": [entry.to_json() for entry in entries]})
        return 0
    out = console()
    for entry in entries:
        line = (
            f"Day {entry.day:>2}  {entry.date}  {entry.status:<8} {entry.title:<22} {files.shown(entry.path)}"
        )
        out.print(Text(line), soft_wrap=True)
    if not entries:
        out.print("The journal is empty. [cmd]learnvllm journal 1[/] begins it.")
    return 0


def _export_journal(args: argparse.Namespace) -> int:
    target = args.out or files.journal_home() / "export.md"
    files.write_text(target, journal.export())
    if args.json:
        print_json({"file": str(target)})
    else:
        console().print(
            f"{shown(target)}: one file, a page per day, ready to print or to convert.", soft_wrap=True
        )
    return 0


# ----------------------------------------------------------------------------------------------------- quiz


def configure_quiz(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("day", type=int, metavar="N", help="1 to 11.")
    parser.add_argument("--again", action="store_true", help="Those you had right, too.")
    parser.add_argument(
        "--json", action="store_true", help="Questions and your answers, for programs; asks nothing."
    )


def run_quiz(args: argparse.Namespace) -> int:
    questions = quiz.load_quiz(args.day)
    record = load_progress().quizzes.get(quiz_key(args.day), QuizRecord())
    right = {name for name, answer in record.answers.items() if answer.right}
    if args.json:
        print_json(_quiz_json(questions, record))
        return 0
    out = console()
    asked = [question for question in questions.questions if args.again or question.id not in right]
    if not asked:
        out.print(f"All {len(questions.questions)} are right. --again asks them once more.")
        return 0
    out.print(f"[head]Day {args.day}: {questions.title}[/]  [faint]{len(asked)} questions; q leaves[/]\n")
    won = answered = 0
    for number, question in enumerate(asked, 1):
        verdict = _ask(out, args.day, question, f"{number} of {len(asked)}")
        if verdict is None:
            break
        won, answered = won + verdict.right, answered + 1
    out.print(f"{won} of {answered} right.")
    return 0


def _ask(out: Console, day: int, question: quiz.Question, number: str) -> quiz.Verdict | None:
    """One question until there is an answer; None: the learner leaves."""
    out.print(f"[faint]{number}[/]")
    print_markdown(out, question.question)
    for index, choice in enumerate(question.choices, 1):
        print_markdown(out, f"{index}. {choice.text}")
    asking = {"choice": "Number", "multiple": "Numbers, like 1 3"}.get(
        question.type, question.unit or "A number"
    )
    while True:
        try:
            given = out.input(f"{asking}: ").strip()
        except EOFError:
            return None
        if given.lower() in ("q", "quit"):
            return None
        try:
            value = quiz.read_given(question, given)
        except StudyError as error:
            out.print(Text(str(error)))
            continue
        verdict = quiz.judge(question, value)
        record_answer(day, question.id, right=verdict.right, given=given)
        out.print("[good]Right.[/]" if verdict.right else "[bad]Not quite.[/]")
        for remark in verdict.remarks:
            print_markdown(out, remark)
        out.print()
        return verdict


def _quiz_json(questions: quiz.Quiz, record: QuizRecord) -> dict[str, object]:
    listed = []
    for question in questions.questions:
        answer = record.answers.get(question.id)
        listed.append(
            {
                "id": question.id,
                "type": question.type,
                "question": question.question,
                "choices": [choice.text for choice in question.choices],
                "unit": question.unit or None,
                "given": answer and answer.given,
                "right": answer and answer.right,
            }
        )
    return {"day": questions.day, "title": questions.title, "questions": listed}


# --------------------------------------------------------------------------------------- notebook and screen


def configure_notebook(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("day", type=int, metavar="N", help="1 to 11.")
    add("--no-open", action="store_true", help="Only make the .ipynb files.")
    add("--fresh", action="store_true", help="Make them anew; yours are backed up.")
    add("--json", action="store_true", help="For programs; opens nothing.")


def run_notebook(args: argparse.Namespace) -> int:
    made = to_notebook.convert_day(find_day(args.day), fresh=args.fresh)
    if args.json:
        print_json({"notebooks": [{"file": str(n.path), "outcome": n.outcome} for n in made]})
        return 0
    out = console()
    for notebook in made:
        said = f"{files.shown(notebook.path)}: {to_notebook.SAID[notebook.outcome]}"
        out.print(Text(said), soft_wrap=True)
    if args.no_open:
        return 0
    to_notebook.need_jupyter_lab()
    command = [sys.executable, "-m", "jupyterlab", str(made[0].path)]
    if hasattr(os, "geteuid") and os.geteuid() == 0:  # as in most containers; Jupyter refuses without
        command.append("--allow-root")
    return subprocess.call(command)


def configure_study(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("exercise", nargs="?", metavar="ID", help="Where to begin; left out: the next one.")


def run_study(args: argparse.Namespace) -> int:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise StudyError(
            "The study screen needs a terminal. `learnvllm progress` and `learnvllm check` do without."
        )
    from learnvllm.study.screen import StudyApp

    StudyApp(args.exercise).run()
    return 0
