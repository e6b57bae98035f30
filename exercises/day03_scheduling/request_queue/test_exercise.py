"""Grader of request_queue: both queues behave as a list from which anybody may leave, without a walk."""

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.day03 import CONCEPTS, finish, simulation
from support.refusal import refuses
from support.sequences import difference

from learnvllm.architecture.request import Request
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.scheduling.scheduler import Scheduler
from learnvllm.scheduling.simulator import Arrival
from learnvllm.scheduling.toy import make_prompt, toy_config
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
QUEUES = {"fcfs": subject.FCFSRequestQueue, "priority": subject.PriorityRequestQueue}
both = pytest.mark.parametrize("policy", QUEUES)


class CountingRequest(Request):
    """Counts how often it is compared with others: the work of whoever looks for it."""

    comparisons = 0

    def __lt__(self, other):
        CountingRequest.comparisons += 1
        return super().__lt__(other)

    def __eq__(self, other):
        CountingRequest.comparisons += 1
        return self is other

    __hash__ = Request.__hash__


def make_request(number, priority=0, request_class=Request):
    params = SamplingParams(max_tokens=1)
    prompt = [0] * (number % 3 + 1)
    return request_class(f"r{number}", prompt, params, priority=priority, arrival_time=float(number))


def who(request):
    return request.request_id if isinstance(request, Request) else repr(request)


def described(requests):
    return [f"{who(request)} (priority {getattr(request, 'priority', '?')})" for request in requests]


def names(requests):
    return [request.request_id for request in requests]


operations = st.lists(
    st.tuples(st.sampled_from(["add", "add", "pop", "remove", "return"]), st.integers(0, 3)), max_size=40
)


def check_against_a_list(policy, operations):
    """Play the operations on the queue and on a plain list, which is sorted where priority decides."""
    queue, model, popped, story = QUEUES[policy](), [], [], []
    for number, (operation, choice) in enumerate(operations):
        if operation == "add":
            request = make_request(number, priority=choice)
            queue.add_request(request)
            model.append(request)
        elif operation == "pop" and model:
            request = queue.peek_request()
            taken = queue.pop_request()
            assert request is taken, (
                f"{policy}: after {story} peek_request showed {who(request)}, and then pop_request returned "
                f"{who(taken)}."
            )
            expected = model.pop(0)
            assert request is expected, (
                f"{policy}: after {story} the next is {expected.request_id}, not {who(request)}."
            )
            popped.append(request)
        elif operation == "remove" and model:
            request = model.pop(choice % len(model))
            queue.remove_request(request)
        elif operation == "return" and popped:
            request = popped.pop()
            queue.prepend_request(request)
            model.insert(0, request)
        else:
            continue
        if policy == "priority":
            model.sort()
        story.append(f"{operation} {request.request_id} (priority {request.priority})")
        assert names(queue) == names(model), (
            f"{policy}: after {story} iteration must give {names(model)}, the order of admission; it gives "
            f"{names(queue)}. Read {CONCEPTS}#who-is-next."
        )
        assert len(queue) == len(model), (
            f"{policy}: after {story} {len(model)} wait, and len says {len(queue)}."
        )
        tokens = sum(request.num_prompt_tokens for request in model)
        assert queue.num_prompt_tokens == tokens, (
            f"{policy}: after {story} those who wait have {tokens} prompt tokens, and num_prompt_tokens says "
            f"{queue.num_prompt_tokens}. Admission control refuses new requests by that number."
        )


@pytest.mark.points(4)
@given(operations=operations)
def test_fcfs_behaves_as_a_list(operations):
    check_against_a_list("fcfs", operations)


@pytest.mark.points(4)
@given(operations=operations)
def test_priority_behaves_as_a_sorted_list(operations):
    check_against_a_list("priority", operations)


