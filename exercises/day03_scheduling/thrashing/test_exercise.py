"""Grader of thrashing: who is admitted gets on, and nobody computes the same prompt in circles."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.day03 import CONCEPTS, finish, preemptions_without_progress, simulation

from learnvllm.scheduling.simulator import Arrival
from learnvllm.scheduling.toy import make_prompt, toy_config
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
Scheduler = subject.Scheduler


def story(steps):
    """Steps in words, for whoever has to find out what happened."""
    rows = []
    for step in steps:
        gone = f", gave way: {sorted(step.preempted_req_ids)}" if step.preempted_req_ids else ""
        rows.append(f"  step {step.step_id}: {dict(step.num_scheduled_tokens)}{gone}")
    return "\n".join(rows)


def run(config, arrivals):
    return finish(simulation(Scheduler, config), arrivals)


@pytest.mark.points(3)
def test_two_documents_that_fit_only_one_after_the_other():
    config = toy_config(
        num_blocks=21, block_size=4, max_num_batched_tokens=16, long_prefill_token_threshold=4
    )
    documents = [Arrival(name, 0.0, make_prompt(60, seed), 3) for name, seed in (("a", 1), ("b", 2))]
    sim = run(config, documents)
    needed = 2 * (60 + 3 - 1)
    assert (sim.num_preemptions, sim.num_computed_tokens) == (0, needed), (
        "Two documents of 60 tokens in 20 blocks of 4, at most 4 tokens of each per step: one fits, two do "
        f"not, so b has to wait. There were {sim.num_preemptions} preemptions, and {sim.num_computed_tokens} "
        f"tokens were computed where {needed} do. The beginning:\n{story(sim.steps[:12])}\nRead "
        f"{CONCEPTS}#preemption."
    )


@pytest.mark.points(1)
def test_a_prompt_is_admitted_only_if_all_of_it_fits():
    config = toy_config(num_blocks=13, block_size=4, max_num_batched_tokens=17)
    sim = simulation(Scheduler, config)
    sim.add(Arrival("a", 0.0, make_prompt(8, 1), 36))
    sim.add(Arrival("b", 0.0, make_prompt(40, 2), 3))
    circles = preemptions_without_progress(sim)
    assert sim.num_preemptions <= 1, (
        f"a decodes, and b's 40 tokens need 10 of the 12 blocks. b gave way {sim.num_preemptions} times, "
        f"{circles['b']} of them without a new token: it takes a chunk's worth, lacks the rest, and begins "
        "again. A first chunk that fits is not enough."
    )


@pytest.mark.points(2)
def test_who_gave_way_waits_until_the_others_have_room_to_grow():
    config = toy_config(num_blocks=11, block_size=4, max_num_batched_tokens=4)
    sim = simulation(Scheduler, config)
    sim.add(Arrival("a", 0.0, make_prompt(21, 1), 15))
    sim.add(Arrival("b", 0.0, make_prompt(1, 2), 5))
    c = sim.add(Arrival("c", 0.0, make_prompt(10, 3), 1))
    circles = preemptions_without_progress(sim)
    assert not +circles, (
        f"c gave way {c.num_preemptions} times, {circles['c']} of them before it had gained a token: it came "
        "back into blocks that a and b were about to need. Who was preempted leaves a block to each of "
        "those who run."
    )


@pytest.mark.points(1)
def test_the_watermark_binds_admission_and_not_an_idle_engine():
    config = toy_config(num_blocks=11, block_size=4, watermark=0.3)
    sim = simulation(Scheduler, config)
    sim.add(Arrival("a", 0.0, make_prompt(16, 1), 20))
    sim.step()
    sim.add(Arrival("b", 0.0, make_prompt(16, 2), 4))
    assert "b" not in sim.schedule().num_scheduled_tokens, (
        "b needs 4 of the 6 free blocks; a watermark of 0.3 * 11 = 3 blocks must stay, so that a can grow."
    )
    sim.update()
    finish(sim, [])
    assert sim.num_preemptions == 0, (
        "With those 3 blocks left alone a never runs out, and nobody gives way: expected 0 preemptions, got "
        f"{sim.num_preemptions}."
    )
    run(toy_config(num_blocks=11, block_size=4, watermark=0.9), [Arrival("a", 0.0, make_prompt(40), 1)])


@pytest.mark.points(1)
def test_nobody_overtakes_the_head_of_the_queue():
    sim = simulation(Scheduler, toy_config(num_blocks=11, block_size=4))
    sim.add(Arrival("a", 0.0, make_prompt(24, 1), 2))
    sim.step()
    sim.add(Arrival("big", 0.0, make_prompt(24, 2), 4))
    sim.add(Arrival("small", 0.0, make_prompt(2, 3), 4))
    got = dict(sim.schedule().num_scheduled_tokens)
    assert got == {"a": 1}, (
        f"big does not fit beside a, and small is behind it: expected {{'a': 1}}, got {got}. If the small "
        "may overtake, a steady stream of them keeps the big one out for ever."
    )
    sim.update()
    finish(sim, [])


@pytest.mark.points(1)
def test_a_step_that_took_blocks_from_somebody_admits_nobody():
    config = toy_config(num_blocks=7, block_size=4, max_num_seqs=2, policy="priority")
    sim = simulation(Scheduler, config)
    for name, length, priority in (("a", 8, 0), ("z", 8, 5)):
        sim.add(Arrival(name, 0.0, make_prompt(length, ord(name)), 10, priority))
    sim.step()
    sim.add(Arrival("b", 0.1, make_prompt(2, 9), 4, 1))
    finish(sim, [])
    for step in sim.steps:
        admitted = {new.req_id for new in step.scheduled_new_reqs}
        assert not (step.preempted_req_ids and admitted), (
            f"In step {step.step_id} {sorted(step.preempted_req_ids)} gave way and {sorted(admitted)} came "
            "in: blocks were taken from one to be handed to another. Those who run may need the rest in the "
            "next step."
        )


@pytest.mark.points(3)
def test_a_busy_minute_does_not_compute_everything_twice():
    rng = random.Random(0)
    arrivals = []
    for i in range(40):
        length = rng.randint(120, 180) if i % 4 == 0 else rng.randint(4, 20)
        arrivals.append(Arrival(f"r{i}", i * 0.05, make_prompt(length, i), rng.randint(4, 16)))
    config = toy_config(
        num_blocks=65,
        block_size=4,
        max_num_batched_tokens=32,
        max_num_seqs=16,
        long_prefill_token_threshold=4,
    )
    sim = run(config, arrivals)
    needed = sum(len(a.prompt) + a.max_tokens - 1 for a in arrivals)
    assert sim.num_computed_tokens <= 1.1 * needed, (
        f"40 requests, every fourth a long document: {needed} tokens have to be computed, and "
        f"{sim.num_computed_tokens} were, with {sim.num_preemptions} preemptions. Where it happens first:\n"
        f"{story(around_the_first_preemption(sim.steps))}"
    )


def around_the_first_preemption(steps):
    first = next((i for i, step in enumerate(steps) if step.preempted_req_ids), len(steps))
    return steps[max(first - 4, 0) : first + 4]


@pytest.mark.points(2)
@given(seed=st.integers(0, 300))
def test_nobody_gives_way_twice_without_a_new_token(seed):
    rng = random.Random(seed)
    config = toy_config(
        num_blocks=rng.randint(16, 50),
        block_size=rng.choice([1, 2, 4]),
        max_num_batched_tokens=rng.choice([2, 3, 5, 8, 16]),
        max_num_seqs=rng.choice([2, 4, 8]),
        policy=rng.choice(["fcfs", "priority"]),
    )
    sim = simulation(Scheduler, config)
    for i in range(8):
        length = min(rng.randint(1, 50), sim.scheduler.num_tokens_that_fit)
        sim.add(Arrival(f"r{i}", float(i), make_prompt(length, i), rng.randint(1, 20), rng.randint(0, 2)))
    circles = preemptions_without_progress(sim)
    worst = max(circles.values(), default=0)
    assert worst <= 1, (
        f"Seed {seed}: {circles.most_common(1)[0][0]} gave way {worst} times without a new token in between. "
        "Once can happen (nobody knows how long an answer gets); more is a circle. The "
        f"end:\n{story(sim.steps[-12:])}"
    )
