"""Two schedulers in lock-step: solutions never part, wrong versions are caught where they first differ.

Mutants of Days 3 and 4 are tried in random traffic under eight configurations.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from learnvllm.study.catalogue import find_exercise
from learnvllm.study.mutants import load_mutants
from tests.study.overlay.conftest import ROOT, Learner

EXERCISES = [
    "token_budget",
    "preemption",
    "request_queue",
    "thrashing",
    "one_step_ahead",
    "shortest_first",
    "free_queue",
    "block_pool",
    "block_hashing",
    "prefix_lookup",
    "sliding_window",
    "hybrid_hit",
    "hits_that_stop",
    "segmented_eviction",
]

UNSEEN: dict[str, set[str]] = {
    "request_queue": {
        "leaving-twice-is-fine",
        "peek-on-empty-says-nothing",
        "an-id-is-taken-for-its-owner",
        "keeps-the-dead",
        "heapifies-each-time",
        "walks-through-everybody",
        "rebuilds-without-heapify",
    },
    "thrashing": {
        "watermark-binds-an-idle-engine",
        "takes-and-hands-on",
    },
    "one_step_ahead": {
        "forgets-the-longest-length",
    },
    "shortest_first": {
        "preempted-in-the-wrong-order",
        "equals-by-name",
        "sorts-everything-at-each-arrival",
        "searches-from-the-front",
    },
    "free_queue": {
        "only one pointer is cleared",
        "the sentinel is handed out",
        "None instead of an error",
        "in twice is not noticed",
        "checks after rewiring",
        "searches for the block",
    },
    "block_pool": {
        "taken before refused",
        "double free unnoticed",
        "the null block gets a name",
        "counts before it refuses",
        "every holder that leaves is logged",
    },
    "block_hashing": {
        "Python's hash",
        "only the first source is asked",
        "what is no UTF-8 is replaced",
        "case does not matter",
    },
    "prefix_lookup": {
        "prompt log-probabilities skipped",
        "hits counted as free",
        "reservation binds those who need nothing",
        "only the prompt must fit",
    },
    "sliding_window": {
        "a negative number of tokens",
        "a gap does not matter",
        "a block too many is demanded",
        "walks over what left earlier",
    },
    "hybrid_hit": {
        "only the neighbours agree",
        "two rounds are enough",
    },
    "hits_that_stop": {
        "hits are free of charge",
    },
    "segmented_eviction": {
        "reused at the very front",
        "bound off by one",
        "demoted but still reused",
        "demoted to the front",
        "no bound",
        "always the default share",
    },
    "token_budget": {
        "share-takes-what-decodes-need",
        "nothing-left-for-prompts",
    },
    "preemption": {
        "no event",
        "not in the statistics",
        "the last token of the budget is left",
        "prompt log-probabilities start over",
        "who waits for a turn is promised nothing",
    },
}
"""Wrong versions that decide as the reference does in this traffic: slower ones, and those that only misuse
or a rarer configuration shows."""
SAMPLE = 5
"""Of the mutants every so many-th is tried; all in the slow test."""


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_is_never_flagged_and_mutants_are(learner: Learner, name: str) -> None:
    mutants = [mutant.name for mutant in load_mutants(find_exercise(name))]
    seen = [mutant for mutant in mutants if mutant not in UNSEEN.get(name, ())]
    assert first_differences(learner, name, ["", *seen[::SAMPLE]]) == {"": False} | dict.fromkeys(
        seen[::SAMPLE], True
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", EXERCISES)
def test_all_mutants(learner: Learner, name: str) -> None:
    mutants = [mutant.name for mutant in load_mutants(find_exercise(name))]
    found = first_differences(learner, name, mutants)
    assert {mutant for mutant, seen in found.items() if not seen} == UNSEEN.get(name, set())


def first_differences(learner: Learner, name: str, mutants: list[str]) -> dict[str, bool]:
    """Mutant -> whether it was caught, the report naming the exercise. "": the solution."""
    exercise = find_exercise(name)
    done = subprocess.run(
        [sys.executable, "-m", "tests.study.overlay.run_mutants"],
        input=json.dumps([(exercise.id, mutant) for mutant in mutants]),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=dict(os.environ),
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reports = json.loads(done.stdout)
    for report in reports:
        assert report is None or f"It is {exercise.id}" in report[1], report
    return {mutant: report is not None for mutant, report in zip(mutants, reports)}
