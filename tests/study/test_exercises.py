"""Every exercise: its files agree with each other and the pages, and proof.json is of what is there."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from learnvllm import cli
from learnvllm.study import overlay, proof, structure
from learnvllm.study.catalogue import load_exercises
from learnvllm.study.commands import check as check_command
from learnvllm.study.dev_check import check
from learnvllm.study.exercise import Exercise

EXERCISES = load_exercises()
ROOT = Path(__file__).resolve().parents[2]
LEARNER = (ROOT / ".learnvllm/progress.toml").exists()
"""Somebody learns in this checkout: exercise.py is theirs."""

every_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.id)


@every_exercise
def test_its_files_agree(exercise: Exercise) -> None:
    """The starter is what the reference gives; mutants fit; pages name it."""
    assert structure.mistakes(exercise, learner=LEARNER) == []


@every_exercise
def test_its_flags_are_the_engines(exercise: Exercise) -> None:
    """`check` recommends them, and the banner of --mine names them."""
    command = check_command.chat_with(exercise).split()[1:]
    assert cli._make_parser(command).parse_args(command).command == "chat"


def test_code_that_only_a_flag_reaches_says_so() -> None:
    told = {exercise.name for exercise in EXERCISES if exercise.flags}
    assert told >= {"shortest_first", "segmented_eviction", "one_step_ahead", "chrome_trace"}


@every_exercise
def test_its_proof_is_of_what_is_there(exercise: Exercise) -> None:
    known = proof.read_proof(exercise)
    told = f"run `learnvllm dev check {exercise.id}` and commit proof.json"
    assert known is not None, told
    assert known.content == proof.content(exercise), told
    assert known.grader == proof.grader_hash(exercise), told
    assert sum(test.points for test in known.tests) == exercise.points
    assert all(mutant.killed_by for mutant in known.mutants)


@pytest.mark.slow
@every_exercise
def test_it_is_proved(exercise: Exercise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The starter fails, the reference passes in time, every mutant is noticed."""
    before = proof.read_proof(exercise)
    if LEARNER:
        monkeypatch.setattr(structure, "mistakes", lambda exercise: [])
    report = check([exercise], jobs=2, fresh=True)[0]
    assert report.mistakes == ()
    assert report.proof is not None
    assert before is not None
    assert killers(report.proof) == killers(before), "proof.json names other tests"
    assert report.proof == before


def killers(known: proof.Proof) -> dict[str, tuple[str, ...]]:
    return {mutant.name: mutant.killed_by for mutant in known.mutants}


def test_the_banner_names_the_flags_too() -> None:
    exercise = next(exercise for exercise in EXERCISES if exercise.name == "shortest_first")
    plan = SimpleNamespace(exercise=exercise, parts=())
    selection: Any = SimpleNamespace(plans=[plan], unproved=list, notes=[])
    told = overlay._banner(selection, shadow=False)
    assert "the engine calls it only with --scheduling-policy shortest" in told
