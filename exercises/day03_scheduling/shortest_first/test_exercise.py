"""Grader of shortest_first: a queue like any other, less waiting than fcfs, and nobody starves."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.day03 import finish, simulation
from support.refusal import refuses
from support.work import lines_executed

from learnvllm.architecture.request import Request
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.scheduling.request_queue import SECONDS_PER_PROMPT_TOKEN, FCFSRequestQueue
from learnvllm.scheduling.scheduler import Scheduler
from learnvllm.scheduling.simulator import Arrival, Simulation, chat_and_documents, nearest_rank
from learnvllm.scheduling.toy import make_prompt, toy_config
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
Queue = subject.ShortestFirstRequestQueue

SEEDS = range(4)


def make_request(number, length, arrival):
    return Request(f"r{number}", [0] * length, SamplingParams(max_tokens=1), arrival_time=arrival)


def who(request):
    return request.request_id if isinstance(request, Request) else repr(request)


def names(requests):
    return [request.request_id for request in requests]


def waits(make_queue):
    """How long each request of four traces waited, in simulated seconds."""
    config = toy_config(max_num_seqs=16, max_num_batched_tokens=256)
    sims = [Simulation(config, queue=make_queue()).run(chat_and_documents(seed=seed)) for seed in SEEDS]
    return [times.waited for sim in sims for times in sim.times.values()]


@pytest.fixture(scope="module")
def measured():
    return waits(FCFSRequestQueue), waits(Queue)


operations = st.lists(
    st.tuples(
        st.sampled_from(["add", "add", "add", "pop", "remove", "return"]),
        st.integers(1, 300),
        st.floats(0, 0.5),
    ),
    max_size=40,
)


@pytest.mark.points(2)
@given(operations=operations)
def test_it_keeps_the_contract_of_a_queue(operations):
    queue, waiting, popped, returned, now = Queue(), [], [], [], 0.0
    for number, (operation, value, gap) in enumerate(operations):
        now += gap
        if operation == "add":
            request = make_request(number, value, now)
            queue.add_request(request)
            waiting.append(request)
        elif operation == "pop" and waiting:
            request = queue.peek_request()
            taken = queue.pop_request()
            assert request is taken, (
                f"peek_request showed {who(request)}, and then pop_request returned {who(taken)}."
            )
            assert request in waiting, f"{who(request)} was handed out; those who wait are {names(waiting)}."
            if returned:
                assert request is returned[-1], (
                    f"{names(returned)} were preempted, in this order: the latest is next, before all who "
                    f"are new; got {request.request_id}."
                )
                returned.pop()
            waiting.remove(request)
            popped.append(request)
        elif operation == "remove" and waiting:
            request = waiting.pop(value % len(waiting))
            queue.remove_request(request)
            returned = [other for other in returned if other is not request]
        elif operation == "return" and popped:
            request = popped.pop()
            queue.prepend_request(request)
            waiting.append(request)
            returned.append(request)
        assert sorted(names(queue)) == sorted(names(waiting)), (
            f"{sorted(names(waiting))} wait, and iteration gives {sorted(names(queue))}. Nobody may get lost "
            "or stay on."
        )
        assert len(queue) == len(waiting), f"{len(waiting)} wait, and len says {len(queue)}."
        first, following = next(iter(queue), None), queue.peek_request() if waiting else None
        assert first is following, (
            f"Iteration must begin with who is next: peek_request shows {who(following)}, iteration begins "
            f"with {who(first)}."
        )
        tokens = sum(request.num_prompt_tokens for request in waiting)
        assert queue.num_prompt_tokens == tokens, (
            f"Those who wait have {tokens} prompt tokens, and num_prompt_tokens says "
            f"{queue.num_prompt_tokens}."
        )


@pytest.mark.points(1)
def test_an_empty_queue_says_so():
    queue = Queue()
    for call in (queue.peek_request, queue.pop_request):
        refuses(IndexError, call, f"{call.__name__}() of an empty queue must raise IndexError.")
    refuses(
        KeyError,
        lambda: queue.remove_request(make_request(0, 1, 0.0)),
        "remove_request(r0), which does not wait, must raise KeyError.",
    )


@pytest.mark.points(1)
def test_who_gave_way_goes_before_all_who_are_new():
    queue = Queue()
    new, b, c = make_request(1, 1, 0.0), make_request(2, 900, 5.0), make_request(3, 10, 6.0)
    for request in (new, b, c):
        queue.add_request(request)
    queue.remove_request(b)
    queue.remove_request(c)
    queue.prepend_request(c)  # the last in line gives way first, then the one before it
    queue.prepend_request(b)
    assert names(queue) == ["r2", "r3", "r1"], (
        f"r3 and then r2 were preempted; r1 is new. Expected ['r2', 'r3', 'r1'], got {names(queue)}: clients "
        "of the preempted wait in mid-sentence, and the one that gave way last stands before the other."
    )


@pytest.mark.points(1)
def test_equals_keep_their_order():
    queue = Queue()
    requests = [make_request(number, 50, 1.0) for number in (3, 1, 2)]
    for request in requests:
        queue.add_request(request)
    assert names(queue) == ["r3", "r1", "r2"], (
        "Three requests of one length that came at one time stay in the order in which they were added: "
        f"expected ['r3', 'r1', 'r2'], got {names(queue)}."
    )


class CountingTime(float):
    """A time of arrival; counts how often it, or a turn made of it, is compared with others."""

    comparisons = 0

    def __add__(self, other):
        return CountingTime(float(self) + float(other))

    __radd__ = __add__

    def __lt__(self, other):
        CountingTime.comparisons += 1
        return float(self) < float(other)

    def __eq__(self, other):
        CountingTime.comparisons += 1
        return float(self) == float(other)

    __hash__ = float.__hash__


@pytest.mark.points(1)
def test_nobody_walks_through_the_queue_to_enter_or_leave_it():
    queue, waiting = Queue(), 1000
    requests = [make_request(n, n * 37 % 101 + 1, CountingTime(n)) for n in range(waiting)]

    def come_and_go():
        for request in requests:
            queue.add_request(request)
        for request in requests[::-1]:
            queue.remove_request(request)

    CountingTime.comparisons = 0
    lines = lines_executed(subject.__file__, come_and_go)
    work, allowed = lines + CountingTime.comparisons, 100 * waiting
    assert work <= allowed, (
        f"{waiting:,} requests came, and all clients hung up, the last to come first: {lines:,} lines of "
        f"your code and {CountingTime.comparisons:,} comparisons of turns; {allowed:,} together are allowed, "
        "100 for each request. Whoever sorts everything at each arrival, or searches from the front, needs "
        f"about {waiting * waiting // 2:,}, while everybody waits for the next step. In a sorted list, "
        "bisect finds a place in ten comparisons."
    )


@pytest.mark.points(3)
def test_the_mean_wait_is_less_than_two_thirds_of_fcfs(measured):
    fcfs, ours = (statistics.mean(values) for values in measured)
    assert ours <= 0.66 * fcfs, (
        f"300 requests, one in ten a document, four times over: with fcfs a request waits {fcfs:.2f} s on "
        f"average, with your policy {ours:.2f} s. At most {0.66 * fcfs:.2f} s was to be reached. Is a chat "
        "of 40 tokens let past a document of 1,000 that came a second earlier?"
    )


@pytest.mark.points(2)
def test_the_slowest_in_a_hundred_wait_no_longer_than_with_fcfs(measured):
    fcfs, ours = (nearest_rank(values, 99) for values in measured)
    assert ours <= fcfs, (
        f"99 % of the requests wait at most {fcfs:.2f} s with fcfs and {ours:.2f} s with your policy. A "
        "better mean that is paid for by those who wait longest is no bargain."
    )


@pytest.mark.points(2)
def test_a_steady_stream_of_short_prompts_does_not_keep_a_document_out():
    document = Arrival("document", 1.0, make_prompt(800, 1), 2)
    stream = [Arrival(f"r{i}", i / 10, make_prompt(20, i), 16) for i in range(600)]
    config = toy_config(max_num_seqs=4, max_num_batched_tokens=256)
    sim = Simulation(config, queue=Queue()).run([document, *stream])
    waited = sim.times["document"].waited
    assert waited <= 20, (
        "For a minute more short prompts come than can be served, 10 a second; a document of 800 tokens "
        f"that came at 1.0 s waited {waited:.0f} s. By the rule 800 tokens put it off by "
        f"{800 * SECONDS_PER_PROMPT_TOKEN:.0f} s: who comes after that stands behind it, however short."
    )


@pytest.mark.points(2)
@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0, 2)), min_size=2, max_size=12))
def test_nobody_is_overtaken_by_who_comes_after_its_turn(people):
    queue, now = Queue(), 1000.0
    for number, (length, gap) in enumerate(people):
        now += gap
        queue.add_request(make_request(number, length, now))
    order = list(queue)
    for place, behind in enumerate(order):
        turn = behind.arrival_time + SECONDS_PER_PROMPT_TOKEN * behind.num_prompt_tokens
        for before in order[:place]:
            assert before.arrival_time <= turn + 1e-6, (
                f"{behind.request_id} ({behind.num_prompt_tokens} tokens, came at "
                f"{behind.arrival_time - 1000:.2f} s, turn at {turn - 1000:.2f} s) is behind "
                f"{before.request_id}, which came at {before.arrival_time - 1000:.2f} s. A length buys "
                "others a head start, not a place in front for ever."
            )


@pytest.mark.points(1)
def test_the_scheduler_works_with_it():
    config = toy_config(num_blocks=13, block_size=2)
    arrivals = [Arrival(f"r{i}", i / 1000, make_prompt(3 + i % 4, i), 9) for i in range(8)]
    sim = finish(simulation(Scheduler, config, queue=Queue()), arrivals)
    assert sim.num_preemptions > 0, "8 requests in 12 blocks must give way now and then."
