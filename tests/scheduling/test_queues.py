"""Both queues behave as a sorted list from which anybody may leave."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnvllm.architecture.request import Request
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.scheduling.request_queue import FCFSRequestQueue, PriorityRequestQueue, create_request_queue


def make_request(index: int, priority: int = 0) -> Request:
    params = SamplingParams(max_tokens=1)
    return Request(f"r{index}", [0] * (index % 3 + 1), params, priority=priority, arrival_time=float(index))


operations = st.lists(
    st.tuples(st.sampled_from(["add", "pop", "remove", "return"]), st.integers(0, 3)), max_size=40
)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@given(operations=operations)
def test_a_queue_behaves_as_a_list(policy: str, operations: list[tuple[str, int]]) -> None:
    queue = create_request_queue(policy)  # type: ignore[arg-type]
    model: list[Request] = []
    popped: list[Request] = []
    for index, (operation, number) in enumerate(operations):
        if operation == "add":
            request = make_request(index, priority=number)
            queue.add_request(request)
            model.append(request)
        elif operation == "pop" and model:
            assert queue.peek_request() is model[0]
            popped.append(queue.pop_request())
            assert popped[-1] is model.pop(0)
        elif operation == "remove" and model:
            queue.remove_request(model.pop(number % len(model)))
        elif operation == "return" and popped:
            request = popped.pop()
            queue.prepend_request(request)
            model.insert(0, request)
        if policy == "priority":
            model.sort()
        assert list(queue) == model
        assert len(queue) == len(model)
        assert queue.num_prompt_tokens == sum(request.num_prompt_tokens for request in model)


@pytest.mark.parametrize("queue", [FCFSRequestQueue(), PriorityRequestQueue()])
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
