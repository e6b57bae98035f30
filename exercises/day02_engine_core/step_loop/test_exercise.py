"""Grader of engine_core.step_loop: the order of the calls, and tokens against a model computed without an
engine."""

from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.day02 import build_core, expected_tokens, lesson, request, run

from learnvllm.architecture.messages import EngineCoreOutputs
from learnvllm.architecture.request import RequestStatus
from learnvllm.architecture.step import CachedRequestData, ModelRunnerOutput, SchedulerOutput
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
EngineCore = subject.EngineCore

PROMPTS = st.lists(st.lists(st.integers(3, 299), min_size=1, max_size=12), min_size=1, max_size=4)


@pytest.mark.points(1)
def test_an_idle_engine_does_nothing() -> None:
    diary: list[str] = []
    core = build_core(EngineCore, diary)
    got = core.step()
    rule = "Without requests there is no step: nobody is asked for anything, and nothing comes out."
    assert (got, diary) == (({}, False), []), lesson(
        rule, expected="({}, False), no calls", got=f"{got}, {diary}", read="the-loop"
    )


@pytest.mark.points(2)
def test_a_step_is_decided_computed_and_taken_in() -> None:
    diary: list[str] = []
    core = build_core(EngineCore, diary)
    core.add_request(request("a", [5, 6, 7], max_tokens=1))
    outputs, executed = core.step()
    rule = "One call of step() is one forward pass: schedule, execute, wait for the result, update."
    expected = ["schedule 1", "execute 1", "result 1", "update 1"]
    assert diary == expected, lesson(rule, expected=expected, got=diary, read="the-loop")
    tokens = [output.new_token_ids for output in outputs[0].outputs]
    assert (tokens, executed) == ([expected_tokens([5, 6, 7], 1)], True), lesson(
        "step() returns what update_from_output made of the result, and that the model ran.",
        case="one request, prompt [5, 6, 7], one token",
        expected=([expected_tokens([5, 6, 7], 1)], True),
        got=(tokens, executed),
        read="the-loop",
    )


@pytest.mark.points(1)
@given(prompts=PROMPTS, budget=st.integers(1, 20), max_tokens=st.integers(1, 6), asynchronous=st.booleans())
def test_any_batch_gives_what_each_request_gives_alone(prompts, budget, max_tokens, asynchronous) -> None:
    core = build_core(EngineCore, max_num_batched_tokens=budget, async_scheduling=asynchronous)
    for i, prompt in enumerate(prompts):
        core.add_request(request(f"r{i}", prompt, max_tokens))
    expected = {f"r{i}": expected_tokens(prompt, max_tokens) for i, prompt in enumerate(prompts)}
    got = run(core)
    assert got == expected, lesson(
        "A request's tokens do not depend on what else is in the batch or on how its prompt is cut into "
        "chunks.",
        case=f"prompts {prompts}, {budget} tokens a step, max_tokens {max_tokens}, async {asynchronous}",
        expected=expected,
        got=got,
        read="the-loop",
    )
    assert core.executor.rows == {}, lesson(
        "When the engine is idle the workers have been told of every request that ended. A step without "
        "tokens is still sent when it names finished requests.",
        case=f"prompts {prompts}, {budget} tokens a step",
        expected="no rows on the workers",
        got=f"rows of {sorted(core.executor.rows)}",
        read="the-loop",
    )


@pytest.mark.points(1)
def test_a_chunk_of_a_prompt_is_a_step_that_ran_and_gave_nothing() -> None:
    core = build_core(EngineCore, max_num_batched_tokens=4)
    core.add_request(request("a", [5, 6, 7, 8, 9, 10], max_tokens=2))
    got = []
    for _ in range(4):
        outputs, executed = core.step()
        got.append((executed, [t for m in outputs.values() for o in m.outputs for t in o.new_token_ids]))
    first, second = expected_tokens([5, 6, 7, 8, 9, 10], 2)
    expected = [(True, []), (True, [first]), (True, [second]), (False, [])]
    assert got == expected, lesson(
        "The second value says whether the model ran, which is whether any token was scheduled. A chunk of a "
        "prompt runs and gives nothing; the last step only tells the workers that the request has ended.",
        case="a prompt of 6 tokens, 4 tokens a step, 2 tokens wanted; four calls of step()",
        expected=expected,
        got=got,
        read="the-loop",
    )


@pytest.mark.points(1)
def test_with_async_scheduling_nothing_is_waited_for() -> None:
    diary: list[str] = []
    core = build_core(EngineCore, diary, async_scheduling=True)
    core.add_request(request("a", [5, 6, 7]))
    got = core.step()
    expected = (({}, True), ["schedule 1", "execute 1"])
    assert (got, diary) == expected, lesson(
        "With async scheduling step() leaves everything to step_with_batch_queue, which starts the first "
        "step and returns.",
        case="one request, the first call of step()",
        expected=expected,
        got=(got, diary),
        read="two-steps-in-flight",
    )


@pytest.mark.points(2)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_an_abort_that_comes_while_the_step_runs_stops_its_token(asynchronous) -> None:
    core = build_core(EngineCore, async_scheduling=asynchronous)
    arrived: list[str] = []

    def taken() -> list[str]:
        ids = list(arrived)
        arrived.clear()
        return ids

    core.take_aborts = taken
    core.executor.during_step = lambda number: arrived.extend(["a", "c"]) if number == 1 else None
    core.add_request(request("a", [5, 6, 7]))
    core.add_request(request("b", [5, 6, 8]))
    core.add_request(request("c", [5, 6, 9]))
    got = run(core)
    expected = {"b": expected_tokens([5, 6, 8], 4)}
    assert got == expected, lesson(
        "Aborts are taken between the result and update_from_output: asked earlier they have not come yet, "
        "asked later the token is already handed out. All that have come are taken.",
        case='"a" and "c" are aborted while step 1 runs; "b" goes on',
        expected=expected,
        got=got,
        read="aborts",
    )
    usage = core.scheduler.kv_cache_manager.usage
    assert usage == 0, lesson(
        "An aborted request gives its blocks back.", expected=0, got=usage, read="aborts"
    )


