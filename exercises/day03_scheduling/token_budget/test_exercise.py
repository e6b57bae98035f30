"""Grader of token_budget: every step stays within its budget, and cutting changes no token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.day03 import CONCEPTS, async_over, check_tokens, finish, run_until, simulation

from learnvllm.scheduling.simulator import Arrival
from learnvllm.scheduling.toy import make_prompt, toy_config
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
Scheduler = subject.Scheduler


def request(name, length, max_tokens=4, time=0.0):
    return Arrival(name, time, make_prompt(length, ord(name[0])), max_tokens)


def run(config, arrivals, **options):
    """Tokens computed per request, step by step."""
    return [
        dict(step.num_scheduled_tokens)
        for step in finish(simulation(Scheduler, config, **options), arrivals).steps
    ]


def expect(got, expected, rule):
    assert got == expected, (
        f"Expected these tokens per step: {expected}\n"
        f"Got:                            {got}\n"
        f"Rule: {rule}\nRead {CONCEPTS}#one-rule."
    )


@pytest.mark.points(2)
def test_a_prompt_longer_than_the_budget_comes_in_chunks():
    steps = run(toy_config(max_num_batched_tokens=8), [request("a", 20, max_tokens=2)])
    expect(
        [step.get("a") for step in steps[:4]],
        [8, 8, 4, 1],
        "as much as the budget leaves (8, 8), then the rest (4); then one token, the one sampled last.",
    )


@pytest.mark.points(2)
def test_what_those_who_run_leave_goes_to_who_comes_next():
    sim = simulation(Scheduler, toy_config(max_num_batched_tokens=10))
    arrivals = [request("a", 4, 9), request("b", 4, 9), request("c", 14, 2)]
    for arrival in arrivals:
        sim.add(arrival)
    steps = [dict(sim.schedule().num_scheduled_tokens)]
    for _ in range(2):
        sim.update()
        steps.append(dict(sim.schedule().num_scheduled_tokens))
    expect(
        steps,
        [{"a": 4, "b": 4, "c": 2}, {"a": 1, "b": 1, "c": 8}, {"a": 1, "b": 1, "c": 4}],
        "a step takes from each request in turn what it still has to compute, until 10 tokens are full.",
    )
    sim.update()
    finish(sim, [])


@pytest.mark.points(2)
def test_what_the_prefix_cache_holds_is_not_computed_again():
    config = toy_config(block_size=4, enable_prefix_caching=True)
    sim = simulation(Scheduler, config)
    prompt = make_prompt(14)
    finish(sim, [Arrival("a", 0.0, prompt, 2)])
    sim.add(Arrival("b", sim.now, prompt, 2))
    got = sim.schedule().num_scheduled_tokens
    expect(
        got,
        {"b": 2},
        "12 of the 14 tokens of b lie in three full blocks that a has left in the cache; a hit counts as "
        "computed, though num_computed_tokens is still 0 when the question is asked.",
    )
    finish(sim, [])


@pytest.mark.points(2)
def test_without_chunked_prefill_a_prompt_is_computed_whole_or_waits():
    config = toy_config(
        max_num_batched_tokens=64,
        max_model_len=64,
        enable_chunked_prefill=False,
        long_prefill_token_threshold=8,
        prefill_tokens_per_decode=None,
    )
    steps = run(config, [request("a", 40), request("b", 30)])
    expect(
        steps[:2],
        [{"a": 40}, {"a": 1, "b": 30}],
        "enable_chunked_prefill=False: all of a prompt or none of it. 40 + 30 exceeds 64, so b waits a "
        "step; then neither the threshold nor the share for prompts may cut it.",
    )


@pytest.mark.points(1)
def test_a_threshold_bounds_what_one_prompt_takes():
    config = toy_config(max_num_batched_tokens=10, long_prefill_token_threshold=6)
    steps = run(config, [request("a", 20, 1), request("b", 20, 1)])
    expect(
        steps[0],
        {"a": 6, "b": 4},
        "at most long_prefill_token_threshold of one prompt, and never above the budget.",
    )
    steps = run(toy_config(max_num_batched_tokens=10, long_prefill_token_threshold=6), [request("a", 7, 1)])
    expect([step.get("a") for step in steps[:2]], [6, 1], "7 is above the threshold of 6, if only by one.")
    config = toy_config(max_num_batched_tokens=8, long_prefill_token_threshold=100)
    steps = run(config, [request("a", 20, 1)])
    expect(
        steps[0],
        {"a": 8},
        "a threshold above the budget leaves the budget. (A chunk size above it crashed sglang-jax, #1551.)",
    )


@pytest.mark.points(3)
def test_beside_decodes_prompts_get_a_share():
    config = toy_config(max_num_batched_tokens=200, prefill_tokens_per_decode=10)
    sim = simulation(Scheduler, config)
    arrivals = [request(name, 4, 30) for name in "abc"] + [request("d", 90, 2), request("e", 50, 2)]
    for arrival in arrivals[:3]:
        sim.add(arrival)
    sim.step()
    for arrival in arrivals[3:]:
        sim.add(arrival)
    steps = []
    for _ in range(4):
        steps.append(dict(sim.schedule().num_scheduled_tokens))
        sim.update()
    decodes = {"a": 1, "b": 1, "c": 1}
    expect(
        steps,
        [{**decodes, "d": 30}] * 3 + [{**decodes, "d": 1, "e": 40}],
        "three decode, so prompts may take 3 * 10 tokens beside them; then d decodes too, and e may take 4 "
        "* 10. Who computes a single token decodes and is not cut by the share.",
    )
    finish(sim, [])


@pytest.mark.points(2)
def test_the_share_has_a_floor_and_binds_only_while_somebody_decodes():
    config = toy_config(max_num_batched_tokens=64, prefill_tokens_per_decode=1)
    sim = simulation(Scheduler, config)
    arrivals = [request("a", 100, 9), request("b", 100, 1), request("c", 50, 1)]
    steps = []
    for arrival in arrivals[:2]:
        sim.add(arrival)
    for _ in range(3):
        steps.append(dict(sim.schedule().num_scheduled_tokens))
        sim.update()
    floor = subject.MIN_PREFILL_CHUNK
    expect(
        steps,
        [{"a": 64}, {"a": 36, "b": 28}, {"a": 1, "b": floor}],
        "a and b are prompts at first, and nobody is held up: the whole budget is theirs. Then a decodes "
        f"alone: 1 * 1 token would take b for ever, so it gets MIN_PREFILL_CHUNK = {floor}.",
    )
    finish(sim, [])
    config = toy_config(max_num_batched_tokens=64, prefill_tokens_per_decode=0)
    steps = run(config, [request("a", 4, 9), request("b", 200, 1)])
    expect(
        steps[1], {"a": 1, "b": 63}, "prefill_tokens_per_decode=0 means no share: b takes all that a leaves."
    )


@pytest.mark.points(1)
def test_a_prompt_that_uses_up_the_share_leaves_decodes_their_token():
    config = toy_config(
        max_num_batched_tokens=40, long_prefill_token_threshold=30, prefill_tokens_per_decode=1
    )
    sim = simulation(Scheduler, config)
    sim.add(request("d", 100, 1))
    sim.add(request("a", 4, 9))
    steps = []
    for _ in range(2):
        steps.append(dict(sim.schedule().num_scheduled_tokens))
        sim.update()
    expect(
        steps,
        [{"d": 30, "a": 4}, {"d": 16, "a": 1}],
        "in the second step a decodes behind d, whose prompt takes the whole share of 16. The share bounds "
        "prompts; a's single token is served beside it.",
    )
    finish(sim, [])
    config = toy_config(max_num_batched_tokens=16, policy="priority", prefill_tokens_per_decode=2)
    sim = simulation(Scheduler, config)
    decodes = [Arrival(f"d{i}", 0.0, make_prompt(2, i), 30, priority=5) for i in range(6)]
    for arrival in decodes:
        sim.add(arrival)
    sim.step()
    sim.add(Arrival("p", 0.0, make_prompt(40, 9), 2, priority=0))
    sim.step()
    expect(
        dict(sim.schedule().num_scheduled_tokens),
        {"p": 10, **{d.request_id: 1 for d in decodes}},
        "p is more important and served first, and its share would be 16, the whole budget. Six decode, and "
        "each of them needs a token: 10 are left for p.",
    )
    sim.update()
    finish(sim, [])
    sim = simulation(Scheduler, toy_config(max_num_batched_tokens=3, prefill_tokens_per_decode=10))
    for name in "abc":
        sim.add(request(name, 1, 9))
    sim.step()
    expect(
        sim.scheduler._get_prefill_budget(),
        1,
        "three decode and need the whole budget of 3; one is left for prompts all the same, or a prompt that "
        "is served before them would never get on.",
    )
    finish(sim, [])


@pytest.mark.points(1)
def test_a_request_that_comes_back_computes_its_output_too():
    sim = simulation(Scheduler, toy_config(num_blocks=7, block_size=4))
    sim.add(request("a", 8, 10))
    b = sim.add(request("b", 8, 10))
    run_until(lambda: b.num_preemptions > 0, sim.step, "b gives way to a")
    run_until(lambda: "b" in sim.schedule().num_scheduled_tokens, sim.update, "b returns")
    got = sim.steps[-1].num_scheduled_tokens["b"]
    assert got == b.num_tokens, (
        f"b lost its KV and returns with {b.num_tokens} known tokens, 8 of its prompt and {b.num_tokens - 8} "
        f"that it has produced; the step computes {got} of them. The rule asks what is known and not "
        "computed, never what is prompt."
    )
    sim.update()
    finish(sim, [])


@pytest.mark.points(1)
def test_a_token_in_flight_is_known_too():
    config = toy_config(max_num_batched_tokens=8)
    sim = simulation(async_over(Scheduler), config, steps_ahead=1)
    sim.add(request("a", 4, 3))
    first, second = (dict(sim.schedule().num_scheduled_tokens) for _ in range(2))
    expect(
        [first, second],
        [{"a": 4}, {"a": 1}],
        "with async scheduling step 1 is decided while step 0 runs: the token that step 0 will sample "
        "counts, though only num_output_placeholders knows of it.",
    )
    finish(sim, [])


@pytest.mark.points(1)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    budget=st.integers(1, 50),
    threshold=st.sampled_from([0, 2, 7]),
    per_decode=st.sampled_from([0, 1, 9]),
)
def test_no_step_exceeds_its_budget_and_no_cut_changes_a_token(lengths, budget, threshold, per_decode):
    config = toy_config(
        num_blocks=300,
        block_size=4,
        max_num_batched_tokens=budget,
        long_prefill_token_threshold=threshold,
        prefill_tokens_per_decode=per_decode,
    )
    arrivals = [Arrival(f"r{i}", 0.0, make_prompt(length, i), 3) for i, length in enumerate(lengths)]
    sim = simulation(Scheduler, config)
    for arrival in arrivals:
        sim.add(arrival)
    for _ in range(1000):
        if not sim.is_busy:
            break
        step = sim.step()
        total = step.total_num_scheduled_tokens
        assert total <= budget, (
            f"A step computes {dict(step.num_scheduled_tokens)}, {total} tokens; "
            f"max_num_batched_tokens={budget}. Prompts of {lengths}. Invariant: no step exceeds its budget. "
            f"Read {CONCEPTS}#a-share-for-prompts."
        )
        assert total or not sim.scheduler.has_unfinished_requests(), (
            f"A step computes nothing though requests are unfinished (prompts of {lengths}, budget {budget}, "
            f"threshold {threshold}, prefill_tokens_per_decode {per_decode}). Invariant: who runs has a "
            "token to compute, and somebody gets on in every step."
        )
    finish(sim, [])
    for arrival in arrivals:
        check_tokens(sim, arrival)
