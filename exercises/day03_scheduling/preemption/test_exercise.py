"""Grader of preemption: the last in line gives way, loses work and no token, and comes back first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.day03 import CONCEPTS, async_over, check_tokens, finish, run_until, simulation

from learnvllm.architecture.request import RequestStatus
from learnvllm.scheduling.output_maker import OutputMaker
from learnvllm.scheduling.simulator import Arrival
from learnvllm.scheduling.toy import make_prompt, toy_config
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
Scheduler = subject.Scheduler


def request(name, length, max_tokens=10, priority=0):
    return Arrival(name, 0.0, make_prompt(length, ord(name[0])), max_tokens, priority)


def until_somebody_gives_way(sim, arrivals):
    """The requests by name, and the step in which blocks ran out."""
    requests = {arrival.request_id: sim.add(arrival) for arrival in arrivals}
    for _ in range(200):
        step = sim.schedule()
        if step.preempted_req_ids:
            return requests, step
        sim.update()
        assert sim.is_busy, (
            "The pool runs out of blocks here, but nobody was reported as preempted. Read "
            f"{CONCEPTS}#preemption."
        )
    raise AssertionError(
        "The pool runs out of blocks within 20 steps here, and after 200 nobody has given way."
    )


@pytest.mark.points(2)
def test_the_last_in_line_gives_way():
    sim = simulation(Scheduler, toy_config(num_blocks=7, block_size=4))
    arrivals = [request("a", 8), request("b", 8)]
    requests, step = until_somebody_gives_way(sim, arrivals)
    assert step.preempted_req_ids == {"b"}, (
        "6 blocks, two requests that grow: b, the last to be admitted, gives way. Here "
        f"{step.preempted_req_ids} did. Whoever is first in line always gets on; else nobody might ever "
        "finish."
    )
    assert dict(step.num_scheduled_tokens) == {"a": 1}, (
        f"In the step in which b gives way a computes its token; got {dict(step.num_scheduled_tokens)}. "
        "Nobody is admitted in that step: who has just taken blocks does not hand them on."
    )
    sim.update()
    finish(sim, [])
    assert requests["a"].num_preemptions == 0, (
        f"a is first in line and never gives way; it did {requests['a'].num_preemptions} times."
    )


@pytest.mark.points(2)
def test_who_gives_way_loses_its_blocks_and_keeps_its_tokens():
    sim = simulation(Scheduler, toy_config(num_blocks=7, block_size=4, log_stats=True))
    requests, _ = until_somebody_gives_way(sim, [request("a", 8), request("b", 8)])
    b = requests["b"]
    held = sim.scheduler.kv_cache_manager.has_blocks("b")
    assert not held, "b gave way and still holds blocks. The point of preemption is to give them back."
    state = (b.status, b.num_computed_tokens, b.num_preemptions)
    assert state == (RequestStatus.PREEMPTED, 0, 1), (
        f"(status, num_computed_tokens, num_preemptions) of b is {state}; expected PREEMPTED, 0 (its KV is "
        "gone), 1."
    )
    assert b.num_tokens == 8 + len(sim.tokens["b"]) == b.num_tokens_at_preemption, (
        f"b was sent {len(sim.tokens['b'])} output tokens and now has {b.num_tokens - 8}; "
        f"num_tokens_at_preemption is {b.num_tokens_at_preemption}. A preempted request loses work, not "
        "tokens: the client has seen them."
    )
    counted, events = sim.scheduler.make_stats().num_preemptions, [event.type.name for event in b.events]
    assert (counted, events[-1:]) == (1, ["PREEMPTED"]), (
        f"The statistics count {counted} preemptions in this step, and the last event of b is {events[-1:]}; "
        "expected 1 and ['PREEMPTED']. Whoever runs the server sees in both that its pool is too small."
    )
    sim.update()
    finish(sim, [])


GIVING_WAY_CHANGES = {"status", "num_computed_tokens", "num_preemptions", "num_tokens_at_preemption"}


@pytest.mark.points(1)
def test_who_gives_way_stays_the_same_request(monkeypatch):
    forgotten = []
    monkeypatch.setattr(OutputMaker, "forget", lambda _, request: forgotten.append(request.request_id))
    sim = simulation(Scheduler, toy_config(num_blocks=7, block_size=4, policy="priority"))
    b = [sim.add(arrival) for arrival in (request("a", 8), request("b", 8))][1]
    for _ in range(200):
        before = {name: list(v) if isinstance(v, list) else v for name, v in vars(b).items()}
        step = sim.schedule()
        if "b" in step.preempted_req_ids:
            break
        sim.update()
    changed = {
        f"{name}: {old!r} -> {vars(b)[name]!r}"
        for name, old in before.items()
        if name not in GIVING_WAY_CHANGES and vars(b)[name] != old
    }
    assert not changed, (
        f"b gave way, and of its fields only {sorted(GIVING_WAY_CHANGES)} may change by that; also changed: "
        f"{', '.join(sorted(changed))}. It goes on later as the request that it was: it came when it came, "
        "and what the prefix cache had for it at its first admission is what its client is told."
    )
    ended = sorted(step.finished_req_ids), forgotten
    assert ended == ([], []), (
        f"b gave way. The step reports {ended[0]} as finished and the output maker was to forget {ended[1]}; "
        "expected [] and []: b has not ended. Forgotten, its prompt's log-probabilities are sent twice."
    )


@pytest.mark.points(1)
@pytest.mark.parametrize(("length", "admitted"), [(12, False), (8, True)])
def test_the_rest_of_a_prompt_is_promised_its_blocks(length, admitted):
    config = toy_config(num_blocks=9, block_size=4, long_prefill_token_threshold=4)
    sim = simulation(Scheduler, config)
    sim.add(request("a", 24))
    sim.step()
    sim.add(request("b", length))
    second = dict(sim.schedule().num_scheduled_tokens)
    expected = {"a": 4, "b": 4} if admitted else {"a": 4}
    assert second == expected, (
        "8 blocks of 4 tokens; a's prompt of 24 is computed 4 tokens a step. In the second step a has 2 of "
        "the 6 blocks that it needs, so 6 are free and 4 of them promised to a: 2 are left. b, which comes "
        f"now, needs {length // 4}: expected {expected}, got {second}. Call _promise_rest_of_prompt once "
        "for each running request, after it has its blocks: without the promise somebody is admitted "
        "who must soon give way again, and with too large a one blocks lie idle."
    )
    sim.update()
    finish(sim, [])


@pytest.mark.points(1)
@pytest.mark.parametrize(("num_free", "admitted"), [(3, False), (4, True)])
def test_a_prompt_that_gets_nothing_in_this_step_is_promised_its_blocks_too(num_free, admitted):
    """While somebody decodes prompts have a share of 16 tokens, which the first of two prompts takes."""
    config = toy_config(
        num_blocks=1 + 4 + num_free,
        block_size=16,
        long_prefill_token_threshold=16,
        prefill_tokens_per_decode=1,
        max_num_batched_tokens=64,
    )
    sim = simulation(Scheduler, config)
    for arrival in (request("a", 2, 8), request("b", 48), request("c", 48)):
        sim.add(arrival)
    sim.step()
    sim.add(request("d", 1, 2))
    second = dict(sim.schedule().num_scheduled_tokens)
    expected = {"a": 1, "b": 16} | ({"d": 1} if admitted else {})
    assert second == expected, (
        "a decodes, so the two prompts of 48 tokens share 16 tokens of the second step: b takes them and c "
        f"gets none. Of their 3 blocks each b has 2 by then and c 1, so {num_free} are free and 3 of them "
        f"promised; d, which comes now with one token, needs 1. Expected {expected}, got {second}. A prompt "
        "that waits for its turn still has all of its way to go: promise the rest whether or not the request "
        "gets tokens in this step."
    )
    sim.update()
    finish(sim, [])


@pytest.mark.points(1)
def test_the_last_token_of_the_budget_is_used():
    sim = simulation(Scheduler, toy_config(max_num_batched_tokens=1, max_num_seqs=1))
    sim.add(request("a", 3, 2))
    sim.step()
    second = dict(sim.schedule().num_scheduled_tokens)
    assert second == {"a": 1}, (
        "A step may compute 1 token, and a runs with 2 tokens of its prompt to go: expected {'a': 1}, got "
        f"{second}. The budget lasts until it is 0; else an engine with max_num_batched_tokens=1 stands "
        "still."
    )
    sim.update()
    finish(sim, [])


@pytest.mark.points(1)
def test_who_gave_way_is_next_before_all_who_are_new():
    sim = simulation(Scheduler, toy_config(num_blocks=7, block_size=4, max_num_seqs=2))
    until_somebody_gives_way(sim, [request("a", 8), request("b", 8), request("c", 2)])
    waiting = [r.request_id for r in sim.scheduler.waiting]
    assert waiting == ["b", "c"], (
        f"The queue is {waiting}; expected ['b', 'c']: b came before c and its client is waiting in "
        "mid-sentence."
    )
    sim.update()
    finish(sim, [])


@pytest.mark.points(1)
def test_several_give_way_from_the_back_and_return_in_order():
    sim = simulation(Scheduler, toy_config(num_blocks=7, block_size=4, max_num_batched_tokens=32))
    arrivals = [request("a", 12, 12), request("b", 4, 12), request("c", 4, 12)]
    for arrival in arrivals:
        sim.add(arrival)
    run_until(lambda: len(sim.scheduler.running) == 1, sim.step, "b and c have both given way to a")
    waiting = [r.request_id for r in sim.scheduler.waiting]
    assert waiting == ["b", "c"], (
        f"b and c have both given way to a, and the queue is {waiting}; expected ['b', 'c']. c, the last, "
        "goes first, and each is put before the others: so the order of arrival is kept."
    )
    finish(sim, [])


@pytest.mark.points(1)
def test_no_more_give_way_than_must():
    sim = simulation(Scheduler, toy_config(num_blocks=6, block_size=4))
    arrivals = [request("a", 8, 3), request("b", 1, 2), request("c", 1, 2), request("d", 1, 2)]
    _, step = until_somebody_gives_way(sim, arrivals)
    assert step.preempted_req_ids == {"d"}, (
        "a needs one block, and d's is enough; b and c need none in this step. Yet "
        f"{sorted(step.preempted_req_ids)} gave way. Try again after each: blocks that are taken must be "
        "computed again."
    )
    sim.update()
    finish(sim, [])


@pytest.mark.points(1)
def test_by_priority_the_least_urgent_gives_way():
    sim = simulation(Scheduler, toy_config(num_blocks=7, block_size=4, policy="priority"))
    _, step = until_somebody_gives_way(sim, [request("a", 8, priority=1), request("b", 8, priority=0)])
    assert step.preempted_req_ids == {"a"}, (
        f"Expected a (priority 1; b has 0 and is more urgent) to give way, but {step.preempted_req_ids} did. "
        "self.running is sorted, best first, so the answer is the same as without priorities: the last."
    )
    sim.update()
    finish(sim, [])


@pytest.mark.points(1)
def test_no_step_computes_a_request_that_gave_way_in_it():
    for policy in ("fcfs", "priority"):
        config = toy_config(num_blocks=13, block_size=2, policy=policy, max_num_seqs=8)
        sim = simulation(Scheduler, config)
        arrivals = [Arrival(f"r{i}", float(i) / 1000, make_prompt(3, i), 12, -i) for i in range(8)]
        finish(sim, arrivals)
        assert sim.num_preemptions > 0, (
            "8 requests that need 8 blocks each in a pool of 12: somebody must give way."
        )
        for step in sim.steps:
            both = step.preempted_req_ids & set(step.num_scheduled_tokens)
            assert not both, (
                f"{both} are computed and preempted in one step: workers would write into blocks that are no "
                "longer theirs. Invariant: a plan only grows; only who is not in it yet gives way."
            )


@pytest.mark.points(2)
def test_a_token_in_flight_is_not_lost_when_its_request_gives_way():
    sim = simulation(async_over(Scheduler), toy_config(num_blocks=7, block_size=4), steps_ahead=1)
    b = None
    for arrival in (request("a", 8), request("b", 8)):
        b = sim.add(arrival)
    for _ in range(100):
        sim.step()
        if b.num_preemptions:
            break
    assert b.num_preemptions, "b never gave way, though two growing requests share 6 blocks."
    known = b.num_tokens + b.num_output_placeholders
    assert b.num_tokens_at_preemption == known, (
        f"b has {b.num_tokens} tokens and {b.num_output_placeholders} in flight, so {known} when it gave "
        f"way; num_tokens_at_preemption is {b.num_tokens_at_preemption}. It tells whether b has got on since."
    )
    finish(sim, [])
    for arrival in (request("a", 8), request("b", 8)):
        check_tokens(sim, arrival)


@pytest.mark.points(1)
def test_who_has_nothing_to_compute_does_not_hold_up_those_behind():
    sim = simulation(async_over(Scheduler), toy_config(), steps_ahead=1)
    sim.add(request("a", 4, max_tokens=1))
    sim.add(request("b", 4, max_tokens=5))
    sim.schedule()
    second = dict(sim.schedule().num_scheduled_tokens)
    assert second == {"b": 1}, (
        "The token that a has in flight is its last, so it has nothing to compute and b has one token: "
        f"expected {{'b': 1}}, got {second}. 0 tokens means 'not in this step', not 'stop here'."
    )
    finish(sim, [])


@pytest.mark.points(1)
@given(
    num_blocks=st.integers(5, 14),
    block_size=st.sampled_from([1, 2, 4]),
    lengths=st.lists(st.integers(1, 12), min_size=2, max_size=5),
    steps_ahead=st.integers(0, 1),
    policy=st.sampled_from(["fcfs", "priority"]),
)
def test_tokens_do_not_depend_on_who_gave_way(num_blocks, block_size, lengths, steps_ahead, policy):
    config = toy_config(
        num_blocks=num_blocks, block_size=block_size, policy=policy, enable_prefix_caching=block_size == 2
    )
    scheduler_class = async_over(Scheduler) if steps_ahead else Scheduler
    sim = simulation(scheduler_class, config, steps_ahead=steps_ahead)
    fit = sim.scheduler.num_tokens_that_fit
    arrivals = [
        Arrival(f"r{i}", i / 1000, make_prompt(min(length, fit), i), 9, i % 2)
        for i, length in enumerate(lengths)
    ]
    finish(sim, arrivals)
