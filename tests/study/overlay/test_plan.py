"""Which members of a file are the learner's, and which exercises cannot run together."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from learnvllm.study.exercise import StudyError
from learnvllm.study.overlay_plan import check_conflicts, make_plan
from tests.study.overlay.conftest import Learner


def parts(plan) -> set[str]:
    return {str(part) for part in plan.parts}


def test_what_was_to_be_written_is_theirs_even_if_they_wrote_what_we_did(learner: Learner) -> None:
    plan = make_plan(learner.solve("token_budget"))
    assert parts(plan) == {"Scheduler._get_prefill_budget", "Scheduler._get_num_new_tokens"}
    assert not plan.todo


def test_a_member_that_they_changed_besides_is_theirs_too(learner: Learner) -> None:
    plan = make_plan(
        learner.solve("token_budget", ("victim = self.running.pop()", "victim = self.running.pop(-1)"))
    )
    assert "Scheduler._allocate_or_preempt" in parts(plan)


def test_a_repaired_file_is_the_reference(learner: Learner) -> None:
    assert not parts(make_plan(learner.solve("thrashing")))
    assert parts(make_plan(learner.reset("thrashing")))


def test_docstrings_comments_and_layout_are_no_change(learner: Learner) -> None:
    exercise = learner.solve(
        "thrashing",
        ('"""Serve those who run, in order.', '"""Serve them.'),
        ("        index = 0\n", "        # begin\n        index = (0)\n"),
    )
    assert not parts(make_plan(exercise))


def test_functions_and_whole_classes(learner: Learner) -> None:
    plan = make_plan(learner.solve("block_hashing"))
    assert parts(plan) == {"hash_block_tokens", "_encode", "cache_salt_key", "make_block_hasher"}
    old = "class FreeKVCacheBlockQueue:\n"
    plan = make_plan(
        learner.solve("free_queue", (old, f"class Base: ...\n\n\n{old.replace(':', '(Base):')}"))
    )
    assert parts(plan) == {"FreeKVCacheBlockQueue"}  # other bases: another class


def test_what_is_still_todo_is_known(learner: Learner) -> None:
    plan = make_plan(learner.reset("token_budget"))
    assert {str(part) for part in plan.todo} == parts(plan)


def test_a_syntax_error_is_named_with_its_line(learner: Learner) -> None:
    exercise = learner.write("token_budget", "def f(:\n")
    with pytest.raises(StudyError, match=r"scheduling.token_budget: exercise.py cannot be used: line 1: "):
        make_plan(exercise)


def test_no_source_at_all_is_named_without_a_line(learner: Learner) -> None:
    exercise = learner.write("token_budget", "x = 1\0\n")
    with pytest.raises(
        StudyError, match=r"exercise.py cannot be used: source code string cannot contain null"
    ):
        make_plan(exercise)


def test_what_cannot_be_parsed_at_all_is_named(learner: Learner) -> None:
    exercise = learner.write("token_budget", "x = " + "+".join(["1"] * 100_000))
    with pytest.raises(StudyError, match=r"exercise.py cannot be used: it is nested too deeply\."):
        make_plan(exercise)


def test_a_target_that_the_reference_lacks_is_named(learner: Learner) -> None:
    exercise = replace(learner.solve("token_budget"), targets=("learnvllm.scheduling.scheduler:Gone",))
    with pytest.raises(StudyError, match=r"learnvllm.scheduling.scheduler defines no class or function Gone"):
        make_plan(exercise)


def test_a_renamed_class_is_missed(learner: Learner) -> None:
    exercise = learner.solve("token_budget", ("class Scheduler(", "class Planner("))
    with pytest.raises(
        StudyError, match="does not define Scheduler.*learnvllm reset scheduling.token_budget"
    ):
        make_plan(exercise)


def test_a_helper_that_the_starter_leaves_out_may_have_another_name(learner: Learner) -> None:
    renamed = ("def _join(", "def _glue("), ("] = _join(before", "] = _glue(before")
    plan = make_plan(learner.solve("output_collector", *renamed))
    assert "merge_outputs" in map(str, plan.parts)
    assert "_join" not in map(str, plan.parts)
    check_that_outputs_are_merged(learner)
    head = "def _join(old: CompletionOutput, new: CompletionOutput) -> CompletionOutput:"
    by_their_own_rule = (head, "_join = lambda old, new, really: _glue(old, new)\n\n\ndef _glue(old, new):")
    used = ("] = _join(before, completion)", "] = _join(before, completion, True)")
    learner.solve("output_collector", by_their_own_rule, used)
    check_that_outputs_are_merged(learner)


def check_that_outputs_are_merged(learner: Learner) -> None:
    code = """
        from learnvllm.architecture.outputs import CompletionOutput, RequestOutput
        from learnvllm.engine_core.output_collector import merge_outputs
        one, two = (RequestOutput("r", None, [5], [CompletionOutput(0, t, [6])], False) for t in "ab")
        print(merge_outputs(one, two, delta=True).outputs[0].text)
    """
    assert learner.python(code, overlay="engine_core.output_collector").splitlines()[-1] == "ab"


def test_two_exercises_that_change_one_member_are_both_named(learner: Learner) -> None:
    change = ("victim = self.running.pop()", "victim = self.running.pop(-1)")
    plans = [make_plan(learner.solve("preemption")), make_plan(learner.solve("token_budget", change))]
    told = "scheduling.preemption and scheduling.token_budget both change Scheduler._allocate_or_preempt"
    with pytest.raises(StudyError, match=told):
        check_conflicts(plans)
    check_conflicts([make_plan(learner.solve("preemption")), make_plan(learner.solve("token_budget"))])
    same = [make_plan(learner.solve("preemption", change)), make_plan(learner.solve("token_budget", change))]
    check_conflicts(same)  # the same change is no conflict
