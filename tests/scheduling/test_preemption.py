"""When blocks run out the last in line gives way, loses nothing but work, and nobody goes round in
circles."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnvllm.architecture.messages import FinishReason
from learnvllm.architecture.request import RequestStatus
from tests.scheduling.fake_runner import SchedulerLoop, assert_oracle, make_config, oracle, prompt_of

both = pytest.mark.parametrize("async_scheduling", [False, True])


def preemptions_without_progress(loop: SchedulerLoop, max_steps: int = 5000) -> Counter[str]:
    """Run to the end; count, per request, preemptions at the number of tokens it had at the one before."""
    known: dict[str, tuple[int, int]] = {}
    count: Counter[str] = Counter()
    for _ in range(max_steps):
        if not loop.scheduler.has_requests() and not loop.in_flight:
            return count
        loop.step()
        for request_id, request in loop.scheduler.requests.items():
            before = known.get(request_id, (0, -1))
            now = request.num_preemptions, request.num_tokens_at_preemption
            count[request_id] += now[0] > before[0] and now[1] == before[1]
            known[request_id] = now
    raise AssertionError("livelock")


@both
@pytest.mark.parametrize("length", [1, 5, 7, 8])
def test_faults_a_and_1_the_only_request_fills_the_pool(length: int, async_scheduling: bool) -> None:
    """Two blocks of 4 bound the length to 9 tokens: the last needs no KV."""
    loop = SchedulerLoop(make_config(num_blocks=3, block_size=4), async_scheduling=async_scheduling)
    loop.add("a", prompt_of(length), max_tokens=50)
    loop.run()
    assert loop.tokens["a"] == oracle(prompt_of(length), 9 - length)[0]
    assert loop.finish_reasons["a"] == FinishReason.LENGTH
    assert loop.num_preemptions == 0


@both
def test_fault_a_as_reported_8_tokens_in_2_blocks_and_4_to_come(async_scheduling: bool) -> None:
    loop = SchedulerLoop(make_config(num_blocks=3, block_size=4), async_scheduling=async_scheduling)
    loop.add("a", prompt_of(8), max_tokens=4)
    loop.add("b", prompt_of(4, 1), max_tokens=4)
    loop.run()
    assert len(loop.tokens["a"]) == 1
    assert loop.tokens["b"] == oracle(prompt_of(4, 1), 4)[0]


@both
def test_the_last_in_line_gives_way_and_comes_back_with_its_tokens(async_scheduling: bool) -> None:
    loop = SchedulerLoop(make_config(num_blocks=6, block_size=4), async_scheduling=async_scheduling)
    prompts = {"a": prompt_of(8, 1), "b": prompt_of(8, 2)}
    requests = {name: loop.add(name, prompt, max_tokens=10) for name, prompt in prompts.items()}
    loop.run()
    assert_oracle(loop, prompts, 10)
    assert requests["a"].num_preemptions == 0
    assert requests["b"].num_preemptions >= 1


def test_a_preempted_request_waits_before_all_new_ones() -> None:
    loop = SchedulerLoop(make_config(num_blocks=6, block_size=4, max_num_seqs=2))
    loop.add("a", prompt_of(8, 1), max_tokens=10)
    loop.add("b", prompt_of(8, 2), max_tokens=10)
    loop.add("c", prompt_of(2, 3), max_tokens=2)
    while not loop.num_preemptions:
        loop.step()
    assert [request.request_id for request in loop.scheduler.waiting] == ["b", "c"]
    assert next(iter(loop.scheduler.waiting)).status is RequestStatus.PREEMPTED


def test_several_give_way_in_reverse_order_and_return_in_order() -> None:
    loop = SchedulerLoop(make_config(num_blocks=7, block_size=4, max_num_batched_tokens=32))
    loop.add("a", prompt_of(12, 1), max_tokens=12)
    loop.add("b", prompt_of(4, 2), max_tokens=12)
    loop.add("c", prompt_of(4, 3), max_tokens=12)
    while len(loop.scheduler.running) != 1:
        loop.step()
    assert [request.request_id for request in loop.scheduler.waiting] == ["b", "c"]
    loop.run()
    assert_oracle(loop, {"a": prompt_of(12, 1), "b": prompt_of(4, 2), "c": prompt_of(4, 3)}, 12)


def test_by_priority_the_least_urgent_gives_way_whoever_came_first() -> None:
    loop = SchedulerLoop(make_config(num_blocks=6, block_size=4, policy="priority"))
    casual = loop.add("casual", prompt_of(8, 1), max_tokens=10, priority=5, arrival_time=1.0)
    urgent = loop.add("urgent", prompt_of(8, 2), max_tokens=10, priority=0, arrival_time=2.0)
    loop.run()
    assert (casual.num_preemptions > 0, urgent.num_preemptions) == (True, 0)
    assert_oracle(loop, {"casual": prompt_of(8, 1), "urgent": prompt_of(8, 2)}, 10)


def test_by_priority_whoever_runs_is_served_in_order_of_urgency() -> None:
    loop = SchedulerLoop(make_config(policy="priority"))
    loop.add("casual", prompt_of(4, 1), priority=5)
    loop.step()
    loop.add("urgent", prompt_of(4, 2), priority=0, arrival_time=9.0)
    loop.step()
    assert [request.request_id for request in loop.scheduler.running] == ["urgent", "casual"]
    assert list(loop.schedule().num_scheduled_tokens) == ["urgent", "casual"]


def test_by_priority_a_request_may_have_to_give_way_itself() -> None:
    loop = SchedulerLoop(make_config(num_blocks=5, block_size=4, policy="priority"))
    loop.add("urgent", prompt_of(7, 1), max_tokens=6, priority=0)
    loop.step()
    late = loop.add("late", prompt_of(8, 2), max_tokens=6, priority=1)
    loop.step()
    loop.run()
    assert late.num_preemptions >= 1
    assert_oracle(loop, {"urgent": prompt_of(7, 1), "late": prompt_of(8, 2)}, 6)


def test_among_equal_priorities_the_latest_arrival_gives_way() -> None:
    loop = SchedulerLoop(make_config(num_blocks=6, block_size=4, policy="priority"))
    later = loop.add("later", prompt_of(8, 1), max_tokens=10, arrival_time=2.0)
    earlier = loop.add("earlier", prompt_of(8, 2), max_tokens=10, arrival_time=1.0)
    loop.run()
    assert (later.num_preemptions > 0, earlier.num_preemptions) == (True, 0)


def test_nobody_is_scheduled_and_preempted_in_one_step() -> None:
    """Fault 18: its new blocks would be findable though nobody writes them."""
    for policy in ("fcfs", "priority"):
        loop = SchedulerLoop(make_config(num_blocks=12, block_size=2, policy=policy, max_num_seqs=8))
        prompts = {f"r{i}": prompt_of(3, i) for i in range(8)}
        for i, (request_id, prompt) in enumerate(prompts.items()):
            loop.add(request_id, prompt, max_tokens=12, priority=-i, arrival_time=float(i))
        loop.run()
        assert loop.num_preemptions > 0
        assert_oracle(loop, prompts, 12)


@both
@pytest.mark.parametrize("enable_prefix_caching", [False, True])
def test_fault_3_two_long_requests_that_fit_only_alone_do_not_thrash(
    async_scheduling: bool, enable_prefix_caching: bool
) -> None:
    config = make_config(
        num_blocks=21,
        block_size=4,
        max_num_batched_tokens=16,
        enable_prefix_caching=enable_prefix_caching,
    )
    loop = SchedulerLoop(config, async_scheduling=async_scheduling)
    prompts = {"a": prompt_of(50, 1), "b": prompt_of(50, 2)}
    for name, prompt in prompts.items():
        loop.add(name, prompt, max_tokens=25)
    loop.run()
    assert_oracle(loop, prompts, 25)
    assert loop.num_preemptions == 0


def long_prompt_behind_a_decode(guard: bool) -> SchedulerLoop:
    """a decodes; b's prompt needs nearly the whole pool and comes in chunks."""
    config = make_config(num_blocks=13, block_size=4, max_num_batched_tokens=17, enable_prefix_caching=False)
    loop = SchedulerLoop(config)
    loop.scheduler.progress_guard = guard
    loop.add("a", prompt_of(8, 1), max_tokens=36)
    loop.add("b", prompt_of(40, 2), max_tokens=3)
    return loop


