"""Grader of engine_core.steps_in_flight. The scripted device computes a step only when somebody waits for it,
so the diary of calls shows what would have overlapped."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.day02 import build_core, expected_tokens, lesson, request, run

from learnvllm.architecture.messages import EngineCoreOutputs
from learnvllm.architecture.step import CachedRequestData, ModelRunnerOutput, SchedulerOutput
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
EngineCore = subject.EngineCore
READ = "two-steps-in-flight"


def make(diary=None, **config):
    return build_core(EngineCore, diary, async_scheduling=True, **config)


def tokens_in(outputs) -> list[int]:
    return [t for message in outputs.values() for output in message.outputs for t in output.new_token_ids]


@pytest.mark.points(1)
def test_nothing_in_flight_and_nothing_to_schedule_is_nothing() -> None:
    got = make().step_with_batch_queue()
    assert got == ({}, False), lesson(
        "An idle engine returns at once.", expected=({}, False), got=got, read=READ
    )


@pytest.mark.points(2)
def test_the_first_call_starts_a_step_and_does_not_wait_for_it() -> None:
    diary: list[str] = []
    core = make(diary)
    core.add_request(request("a", [5, 6, 7]))
    got = core.step_with_batch_queue()
    assert (got, diary) == (({}, True), ["schedule 1", "execute 1"]), lesson(
        "While there is room for a second step, a call that started one returns without waiting.",
        case="one request, first call; the device needs as long as nobody waits for it",
        expected=(({}, True), ["schedule 1", "execute 1"]),
        got=(got, diary),
        read=READ,
    )
    assert core.has_work(), "A step in flight is work: the loop must come back for its result."


@pytest.mark.points(2)
def test_the_next_step_is_scheduled_before_the_running_one_is_waited_for() -> None:
    diary: list[str] = []
    core = make(diary)
    core.add_request(request("a", [5, 6, 7]))
    core.step_with_batch_queue()
    outputs, executed = core.step_with_batch_queue()
    expected = ["schedule 1", "execute 1", "schedule 2", "execute 2", "result 1", "update 1"]
    assert diary == expected, lesson(
        "The second call schedules step 2, then waits for step 1. Waiting first leaves the device idle "
        "while the CPU plans; taking in step 2 leaves nothing running.",
        expected=expected,
        got=diary,
        read=READ,
    )
    want = (expected_tokens([5, 6, 7], 1), True)
    assert (tokens_in(outputs), executed) == want, lesson(
        "It returns step 1's outputs, and that step 2 was started.",
        expected=want,
        got=(tokens_in(outputs), executed),
        read=READ,
    )


@pytest.mark.points(1)
def test_a_step_that_is_done_is_taken_in_at_once() -> None:
    """A device that is faster than the CPU: each step is done by the time it has been handed over."""
    core = make()
    execute = core.executor._execute

    def execute_at_once(step):
        future = execute(step)
        future.result()
        return future

    core.executor._execute = execute_at_once
    core.add_request(request("a", [5, 6, 7]))
    outputs, executed = core.step_with_batch_queue()
    want = (expected_tokens([5, 6, 7], 1), True)
    assert (tokens_in(outputs), executed) == want, lesson(
        "Only a step that still runs is a reason to return without a result. One whose Future is done has "
        "tokens that somebody waits for; leaving them for the next call makes them a step late.",
        case="one request, first call; the device is done before the call looks",
        expected=want,
        got=(tokens_in(outputs), executed),
        read=READ,
    )


@pytest.mark.points(2)
@given(
    prompts=st.lists(st.lists(st.integers(3, 299), min_size=1, max_size=10), min_size=1, max_size=4),
    budget=st.integers(1, 16),
    max_tokens=st.integers(1, 5),
)
def test_steps_return_in_order_none_is_lost_and_two_at_most_are_in_flight(
    prompts, budget, max_tokens
) -> None:
    diary: list[str] = []
    core = make(diary, max_num_batched_tokens=budget)
    for i, prompt in enumerate(prompts):
        core.add_request(request(f"r{i}", prompt, max_tokens))
    run(core)
    case = f"prompts {prompts}, {budget} tokens a step, max_tokens {max_tokens}"
    scheduled = [line.split()[1] for line in diary if line.startswith("schedule")]
    updated = [line.split()[1] for line in diary if line.startswith("update")]
    assert updated == scheduled, lesson(
        "Every step that was scheduled is taken in, in the order of scheduling; steps without tokens too.",
        case=case,
        expected=scheduled,
        got=updated,
        read=READ,
    )
    most = in_flight = 0
    for line in diary:
        in_flight += line.startswith("schedule") - line.startswith("update")
        most = max(most, in_flight)
    assert most <= 2, lesson(
        "At most two steps are in flight: one that runs and one behind it.",
        case=case,
        expected="2 at most",
        got=most,
        read=READ,
    )


@pytest.mark.points(1)
@given(
    prompts=st.lists(st.lists(st.integers(3, 299), min_size=1, max_size=10), min_size=1, max_size=4),
    num_blocks=st.integers(6, 20),
)
def test_tokens_are_those_of_one_step_at_a_time_even_under_preemption(prompts, num_blocks) -> None:
    core = make(num_blocks=num_blocks, block_size=4)
    for i, prompt in enumerate(prompts):
        core.add_request(request(f"r{i}", prompt, 6))
    expected = {f"r{i}": expected_tokens(prompt, 6) for i, prompt in enumerate(prompts)}
    got = run(core)
    assert got == expected, lesson(
        "Overlapping steps changes when tokens come, never which.",
        case=f"prompts {prompts}, 6 tokens each, a pool of {num_blocks} blocks of 4",
        expected=expected,
        got=got,
        read=READ,
    )


def over_scripted_steps(*steps: SchedulerOutput):
    """A core whose scheduler gives out these steps, and the ids of those that it has taken in."""
    core, left, taken_in = make(), list(steps), []
    core.scheduler.has_requests = lambda: bool(left)
    core.scheduler.schedule = lambda: left.pop(0)
    core.scheduler.update_from_output = lambda step, output: taken_in.append(step.step_id) or {}
    core.executor._device.execute = lambda step: ModelRunnerOutput([], [])
    return core, taken_in


def scripted(step_id: int, num_tokens: int, finished: tuple[str, ...] = ()) -> SchedulerOutput:
    tokens = {"a": num_tokens} if num_tokens else {}
    return SchedulerOutput(step_id, [], CachedRequestData(), tokens, num_tokens, set(finished))


@pytest.mark.points(1)
def test_the_second_value_belongs_to_the_step_that_was_scheduled() -> None:
    """Three steps; the one in the middle gives out nothing, as when all wait for what is in flight."""
    core, taken_in = over_scripted_steps(scripted(1, 3), scripted(2, 0), scripted(3, 1))
    got = [(core.step_with_batch_queue()[1], list(taken_in)) for _ in range(5)]
    expected = [(True, []), (False, [1]), (True, [1, 2]), (False, [1, 2, 3]), (False, [1, 2, 3])]
    assert got == expected, lesson(
        "A call schedules one step and takes in an older one; its second value speaks of the one it "
        "scheduled. If it spoke of the other, whoever counts steps would count each a call late.",
        case="steps 1 to 3 with 3, 0 and 1 tokens, then nothing; (second value, taken in) by call",
        expected=expected,
        got=got,
        read=READ,
    )


@pytest.mark.points(1)
def test_a_step_with_news_and_no_token_is_waited_for() -> None:
    """It is sent, so its Future is not done; but nobody gets ahead by scheduling behind it."""
    core, taken_in = over_scripted_steps(scripted(1, 0, finished=("a",)))
    got = (core.step_with_batch_queue()[1], taken_in)
    assert got == (False, [1]), lesson(
        "Only a step that computes something is a reason to return without a result. One that only tells the "
        "workers who has ended scheduled no token, and this call must not say that it did.",
        case="one step, without tokens, that reports a finished request; (second value, taken in)",
        expected=(False, [1]),
        got=got,
        read=READ,
    )


@pytest.mark.points(1)
def test_an_empty_step_is_not_a_reason_to_return_and_waiting_is_not_running() -> None:
    """Every running request waits for what is in flight: the scheduler has requests and nothing to give
    out."""
    core = make()
    steps = [SchedulerOutput(n, [], CachedRequestData(), {}, 0) for n in (1, 2)]
    taken_in: list[int] = []
    core.scheduler.has_requests = lambda: bool(steps)
    core.scheduler.schedule = lambda: steps.pop(0)
    core.scheduler.update_from_output = lambda s, output: (
        taken_in.append(s.step_id) or {0: EngineCoreOutputs()}
    )
    core._in_flight.append(core._start_step(non_block=True))
    core._in_flight[0].future.done = lambda: False  # as if a device were still at it
    first = core.step_with_batch_queue()
    second = core.step_with_batch_queue()
    third = core.step_with_batch_queue()
    assert taken_in == [1, 2], lesson(
        "Steps without tokens wait their turn in the queue and are taken in like any other.",
        expected=[1, 2],
        got=taken_in,
        read=READ,
    )
    assert [executed for _, executed in (first, second, third)] == [False] * 3, lesson(
        "The second value says whether this call scheduled tokens. Calls that only wait say False.",
        expected=[False] * 3,
        got=[executed for _, executed in (first, second, third)],
        read=READ,
    )
    assert third == ({}, False), lesson(
        "With nothing left it returns ({}, False).", expected=({}, False), got=third, read=READ
    )
