"""The simulator joins scheduler, device and clock; and what the shortest-first policy does to waiting."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnvllm.architecture.tracing import RecordingTracer
from learnvllm.scheduling.async_scheduler import AsyncScheduler
from learnvllm.scheduling.simulator import Arrival, Simulation, StepCost, chat_and_documents, nearest_rank
from learnvllm.scheduling.toy import make_prompt, predict, toy_config


def waits(policy: str, seed: int) -> list[float]:
    config = toy_config(max_num_seqs=16, max_num_batched_tokens=256, policy=policy)
    return [times.waited for times in Simulation(config).run(chat_and_documents(seed=seed)).times.values()]


def test_prompts_of_fifty_seeds_share_no_block() -> None:
    """Or the prefix cache would find one request's prompt in another's."""
    assert len({make_prompt(1, seed)[0] for seed in range(7, 57)}) == 50


class TestSimulation:
    def test_the_clock_advances_by_what_a_step_costs(self) -> None:
        sim = Simulation(toy_config(max_num_batched_tokens=8), cost=StepCost(per_step=1.0, per_token=0.25))
        sim.run([Arrival("a", 2.0, make_prompt(12), 2)])
        times = sim.times["a"]
        assert (times.scheduled, times.tokens) == (2.0, [7.0, 8.25])  # 8 tokens, 4 tokens, one
        assert (times.waited, times.time_to_first_token, times.longest_pause) == (0.0, 5.0, 1.25)

    def test_who_comes_during_a_step_waits_for_its_end(self) -> None:
        sim = Simulation(toy_config(), cost=StepCost(per_step=1.0, per_token=0.0))
        sim.run([Arrival("a", 0.0, make_prompt(4), 3), Arrival("b", 0.5, make_prompt(4, 1), 1)])
        assert sim.times["b"].waited == 0.5

    @given(
        lengths=st.lists(st.integers(1, 12), min_size=1, max_size=5),
        num_blocks=st.integers(5, 14),
        steps_ahead=st.integers(0, 1),
        caching=st.booleans(),
    )
    def test_tokens_are_as_predicted(
        self, lengths: list[int], num_blocks: int, steps_ahead: int, caching: bool
    ) -> None:
        config = toy_config(num_blocks=num_blocks, block_size=4, enable_prefix_caching=caching)
        options = {"make_scheduler": AsyncScheduler} if steps_ahead else {}
        sim = Simulation(config, steps_ahead=steps_ahead, check=True, **options)  # type: ignore[arg-type]
        arrivals = [Arrival(f"r{i}", i / 10, make_prompt(length, i), 3) for i, length in enumerate(lengths)]
        sim.run(arrivals)
        for arrival in arrivals:
            assert sim.tokens[arrival.request_id] == predict(arrival.prompt, 3)
            assert not math.isnan(sim.times[arrival.request_id].scheduled)

    def test_it_records_events_and_counts_work(self) -> None:
        tracer = RecordingTracer()
        sim = Simulation(toy_config(num_blocks=7, block_size=4), tracer=tracer)
        sim.run([Arrival(name, 0.0, make_prompt(8, i), 10) for i, name in enumerate("ab")])
        assert sum(len(event.preempted) for event in tracer.events) == sim.num_preemptions > 0
        computed = sum(entry.num_tokens for event in tracer.events for entry in event.scheduled)
        assert computed == sim.num_computed_tokens > 2 * (8 + 9)

    def test_traffic_is_the_same_for_a_seed_and_as_asked(self) -> None:
        traffic = chat_and_documents(400, rate=4.0, seed=3)
        assert traffic == chat_and_documents(400, rate=4.0, seed=3)
        assert 80 < traffic[-1].time < 120
        documents = sum(len(arrival.prompt) >= 800 for arrival in traffic)
        assert 20 < documents < 60

    def test_a_nearest_rank_is_one_of_the_values(self) -> None:
        values = range(1, 101)
        assert [nearest_rank(values, p) for p in (0, 1, 50, 99, 100)] == [1, 1, 50, 99, 100]

    def test_who_does_not_get_done_is_reported(self) -> None:
        with pytest.raises(AssertionError, match="not done after 3 steps"):
            Simulation(toy_config()).run([Arrival("a", 0.0, make_prompt(4), 50)], max_steps=3)


class TestShortestFirst:
    def test_it_beats_fcfs_in_the_mean_and_for_the_slowest_in_a_hundred(self) -> None:
        fcfs = [wait for seed in range(4) for wait in waits("fcfs", seed)]
        ours = [wait for seed in range(4) for wait in waits("shortest", seed)]
        assert statistics.mean(ours) < 0.55 * statistics.mean(fcfs)
        assert nearest_rank(ours, 99) < nearest_rank(fcfs, 99)

    def test_a_stream_of_short_prompts_starves_nobody(self) -> None:
        document = Arrival("document", 1.0, make_prompt(800, 1), 2)
        stream = [Arrival(f"r{i}", i / 10, make_prompt(20, i), 16) for i in range(600)]
        config = toy_config(max_num_seqs=4, max_num_batched_tokens=256, policy="shortest")
        sim = Simulation(config).run([document, *stream])
        assert sim.now > 60
        assert sim.times["document"].waited < 20