def test_sch_07_without_the_guard_a_request_is_admitted_and_preempted_in_circles() -> None:
    """The head of the line always moves, so this is no deadlock: b takes what it gets, lacks the last blocks,
    gives way to itself, and begins again, for as long as a runs."""
    loop = long_prompt_behind_a_decode(guard=False)
    assert preemptions_without_progress(loop)["b"] >= 10
    assert_oracle(loop, {"a": prompt_of(8, 1)}, 36)


def test_sch_07_with_the_guard_it_waits_until_it_fits() -> None:
    wasteful, guarded = long_prompt_behind_a_decode(guard=False), long_prompt_behind_a_decode(guard=True)
    wasteful.run()
    assert not +preemptions_without_progress(guarded)
    assert guarded.tokens == wasteful.tokens
    computed = [sum(o.total_num_scheduled_tokens for o in loop.history) for loop in (wasteful, guarded)]
    assert computed[0] > 2.5 * computed[1]
    assert guarded.num_preemptions == 1  # when b was admitted, a had not grown yet


def test_sch_07_who_gave_way_comes_back_only_when_the_others_have_room_to_grow() -> None:
    """Else c, whose prompt takes three steps, would be preempted a second time before its first token."""
    config = make_config(num_blocks=11, block_size=4, max_num_batched_tokens=4, enable_prefix_caching=False)
    loop = SchedulerLoop(config)
    loop.add("a", prompt_of(21, 1), max_tokens=15)
    loop.add("b", prompt_of(1, 2), max_tokens=5)
    c = loop.add("c", prompt_of(10, 3), max_tokens=1)
    assert not +preemptions_without_progress(loop)
    assert c.num_preemptions == 1
    assert loop.tokens["c"] == oracle(prompt_of(10, 3), 1)[0]


