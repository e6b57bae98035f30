"""Every queue behaves as a sorted list from which anybody may leave."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnvllm.architecture.request import Request
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.scheduling.request_queue import (
    SECONDS_PER_PROMPT_TOKEN,
    FCFSRequestQueue,
    PriorityRequestQueue,
    ShortestFirstRequestQueue,
    create_request_queue,
)


def make_request(index: int, priority: int = 0) -> Request:
    params = SamplingParams(max_tokens=1)
    return Request(f"r{index}", [0] * (index % 3 + 1), params, priority=priority, arrival_time=float(index))


operations = st.lists(
    st.tuples(st.sampled_from(["add", "pop", "remove", "return"]), st.integers(0, 3)), max_size=40
)


def turn(request: Request) -> float:
    return request.arrival_time + SECONDS_PER_PROMPT_TOKEN * request.num_prompt_tokens


@pytest.mark.parametrize("policy", ["fcfs", "priority", "shortest"])
@given(operations=operations)
def test_a_queue_behaves_as_a_list(policy: str, operations: list[tuple[str, int]]) -> None:
    queue = create_request_queue(policy)  # type: ignore[arg-type]
    model: list[Request] = []
    popped: list[Request] = []
    returned: list[Request] = []
    for index, (operation, number) in enumerate(operations):
        if operation == "add":
            request = make_request(index, priority=number)
            queue.add_request(request)
            model.append(request)
        elif operation == "pop" and model:
            assert queue.peek_request() is model[0]
            popped.append(queue.pop_request())
            assert popped[-1] is model.pop(0)
            returned = [request for request in returned if request is not popped[-1]]
        elif operation == "remove" and model:
            queue.remove_request(model.pop(number % len(model)))
        elif operation == "return" and popped:
            request = popped.pop()
            queue.prepend_request(request)
            model.insert(0, request)
            returned.insert(0, request)
        if policy == "priority":
            model.sort()
        if policy == "shortest":
            first = [request for request in returned if request in model]
            model = first + sorted((request for request in model if request not in first), key=turn)
        assert list(queue) == model
        assert len(queue) == len(model)
        assert queue.num_prompt_tokens == sum(request.num_prompt_tokens for request in model)


@pytest.mark.parametrize("queue", [FCFSRequestQueue(), PriorityRequestQueue(), ShortestFirstRequestQueue()])
def test_an_empty_queue_has_no_next(queue) -> None:
    with pytest.raises(IndexError):
        queue.peek_request()
    with pytest.raises(IndexError):
        queue.pop_request()
    with pytest.raises(KeyError):
        queue.remove_request(make_request(0))


def test_an_id_used_again_is_not_mistaken_for_its_former_owner() -> None:
    queue = PriorityRequestQueue()
    former, heir = make_request(0, priority=0), make_request(0, priority=5)
    other = make_request(1, priority=1)
    queue.add_request(former)
    queue.remove_request(former)
    queue.add_request(heir)
    queue.add_request(other)
    assert [queue.pop_request() for _ in range(2)] == [other, heir]


def test_the_priority_queue_does_not_keep_the_dead() -> None:
    queue = PriorityRequestQueue()
    keeper = make_request(0, priority=-1)
    queue.add_request(keeper)
    for index in range(1, 1000):
        request = make_request(index)
        queue.add_request(request)
        queue.remove_request(request)
    assert len(queue._heap) < 50


def test_a_short_prompt_overtakes_a_long_one_that_has_not_waited_as_long_as_it_is() -> None:
    queue = ShortestFirstRequestQueue()
    for name, length, arrival in (("document", 100, 0.0), ("chat", 10, 0.5), ("late chat", 10, 0.95)):
        params = SamplingParams(max_tokens=1)
        queue.add_request(Request(name, [0] * length, params, arrival_time=arrival))
    assert [request.request_id for request in queue] == ["chat", "document", "late chat"]