@pytest.mark.points(1)
@both
def test_an_empty_queue_says_so(policy):
    queue = QUEUES[policy]()
    for call in (queue.peek_request, queue.pop_request):
        rule = f"{policy}: {call.__name__}() of an empty queue must raise IndexError."
        refuses(IndexError, call, rule)
    refuses(
        KeyError,
        lambda: queue.remove_request(make_request(0)),
        f"{policy}: remove_request(r0), which does not wait, must raise KeyError.",
    )
    assert not queue, (
        "An empty queue must be false: the scheduler asks `while self.waiting`. __len__ does that."
    )


@pytest.mark.points(2)
@both
def test_nobody_walks_through_the_queue_to_leave_it(policy):
    waiting = 2000
    queue = QUEUES[policy]()
    requests = [make_request(n, priority=n % 7, request_class=CountingRequest) for n in range(waiting)]
    for request in requests:
        queue.add_request(request)
    CountingRequest.comparisons = 0
    for request in requests[::-1]:
        queue.remove_request(request)
        assert not len(queue) or queue.peek_request() is not request, (
            f"{policy}: remove_request({request.request_id}) has returned, and peek_request still shows it."
        )
    allowed = 40 * waiting
    assert CountingRequest.comparisons <= allowed, (
        f"{policy}: {waiting} clients hung up, the last to come first, and requests were compared "
        f"{CountingRequest.comparisons:,} times; {allowed:,} are allowed, 40 for each. A search from the "
        f"front, or a heap rebuilt each time, needs about {waiting * waiting // 2:,}: too much while "
        "everybody waits for the next step."
    )


@pytest.mark.points(2)
def test_an_id_used_again_is_not_taken_for_its_former_owner():
    queue = QUEUES["priority"]()
    former, heir, other = (
        make_request(0, priority=0),
        make_request(0, priority=5),
        make_request(1, priority=1),
    )
    queue.add_request(former)
    queue.remove_request(former)
    queue.add_request(heir)
    queue.add_request(other)
    got = [queue.pop_request() for _ in range(2)]
    assert got == [other, heir], (
        "r0 (priority 0) left, another r0 came (priority 5), and r1 (priority 1): r1 is next. Whoever asks "
        "by id alone whether an entry is alive takes the dead r0 for the living one. Expected "
        f"{described([other, heir])}, got {described(got)}."
    )


@pytest.mark.points(2)
@both
def test_the_queue_does_not_keep_those_who_left(policy):
    queue = QUEUES[policy]()
    queue.add_request(make_request(0, priority=-1))
    left = []
    for number in range(1, 1000):
        request = make_request(number)
        queue.add_request(request)
        queue.remove_request(request)
        left.append(weakref.ref(request))
        del request
    gc.collect()
    kept = sum(reference() is not None for reference in left)
    assert kept <= 100, (
        f"{policy}: one waits, 999 have come and left, and the queue still holds {kept} of them. Dead "
        "entries below the top of a heap go only when somebody clears them out; a prompt of 100,000 tokens "
        "stays in memory until then."
    )


@pytest.mark.points(1)
def test_when_most_have_left_the_most_urgent_is_still_next():
    queue = QUEUES["priority"]()
    requests = [make_request(number, priority=number * 37 % 101) for number in range(100)]
    for request in requests:
        queue.add_request(request)
    for request in requests[::2] + requests[1::4]:
        queue.remove_request(request)
    rest = sorted(requests[3::4])
    got = [queue.pop_request() for _ in rest]
    assert got == rest, (
        f"Of 100 requests 75 left; the others must come by priority: "
        f"{difference(described(rest), described(got))}. A list from which somebody was taken out, or that "
        "was rebuilt, is a heap only after heapify."
    )


@pytest.mark.points(1)
@both
def test_the_scheduler_works_with_it(policy):
    sim = simulation(
        Scheduler, toy_config(num_blocks=13, block_size=2, policy=policy), queue=QUEUES[policy]()
    )
    arrivals = [Arrival(f"r{i}", i / 1000, make_prompt(3, i), 12, -i) for i in range(8)]
    finish(sim, arrivals)
    assert sim.num_preemptions > 0, (
        f"8 requests in 12 blocks must give way now and then. Read {CONCEPTS}#preemption."
    )
