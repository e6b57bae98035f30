"""What went wrong in a test, for the person who wrote the code under test.

Not the traceback of pytest, hypothesis and the grader: the message, the smallest example that shows it, and
the line of the learner's own file.
"""

from __future__ import annotations

import ast
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from learnvllm.study.bounded_text import cut
from learnvllm.study.returned_none import complains_of_none, never_give_a_value

KEPT_MESSAGE = 4000
NOT_WRITTEN = "TODO: "
"""How the message of a starter's NotImplementedError begins."""


@dataclass(frozen=True)
class TestFailure:
    """`kind`: failed, not_written or exited."""

    __test__ = False  # no test for pytest to collect

    kind: str
    message: str


def explain(error: BaseException, subject: Path) -> TestFailure:
    """Say what an exception in a test means for the file `subject`."""
    errors = list(_leaves(error))
    for leaf in errors:
        if isinstance(leaf, NotImplementedError) and str(leaf).startswith(NOT_WRITTEN):
            return TestFailure("not_written", f"not written yet: {str(leaf).removeprefix(NOT_WRITTEN)}")
    for leaf in errors:
        if isinstance(leaf, SystemExit):
            code = "" if leaf.code is None else repr(leaf.code)
            return TestFailure("exited", f"sys.exit({code}) was called{_where(leaf, subject)}")
    return TestFailure("failed", cut("\n".join(_told(leaf, subject) for leaf in errors), KEPT_MESSAGE))


def todo_members(tree: ast.AST) -> list[str]:
    """What a starter left out and is not written yet: its NotImplementedError("TODO: …") is still there."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Raise(
                exc=ast.Call(func=ast.Name("NotImplementedError"), args=[ast.Constant(str(text))])
            ) if text.startswith(NOT_WRITTEN):
                found.append((node.lineno, text.removeprefix(NOT_WRITTEN)))
    return [name for _, name in sorted(found)]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions within an exception group, however deep, or the one given."""
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
        return
    yield error


def _told(error: BaseException, subject: Path) -> str:
    name = type(error).__name__
    text = text_of(error)
    after: list[str] = []
    if isinstance(error, AssertionError):
        # A message that the grader wrote says it all; pytest's "assert 3 == 0" below it would only repeat it.
        said = text.partition("\nassert ")[0] or _asserted(error)
    elif name == "Failed":  # pytest.fail and pytest.raises
        said = text
    else:
        said = f"{name}: {text}" if text else name
        user = _user(error, subject)
        if user:
            said += "\n  raised by what uses your code, not in your file: what did your code give it?"
        said += user
        if complains_of_none(error) and (silent := never_give_a_value(subject)):
            after = [f"  in your file nothing but None comes from {', '.join(silent)}"]
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith("You can reproduce")]
    return "\n".join(
        [said + _where(error, subject), *after, *(note.strip() for note in notes if note.strip())]
    )


def _asserted(error: BaseException) -> str:
    """An assert without a message says what did not hold by its own line."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not frames[-1].line:
        return "an assertion does not hold"
    return f"`{frames[-1].line}` does not hold ({Path(frames[-1].filename).name}, line {frames[-1].lineno})"


def _user(error: BaseException, subject: Path) -> str:
    """The grader's line that could not use what came of the learner's code, where none of theirs raised."""
    frames = traceback.extract_tb(error.__traceback__)
    paths = [Path(frame.filename) for frame in frames]
    lines = [f for f, p in zip(frames, paths) if p.name == "test_exercise.py" or p.parent.name == "support"]
    if not lines or subject in paths:
        return ""
    return f"\n  {Path(lines[-1].filename).name}, line {lines[-1].lineno}: {lines[-1].line}"


def _where(error: BaseException, subject: Path) -> str:
    """The deepest line of the learner's file that was running."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == subject]
    return f" (line {frames[-1].lineno} of {subject.name}, in {frames[-1].name})" if frames else ""


def text_of(error: BaseException) -> str:
    """What an exception says. One of the learner's own may fail at that, too, or say very much."""
    try:
        return cut(str(error).strip(), KEPT_MESSAGE)
    except Exception as broken:
        return f"(its __str__ raised {type(broken).__name__})"
