"""What `learnvllm dev check` has proved of an exercise, kept beside it in proof.json.

It names the grader's tests and says which of them kills which mutant. The site publishes it, a test holds it
to the exercise's present content, and a grader that was changed since is noticed by it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from learnvllm.study import files
from learnvllm.study.catalogue import load_exercises
from learnvllm.study.exercise import Exercise, file_hash, read_bytes
from learnvllm.study.starters import solution_code
from learnvllm.study.tables import markdown, table


class KnownTest(msgspec.Struct, frozen=True):
    """A test of the grader, and what it is worth."""

    name: str
    points: int


class Killed(msgspec.Struct, frozen=True):
    """A mutant, and the tests that notice it."""

    name: str
    why: str
    killed_by: tuple[str, ...]


class Proof(msgspec.Struct, frozen=True):
    """One exercise's proof."""

    exercise: str
    content: str
    """Hash of what it was proved of: what the function `content` gave then."""
    grader: str
    """Hash of test_exercise.py."""
    tests: tuple[KnownTest, ...]
    mutants: tuple[Killed, ...]


def content(exercise: Exercise) -> str:
    """Hash of all that the proof depends on within exercises/, and of the code that is to be written.

    Texts that no test reads (title, summary, hints, reading) are not in it.
    """
    digest = hashlib.sha256(exercise.content_hash().encode())
    shared = (exercise.root / "conftest.py", exercise.root / "pytest.ini", *support_files(exercise))
    for path in (exercise.mutants_path, *shared):
        digest.update(read_bytes(path) + b"\0")
    digest.update(solution_code(exercise).encode())
    return digest.hexdigest()


def support_files(exercise: Exercise) -> list[Path]:
    """The files of exercises/support/ that the grader names, and those that these name."""
    folder = exercise.root / "support"
    found: list[Path] = []
    waiting = [exercise.test_path]
    while waiting:
        names = set(re.findall(rb"\bsupport[.](\w+)|\bfrom support import (\w+)", read_bytes(waiting.pop())))
        for name in sorted(name.decode() for pair in names for name in pair if name):
            path = folder / f"{name}.py"
            if path.is_file() and path not in found:
                found.append(path)
                waiting.append(path)
    return sorted(found)


def grader_hash(exercise: Exercise) -> str:
    return file_hash(exercise.test_path)


def read_proof(exercise: Exercise) -> Proof | None:
    """None where there is none, or none that can be read: it is made anew then."""
    try:
        return msgspec.json.decode((exercise.folder / "proof.json").read_bytes(), type=Proof)
    except (OSError, msgspec.MsgspecError):
        return None


def write_proof(exercise: Exercise, proof: Proof) -> None:
    text = json.dumps(msgspec.to_builtins(proof), indent=1, ensure_ascii=False) + "\n"
    path = exercise.folder / "proof.json"
    if read_bytes(path) != text.encode():
        files.write_text(path, text)


def known_tests(exercise: Exercise) -> tuple[str, ...]:
    """The tests that the grader had when it was proved."""
    proof = read_proof(exercise)
    return tuple(test.name for test in proof.tests) if proof else ()


def changed_grader(exercise: Exercise) -> str | None:
    """A sentence when test_exercise.py is not the file that was proved."""
    proof = read_proof(exercise)
    if proof is None or proof.grader == grader_hash(exercise):
        return None
    return f"{exercise.test_path.name} is not the original: what it says is only as good as your change."


def kill_matrix_markdown(exercises: Sequence[Exercise] | None = None) -> str:
    """Every exercise's mutants and the tests that kill them, from the proofs, as Markdown sections."""
    sections = []
    for exercise in load_exercises() if exercises is None else exercises:
        proof = read_proof(exercise)
        if proof is not None:
            sections.append(_section(exercise, proof))
    return "\n".join(sections)


def _section(exercise: Exercise, proof: Proof) -> str:
    killers = [t.name for t in proof.tests if any(t.name in m.killed_by for m in proof.mutants)]
    numbers = [str(number) for number in range(1, len(killers) + 1)]
    rows = [
        [markdown(mutant.name), markdown(mutant.why), *("✗" * (name in mutant.killed_by) for name in killers)]
        for mutant in proof.mutants
    ]
    legend = "\n".join(f"{number}. `{name}`" for number, name in zip(numbers, killers))
    dead = sum(bool(mutant.killed_by) for mutant in proof.mutants)
    return (
        f"## {exercise.title} {{ #{exercise.id.replace('.', '-')} }}\n\n"
        f"`{exercise.id}`: {dead} of {len(proof.mutants)} wrong versions are noticed. "
        "✗: the test of that number fails.\n\n"
        f"{table(('Wrong version', 'Why it is wrong', *numbers), rows)}\n\nTests:\n\n{legend}\n"
    )
