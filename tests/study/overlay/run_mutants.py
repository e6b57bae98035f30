"""Runs in a process of its own: wrong versions of exercises in lock-step with the reference, one by one.

Reads JSON from stdin, a list of [exercise id, mutant or ""]; prints JSON, for each the scenario and the
report of the first difference, or null.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from functools import partial

from learnvllm.study import shadow_limit
from learnvllm.study.catalogue import find_exercise
from learnvllm.study.mutants import apply_mutant, find_mutant
from learnvllm.study.overlay_plan import make_plan
from learnvllm.study.shadow_copies import ModuleCopy
from learnvllm.study.shadow_engine import ShadowDivergence
from learnvllm.study.shadow_scheduler import ShadowScheduler
from learnvllm.study.starters import render_solution
from tests.study.overlay.traffic import SCENARIOS, Scenario, drive


def first_difference(exercise_id: str, mutant: str) -> tuple[str, str] | None:
    exercise = find_exercise(exercise_id)
    text = render_solution(exercise)
    if mutant:
        text = apply_mutant(text, find_mutant(exercise, mutant))
    exercise.path.write_text(text, "utf-8")
    plan = make_plan(exercise)
    mine, theirs = ModuleCopy(plans=[plan]), ModuleCopy()
    for name, scenario in SCENARIOS.items():
        make = partial(_make, scenario, mine, theirs)
        printed = io.StringIO()
        try:
            with contextlib.redirect_stderr(printed):
                drive(ShadowScheduler([plan], make), pipelined=scenario.scheduler == "AsyncScheduler")
        except ShadowDivergence:
            return name, printed.getvalue()
    return None


def _make(scenario: Scenario, mine: ModuleCopy, theirs: ModuleCopy, asked: ModuleCopy | None) -> object:
    copy = mine if asked is None else theirs
    config = scenario.config()
    return copy.get(scenario.home, scenario.scheduler)(
        config, copy.translate(scenario.kv_cache(config)), None
    )


if __name__ == "__main__":
    shadow_limit.LIMIT_S = 2.0  # some mutants go round for ever
    json.dump([first_difference(*pair) for pair in json.load(sys.stdin)], sys.stdout)
