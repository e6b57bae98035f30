"""Grader of one_step_ahead: with a step in flight nothing is computed twice, lost, or asked for too often."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.day03 import CONCEPTS, check_tokens, finish, simulation

from learnvllm.architecture.request import RequestStatus
from learnvllm.scheduling.simulator import Arrival
from learnvllm.scheduling.toy import make_prompt, toy_config
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
AsyncScheduler = subject.AsyncScheduler


def ahead(config, **options):
    return simulation(AsyncScheduler, config, steps_ahead=1, **options)


def steps_of(sim):
    """Tokens per request and step, up to the last step that computes something."""
    steps = [dict(step.num_scheduled_tokens) for step in sim.steps]
    while steps and not steps[-1]:
        steps.pop()
    return steps


@pytest.mark.points(2)
def test_a_step_is_decided_before_the_token_of_the_one_before_is_known():
    sim = ahead(toy_config())
    request = sim.add(Arrival("a", 0.0, make_prompt(5), 4))
    seen = []
    for _ in range(2):
        step = sim.schedule()
        seen.append((dict(step.num_scheduled_tokens), request.num_tokens, request.num_output_placeholders))
    expected = [({"a": 5}, 5, 1), ({"a": 1}, 5, 2)]
    assert seen == expected, (
        "Two steps are scheduled before any token is there; per step (scheduled, known tokens, tokens in "
        "flight).\n"
        f"Expected {expected}\nGot      {seen}\nA step that computes the last known token samples one: from "
        f"then on it is in flight, and counts as known. Read {CONCEPTS}#one-step-ahead."
    )
    sim.update()
    assert (request.num_tokens, request.num_output_placeholders) == (6, 1), (
        "The first token has arrived, one is still in flight: expected 6 known and 1 in flight, got "
        f"{request.num_tokens} and {request.num_output_placeholders}."
    )
    finish(sim, [])


@pytest.mark.points(2)
def test_a_chunk_that_does_not_end_the_prompt_puts_nothing_in_flight():
    sim = ahead(toy_config(max_num_batched_tokens=8))
    request = sim.add(Arrival("a", 0.0, make_prompt(20), 2))
    in_flight = []
    for _ in range(3):
        sim.schedule()
        in_flight.append(request.num_output_placeholders)
        sim.update()
    assert in_flight == [0, 0, 1], (
        "A prompt of 20 in chunks of 8, 8 and 4: only the third samples. In flight after each: expected [0, "
        f"0, 1], got {in_flight}."
    )
    finish(sim, [])


@pytest.mark.points(2)
@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_no_step_is_spent_on_a_request_whose_last_token_is_in_flight(max_tokens):
    sim = ahead(toy_config())
    finish(sim, [Arrival("a", 0.0, make_prompt(6), max_tokens)])
    expected = [{"a": 6}] + [{"a": 1}] * (max_tokens - 1)
    assert steps_of(sim) == expected, (
        f"max_tokens={max_tokens}: the prompt's step brings the first token and each step after it one more, "
        f"so {max_tokens} steps bring all, without a pause. Expected {expected}, got {steps_of(sim)}."
    )


@pytest.mark.points(1)
def test_the_longest_length_is_not_overshot_either():
    sim = ahead(toy_config(max_model_len=10))
    finish(sim, [Arrival("a", 0.0, make_prompt(6), 50)])
    expected = [{"a": 6}, {"a": 1}, {"a": 1}, {"a": 1}]
    assert steps_of(sim) == expected, (
        f"6 prompt tokens and max_model_len=10 leave room for 4 tokens, so 4 steps: expected {expected}, got "
        f"{steps_of(sim)}."
    )


@pytest.mark.points(2)
def test_a_preempted_requests_token_arrives_once():
    sim = ahead(toy_config(num_blocks=7, block_size=4))
    arrivals = [Arrival(name, 0.0, make_prompt(8, seed), 10) for name, seed in (("a", 1), ("b", 2))]
    requests = [sim.add(arrival) for arrival in arrivals]
    for _ in range(200):
        if not sim.is_busy:
            break
        sim.step()
        for request in requests:
            assert request.num_output_placeholders >= 0, (
                f"{request.request_id} expects {request.num_output_placeholders} tokens. A token arrived "
                "that nobody had counted: vLLM #41190."
            )
    finish(sim, [])
    assert sim.num_preemptions > 0, (
        "Requests that need more blocks than there are must give way now and then; here nobody did."
    )
    for arrival in arrivals:
        check_tokens(sim, arrival)


@pytest.mark.points(1)
def test_blocks_filled_by_tokens_in_flight_can_be_found_later():
    sim = ahead(toy_config(block_size=4, enable_prefix_caching=True))
    prompt = make_prompt(4)
    finish(sim, [Arrival("a", 0.0, prompt, 13)])
    conversation = [*prompt, *sim.tokens["a"]]
    request = sim.add(Arrival("b", sim.now, [*conversation, 1], 1))
    sim.step()
    assert request.num_cached_tokens == 16, (
        "a has filled 4 blocks of 4 (4 prompt tokens, 12 of its 13 output tokens); b goes on from there and "
        f"found {request.num_cached_tokens} tokens in the cache, not 16. A block that a token in flight "
        "filled had no hash when it was scheduled: it must be cached when the token arrives."
    )
    finish(sim, [])
    sim = ahead(toy_config(block_size=4, enable_prefix_caching=True))
    first = sim.add(Arrival("a", 0.0, make_prompt(3), 5))
    sim.schedule()
    sim.update()  # nothing else is in flight: the fourth token is known, and no step has computed it
    second = sim.add(Arrival("b", 0.0, [*first.all_token_ids, 1], 1))
    _, found = sim.scheduler.kv_cache_manager.get_computed_blocks(second)
    assert found == 0, (
        f"a knows 4 tokens and has computed {first.num_computed_tokens}; its block of 4 can be found already "
        f"({found} tokens). Whoever finds it reads KV that nobody has written: what is computed counts, not "
        "what is known."
    )
    finish(sim, [])


@pytest.mark.points(1)
def test_who_is_aborted_in_flight_gets_nothing_any_more():
    sim = ahead(toy_config(block_size=2, enable_prefix_caching=True))
    sim.add(Arrival("a", 0.0, make_prompt(5), 9))
    sim.add(Arrival("b", 0.0, make_prompt(5, 1), 3))
    sim.schedule()
    sim.schedule()
    sim.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    finish(sim, [])
    assert sim.tokens["a"] == [], (
        f"a was aborted before its first token arrived, and was sent {sim.tokens['a']}."
    )


@pytest.mark.points(2)
@given(
    num_blocks=st.integers(5, 30),
    block_size=st.sampled_from([1, 2, 4]),
    budget=st.sampled_from([2, 5, 40]),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    caching=st.booleans(),
)
def test_tokens_are_those_of_a_scheduler_that_waits(num_blocks, block_size, budget, lengths, caching):
    config = toy_config(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_batched_tokens=budget,
        enable_prefix_caching=caching,
    )
    sim = ahead(config)
    fit = sim.scheduler.num_tokens_that_fit
    arrivals = [Arrival(f"r{i}", i / 100, make_prompt(min(n, fit), i % 3), 7) for i, n in enumerate(lengths)]
    finish(sim, arrivals)
