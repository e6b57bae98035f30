"""The numbers on Day 3's pages are those that the scheduler gives: every table is computed again."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import mean

from learnvllm.architecture.platforms import CpuPlatform
from learnvllm.scheduling.request_queue import FCFSRequestQueue
from learnvllm.scheduling.scheduler import Scheduler
from learnvllm.scheduling.simulator import Arrival, Simulation, Times, chat_and_documents, nearest_rank
from learnvllm.scheduling.toy import make_prompt, toy_config

PAGES = Path(__file__).resolve().parents[2] / "docs/topics/scheduling"
CONCEPTS = (PAGES / "concepts.md").read_text("utf-8")
EXERCISES = (PAGES / "exercises.md").read_text("utf-8")


def rows(name: str) -> list[list[str]]:
    """The cells of the table below `<!-- numbers: name -->`, without its head."""
    lines = CONCEPTS.split(f"<!-- numbers: {name} -->\n")[1].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_seven_steps() -> None:
    sim = Simulation(toy_config(num_blocks=41, block_size=4, max_num_batched_tokens=16))
    seen = []

    def step() -> None:
        tokens = sim.schedule().num_scheduled_tokens
        free = sim.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        seen.append((tokens.get("a"), tokens.get("b"), free))
        sim.update()

    sim.add(Arrival("a", 0.0, make_prompt(6, 1), 5))
    step()
    step()
    sim.add(Arrival("b", 0.0, make_prompt(37, 2), 3))
    while sim.scheduler.has_unfinished_requests():
        step()
    shown = [(6, None, 38), (1, None, 38), (1, 15, 34), (1, 15, 29), (1, 7, 27), (None, 1, 30), (None, 1, 30)]
    assert seen == shown
    picture = CONCEPTS.split(" step   a                        b")[1].split("```")[0].splitlines()[1:8]
    assert [int(line.split("b", 1)[0].split()[0]) for line in picture] == list(range(7))
    assert all(f" {free}" in line for line, (_, _, free) in zip(picture, shown))


def test_the_preemption() -> None:
    sim = Simulation(toy_config(num_blocks=7, block_size=4, enable_prefix_caching=True))
    for name in "ab":
        sim.add(Arrival(name, 0.0, make_prompt(8, ord(name)), 6))
    sim.run()
    tokens = [dict(step.num_scheduled_tokens) for step in sim.steps if step.num_scheduled_tokens]
    assert tokens == [{"a": 8, "b": 8}, *[{"a": 1, "b": 1}] * 4, {"a": 1}, {"b": 5}]
    assert sim.steps[5].preempted_req_ids == {"b"}
    assert sim.steps[6].scheduled_new_reqs[0].block_ids == ([3, 4, 6, 5],)


def test_the_pauses() -> None:
    for budget, share, pause, first_token in rows("pauses"):
        config = toy_config(
            max_num_batched_tokens=int(budget), prefill_tokens_per_decode=0 if share == "none" else int(share)
        )
        chats = [Arrival(f"c{i}", 0.0, make_prompt(20, i), 60) for i in range(8)]
        sim = Simulation(config).run([*chats, Arrival("document", 0.5, make_prompt(2000, 9), 4)])
        assert pause == f"{max(sim.times[c.request_id].longest_pause for c in chats):.2f} s"
        assert first_token == f"{sim.times['document'].time_to_first_token:.2f} s"
    default = CpuPlatform.prefill_tokens_per_decode_default
    assert f"lets the platform say: {default} on a CPU" in CONCEPTS
    assert ["512", str(default)] in [row[:2] for row in rows("pauses")], "a row for the default"


def test_the_watermarks() -> None:
    for watermark, *numbers in rows("watermark"):
        config = toy_config(
            num_blocks=101,
            block_size=4,
            max_num_batched_tokens=64,
            max_num_seqs=64,
            watermark=float(watermark.split()[0]),
        )
        rng = random.Random(1)
        sim = Simulation(config).run(
            Arrival(f"r{i}", 0.0, make_prompt(rng.randint(4, 60), i), rng.randint(8, 80)) for i in range(40)
        )
        measured = [sim.num_preemptions, sim.num_computed_tokens, len(sim.steps)]
        assert numbers == [f"{number:,}" for number in measured]


def test_the_guard() -> None:
    measured = []
    for guard in (False, True):
        config = toy_config(num_blocks=13, block_size=4, max_num_batched_tokens=17)
        sim = Simulation(config)
        sim.scheduler.progress_guard = guard
        sim.run([Arrival("a", 0.0, make_prompt(8, 1), 36), Arrival("b", 0.0, make_prompt(40, 2), 3)])
        measured.append((sim.num_preemptions, sim.num_computed_tokens, len(sim.steps)))
    assert measured == [(11, 302, 42), (1, 110, 42)]
    assert (
        "11 preemptions and 302 tokens computed without the guard, 1 and 110 with\nit, the same 42"
        in CONCEPTS
    )


def test_the_policies() -> None:
    for policy, *numbers in rows("policies"):
        times: list[tuple[bool, Times]] = []
        for seed in range(4):
            traffic = chat_and_documents(seed=seed)
            config = toy_config(max_num_seqs=16, max_num_batched_tokens=256, policy=policy)
            sim = Simulation(config).run(traffic)
            times += [(len(arrival.prompt) >= 800, sim.times[arrival.request_id]) for arrival in traffic]
        every, chats, documents = (
            [time.waited for is_document, time in times if is_document in kinds]
            for kinds in ((False, True), (False,), (True,))
        )
        measured = [mean(every), nearest_rank(every, 50), nearest_rank(every, 99), max(every)]
        assert numbers == [f"{value:.2f}" for value in [*measured, mean(chats), mean(documents)]]
        assert f"{mean(every):.2f} s" in EXERCISES


class ForgetsPromises(Scheduler):
    """The scheduler of the exercise `thrashing`: who runs promises nothing."""

    def _schedule_running(self, plan) -> None:  # type: ignore[no-untyped-def]
        super()._schedule_running(plan)
        plan.promised_blocks = 0


def test_the_thrashing() -> None:
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
    computed = [
        Simulation(config, make_scheduler=scheduler).run(arrivals).num_computed_tokens
        for scheduler in (ForgetsPromises, Scheduler)
    ]
    assert computed == [4540, 2271]
    assert "4,540 tokens where 2,271" in EXERCISES


def test_a_queue_may_be_given_in_place_of_the_policys() -> None:
    sim = Simulation(toy_config(policy="shortest"), queue=FCFSRequestQueue())
    assert isinstance(sim.scheduler.waiting, FCFSRequestQueue)
