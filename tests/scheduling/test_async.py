"""One step ahead: tokens in flight are counted, never lost, never expected twice, and never outlive their
request."""

import pytest

from learnvllm.architecture.request import RequestStatus
from tests.scheduling.fake_runner import SchedulerLoop, assert_oracle, make_config, oracle, prompt_of

late = pytest.mark.parametrize("execute_late", [False, True])


def make_loop(execute_late: bool = True, **options) -> SchedulerLoop:
    return SchedulerLoop(make_config(**options), async_scheduling=True, execute_late=execute_late)


def test_two_steps_are_in_flight_and_each_gives_a_token() -> None:
    loop = make_loop()
    request = loop.add("a", prompt_of(5), max_tokens=6)
    loop.schedule()
    loop.schedule()
    assert request.num_output_placeholders == 2
    assert request.num_computed_tokens == 6  # the prompt and one token nobody here knows
    loop.update()
    assert (request.num_output_placeholders, request.num_output_tokens) == (1, 1)
    loop.run()
    assert_oracle(loop, {"a": prompt_of(5)}, 6)


def test_a_chunk_that_does_not_end_the_prompt_puts_no_token_in_flight() -> None:
    loop = make_loop(max_num_batched_tokens=4)
    request = loop.add("a", prompt_of(10))
    loop.schedule()
    assert request.num_output_placeholders == 0
    loop.schedule()
    assert request.num_output_placeholders == 0
    loop.update()
    loop.schedule()
    assert request.num_output_placeholders == 1
    loop.run()
    assert_oracle(loop, {"a": prompt_of(10)}, 4)


def test_no_step_is_scheduled_for_a_token_beyond_max_tokens() -> None:
    loop = make_loop()
    loop.add("a", prompt_of(5), max_tokens=1)
    loop.schedule()
    assert loop.schedule().total_num_scheduled_tokens == 0
    loop.run()
    assert loop.tokens["a"] == oracle(prompt_of(5), 1)[0]


@late
def test_fault_13_preemption_with_a_token_in_flight(execute_late: bool) -> None:
    """The count never goes below zero; the token in flight is kept and not computed again."""
    loop = make_loop(execute_late, num_blocks=5, block_size=4)
    a = loop.add("a", prompt_of(7, 1), max_tokens=8)
    b = loop.add("b", prompt_of(7, 2), max_tokens=8)
    loop.schedule()
    loop.schedule()
    loop.update()
    before = b.num_output_tokens
    output = loop.schedule()  # a takes its third block from b
    assert output.preempted_req_ids == {"b"}
    assert b.status is RequestStatus.PREEMPTED
    assert b.num_output_placeholders == 1
    loop.update()
    assert (b.num_output_placeholders, b.num_output_tokens) == (0, before + 1)
    loop.run()
    assert a.num_preemptions == 0
    assert_oracle(loop, {"a": prompt_of(7, 1), "b": prompt_of(7, 2)}, 8)


@late
def test_fault_13_a_preempted_request_may_end_with_the_token_in_flight(execute_late: bool) -> None:
    expected = oracle(prompt_of(7, 2), 2)[0]
    loop = make_loop(execute_late, num_blocks=5, block_size=4)
    loop.add("a", prompt_of(7, 1), max_tokens=8)
    loop.add("b", prompt_of(7, 2), max_tokens=8, stop_token_ids=[expected[1]])
    for _ in range(2):
        loop.schedule()
    loop.update()
    assert loop.schedule().preempted_req_ids == {"b"}
    loop.update()
    assert loop.tokens["b"] == expected
    assert list(loop.scheduler.requests) == ["a"]
    assert len(loop.scheduler.waiting) == 0
    loop.run()


@late
def test_fault_13_nobody_is_admitted_again_while_a_token_is_in_flight(execute_late: bool) -> None:
    """Three steps in flight, as a deeper pipeline has: b's token must not be computed a second time."""
    loop = make_loop(execute_late, num_blocks=5, block_size=4)
    loop.add("a", prompt_of(7, 1), max_tokens=8)
    loop.add("b", prompt_of(7, 2), max_tokens=8)
    loop.schedule()
    loop.schedule()
    loop.update()
    assert loop.schedule().preempted_req_ids == {"b"}
    loop.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    assert loop.schedule().num_scheduled_tokens == {}  # there is room now, but b waits for its token
    loop.run()
    assert_oracle(loop, {"b": prompt_of(7, 2)}, 8)


@late
def test_an_abort_in_flight_drops_the_token_and_frees_the_blocks(execute_late: bool) -> None:
    loop = make_loop(execute_late)
    loop.add("a", prompt_of(5), max_tokens=8)
    loop.schedule()
    loop.schedule()
    assert loop.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED) == [("a", 0)]
    assert loop.scheduler.kv_cache_manager.usage == 0
    assert loop.update() == []
    loop.run()
    assert loop.tokens["a"] == []


@late
def test_an_id_used_again_does_not_get_the_tokens_of_its_former_owner(execute_late: bool) -> None:
    loop = make_loop(execute_late)
    loop.add("a", prompt_of(5, 1), max_tokens=8)
    loop.schedule()
    loop.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    loop.add("a", prompt_of(9, 2), max_tokens=3)
    loop.run()
    assert_oracle(loop, {"a": prompt_of(9, 2)}, 3)


@late
def test_a_stop_in_flight_discards_the_extra_token(execute_late: bool) -> None:
    expected = oracle(prompt_of(5), 3)[0]
    loop = make_loop(execute_late)
    loop.add("a", prompt_of(5), max_tokens=8, eos_token_ids=[expected[2]])
    loop.run()
    assert loop.tokens["a"] == expected[: expected.index(expected[2]) + 1]
    assert (
        sum(o.total_num_scheduled_tokens for o in loop.history) > 5 + len(loop.tokens["a"]) - 1
    )  # it was computed


@late
def test_only_known_tokens_are_named_in_the_prefix_cache(execute_late: bool) -> None:
    """A continuation hits whole blocks of output, the same as without async scheduling."""
    hits = []
    for async_scheduling in (False, True):
        loop = SchedulerLoop(
            make_config(block_size=4), async_scheduling=async_scheduling, execute_late=execute_late
        )
        loop.add("a", prompt_of(5), max_tokens=20)
        loop.run()
        longer = prompt_of(5) + loop.tokens["a"]
        request = loop.add("b", longer, max_tokens=2)
        loop.run()
        assert loop.tokens["b"] == oracle(longer, 2)[0]
        hits.append(request.num_cached_tokens)
    assert hits == [24, 24]


def test_steps_that_compute_nothing_still_tell_the_workers_whom_to_forget() -> None:
    """a waits for its only token in flight and b gives way to itself: an empty step with a preemption."""
    loop = make_loop(num_blocks=3, block_size=4)
    loop.add("a", prompt_of(4, 1), max_tokens=1)
    loop.add("b", prompt_of(4, 2), max_tokens=5)
    loop.schedule()
    output = loop.schedule()
    assert output.total_num_scheduled_tokens == 0
    assert output.preempted_req_ids == {"b"}
    loop.run()
    assert loop.tokens["a"] == oracle(prompt_of(4, 1), 1)[0]
    assert loop.tokens["b"] == oracle(prompt_of(4, 2), 5)[0]