@pytest.mark.points(1)
def test_requests_are_ended_as_aborted_and_before_the_update() -> None:
    diary: list[str] = []
    core = build_core(EngineCore, diary)
    pending = [["a"]]
    core.take_aborts = lambda: pending.pop() if pending else []
    core.add_request(request("a", [5, 6, 7]))
    taken_in = core.scheduler.requests["a"]
    core.step()
    expected = ["schedule 1", "execute 1", "result 1", "abort a", "update 1"]
    assert diary == expected, lesson(
        "The scheduler hears of late aborts before it hears of the result.",
        expected=expected,
        got=diary,
        read="aborts",
    )
    assert taken_in.status is RequestStatus.FINISHED_ABORTED, lesson(
        "Whoever leaves has aborted: metrics count these ends apart from errors.",
        expected="FINISHED_ABORTED",
        got=taken_in.status.name,
        read="aborts",
    )


def step_with(**fields) -> SchedulerOutput:
    nothing = {"num_scheduled_tokens": {}, "total_num_scheduled_tokens": 0}
    return SchedulerOutput(1, [], CachedRequestData(), **{**nothing, **fields})


@pytest.mark.points(2)
@pytest.mark.parametrize(
    ("fields", "is_sent"),
    [
        ({}, False),
        ({"finished_req_ids": {"a"}}, True),
        ({"preempted_req_ids": {"a"}}, True),
        ({"num_scheduled_tokens": {"a": 2}, "total_num_scheduled_tokens": 2}, True),
    ],
    ids=["nothing", "finished", "preempted", "tokens"],
)
def test_workers_get_only_steps_with_news_and_the_scheduler_gets_every_step_back(fields, is_sent) -> None:
    core = build_core(EngineCore)
    step, sent, taken_in, ended = step_with(**fields), [], [], []
    answer = ModelRunnerOutput(["a"], [[7]])
    message = {0: EngineCoreOutputs()}
    core.scheduler.has_requests = lambda: True
    core.scheduler.schedule = lambda: step
    core.scheduler.update_from_output = lambda s, output: taken_in.append((s, output.req_ids)) or message
    core.executor.execute_model = lambda s, non_block=False: sent.append(non_block) or answer
    core.take_aborts = lambda: ["gone"]
    core.scheduler.finish_requests = lambda request_ids, status: ended.extend(request_ids)
    outputs, executed = core.step()
    case = f"a step with {fields or 'nothing in it'}"
    assert bool(sent) == is_sent, lesson(
        "The workers are called when there are tokens to compute, or requests to forget (finished or "
        "preempted).",
        case=case,
        expected="sent" if is_sent else "not sent",
        got="sent" if sent else "not sent",
        read="the-loop",
    )
    assert not any(sent), lesson(
        "step() has nothing else to do, so the executor itself may wait for the workers: non_block is True "
        "only for steps that others overtake.",
        case=case,
        expected="non_block=False",
        got="non_block=True",
        read="the-loop",
    )
    assert ended == ["gone"], lesson(
        "Whoever is asked for aborts gives each out once, so those that come with any step must be heard, "
        "with one without tokens as well.",
        case=f"{case}; a request is aborted meanwhile",
        expected=["gone"],
        got=ended,
        read="aborts",
    )
    expected = [(step, ["a"] if is_sent else [])]
    assert taken_in == expected, lesson(
        "Every step that was scheduled comes back to update_from_output, with EMPTY_MODEL_RUNNER_OUTPUT "
        "when the workers were not asked.",
        case=case,
        expected=expected,
        got=taken_in,
        read="the-loop",
    )
    assert (outputs, executed) == (message, bool(fields.get("total_num_scheduled_tokens"))), lesson(
        "step() returns the outputs of update_from_output and whether tokens were scheduled.",
        case=case,
        expected=(message, bool(fields.get("total_num_scheduled_tokens"))),
        got=(outputs, executed),
        read="the-loop",
    )


@pytest.mark.points(1)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_step_that_failed_is_not_a_step_without_tokens(asynchronous) -> None:
    core = build_core(EngineCore, async_scheduling=asynchronous)
    error, failed, taken_in = RuntimeError("the device is lost"), Future(), []
    failed.set_exception(error)
    core.executor.execute_model = lambda step, non_block=False: failed
    core.scheduler.update_from_output = lambda step, output: taken_in.append(output) or {}
    core.add_request(request("a", [5, 6, 7]))
    try:
        got = f"step() returned {core.step()}"
    except Exception as raised:
        got = raised
    assert got is error, lesson(
        "What the model raises, the future raises, and it must leave step(): the process around the engine "
        "ends and tells every client. Swallowed, the requests wait for a step that never succeeds.",
        case="one request; the future of its step fails",
        expected=repr(error),
        got=got if isinstance(got, str) else repr(got),
        read="the-loop",
    )
    assert taken_in == [], lesson(
        "A step that failed has no result that the scheduler could take in.",
        case="one request; the future of its step fails",
        expected="no update_from_output",
        got=taken_in,
        read="the-loop",
    )