@given(seed=st.integers(0, 10_000))
def test_sch_07_nobody_is_preempted_without_progress_more_than_once(seed: int) -> None:
    rng = random.Random(seed)
    config = make_config(
        num_blocks=rng.randint(16, 60),
        block_size=rng.choice([1, 2, 4]),
        max_num_batched_tokens=rng.choice([2, 3, 5, 8, 16]),
        max_num_seqs=rng.choice([2, 4, 8]),
        enable_prefix_caching=rng.random() < 0.5,
        policy=rng.choice(["fcfs", "priority"]),
    )
    loop = SchedulerLoop(config, rng.choice([(None,), (None, 6)]), async_scheduling=rng.random() < 0.5)
    for i in range(10):
        prompt = prompt_of(rng.randint(1, 60), i)
        if len(prompt) <= loop.scheduler.num_tokens_that_fit:
            loop.add(f"r{i}", prompt, rng.randint(1, 30), priority=rng.randint(0, 2), arrival_time=float(i))
    assert max(preemptions_without_progress(loop).values(), default=0) <= 1


@given(
    num_blocks=st.integers(5, 14),
    block_size=st.sampled_from([1, 2, 4]),
    lengths=st.lists(st.integers(1, 12), min_size=2, max_size=6),
    async_scheduling=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority"]),
)
def test_sch_02_output_does_not_depend_on_preemption(
    num_blocks: int, block_size: int, lengths: list[int], async_scheduling: bool, policy: str
) -> None:
    config = make_config(num_blocks=num_blocks, block_size=block_size, policy=policy)
    loop = SchedulerLoop(config, async_scheduling=async_scheduling)
    prompts = {}
    for i, length in enumerate(lengths):
        length = min(length, loop.scheduler.num_tokens_that_fit)
        prompts[f"r{i}"] = prompt_of(length, i)
        loop.add(f"r{i}", prompts[f"r{i}"], max_tokens=9, priority=i % 2, arrival_time=float(i))
    loop.run()
    assert_oracle(loop, prompts, 9)
