"""What a learner reads when their code and the reference part, and who is named."""

from __future__ import annotations

import pytest

from learnvllm.study.shadow_lockstep import Difference
from learnvllm.study.shadow_report import headline
from tests.study.overlay.conftest import Learner

DAYS_3_AND_4 = (
    "token_budget,preemption,request_queue,one_step_ahead,shortest_first,free_queue,block_pool,block_hashing,"
    "prefix_lookup,sliding_window,hybrid_hit,segmented_eviction"
)
TRAFFIC = """
    from importlib import import_module
    from learnvllm.study import overlay
    from learnvllm.study.shadow_engine import ShadowDivergence
    from learnvllm.study.shadow_scheduler import shadowed
    from tests.study.overlay.traffic import SCENARIOS, drive
    for name, scenario in SCENARIOS.items():
        if name in NAMES:
            scheduler_class = getattr(import_module(scenario.home), scenario.scheduler)
            config = scenario.config()
            scheduler = shadowed(scheduler_class, overlay.active)(config, scenario.kv_cache(config))
            try:
                pipelined = scenario.scheduler == "AsyncScheduler"
                print(name, drive(scheduler, pipelined=pipelined, steps=120) > 20)
            except ShadowDivergence as error:
                print("STOPPED", error)
                break
"""


def traffic(*names: str) -> str:
    return f"    NAMES = {names!r}\n" + TRAFFIC


def test_all_solutions_together_are_not_flagged(learner: Learner) -> None:
    for name in DAYS_3_AND_4.split(","):
        learner.solve(name)
    out = learner.python(traffic("tight", "async", "windows"), DAYS_3_AND_4, shadow=True)
    assert out.split() == ["tight", "True", "async", "True", "windows", "True"]


@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        ("preemption", "first-in-line-gives-way"),
        ("free_queue", "last in, first out"),
        ("block_hashing", "no chain"),
    ],
)
def test_among_many_the_one_that_is_wrong_is_named(learner: Learner, name: str, mutant: str) -> None:
    for other in DAYS_3_AND_4.split(","):
        learner.solve(other)
    wrong = learner.mutate(name, mutant)
    out = learner.python(traffic("tight"), DAYS_3_AND_4, shadow=True)
    assert out.startswith("STOPPED --shadow: your code and the reference part at step ")
    assert f"Look at {wrong.id}; " in out


@pytest.mark.parametrize(
    ("mutant", "method", "scenario"),
    [
        ("names-no-output-blocks", "append_output_token_ids", "tight"),
        ("higher-is-first", "__lt__", "priority"),
    ],
)
def test_what_a_scheduler_calls_is_told_once(
    learner: Learner, mutant: str, method: str, scenario: str
) -> None:
    """A request is compared call by call, beside the scheduler, which both run on the learner's."""
    learner.solve("free_queue")
    learner.mutate("request_counters", mutant)
    done = learner.try_python(traffic(scenario), "request_counters,free_queue", shadow=True)
    where = f"--shadow: Request.{method} of architecture.request_counters"
    assert done.stdout.startswith(f"STOPPED {where} differs in "), done.stderr
    assert done.stderr.count("for the first time") == 1
    assert done.stderr.count(where) == 1


def test_where_none_is_wrong_alone_none_is_named() -> None:
    told = headline(Difference("schedule", ["running"], {}, {}, {}, step=3), [])
    assert "Look at how your exercises work together; " in told


def test_both_decisions_are_shown_with_what_stood_before(learner: Learner) -> None:
    learner.mutate("token_budget", "computes-hits-again")
    done = learner.try_python(traffic("tight"), "token_budget", shadow=True)
    report = done.stderr
    assert "STOPPED" in done.stdout, report
    for part in (
        "when the step was decided: your code and the reference differ for the first time.",
        "yours", "the reference", "tokens scheduled", "admitted", "Before the call both had:", "running",
        "It is scheduling.token_budget (Scheduler._get_prefill_budget, Scheduler._get_num_new_tokens).",
        "Next: learnvllm check scheduling.token_budget.",
    ):  # fmt: skip
        assert part in report
    assert max(map(len, report.splitlines())) < 180


def test_what_only_theirs_raises_is_shown_with_its_line(learner: Learner) -> None:
    learner.solve("preemption", ("victim = self.running.pop()", "victim = self.running[1000]"))
    done = learner.try_python(traffic("tight"), "preemption", shadow=True)
    assert "IndexError: list index out of range" in done.stderr
    assert "scheduling.preemption, exercise.py line" in done.stderr
    assert "victim = self.running[1000]" in done.stderr
