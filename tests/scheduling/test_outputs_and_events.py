"""What clients, metrics and tracers are told."""

from dataclasses import replace

import numpy as np
import pytest

from learnvllm.architecture.messages import EngineCoreEventType, FinishReason, LogprobsLists
from learnvllm.architecture.request import Request
from learnvllm.architecture.step import ModelRunnerOutput
from learnvllm.architecture.tracing import RecordingTracer, to_chrome_trace
from tests.scheduling.fake_runner import SchedulerLoop, make_config, prompt_of


def update_raw(loop: SchedulerLoop):
    """Take in a step's output and return the messages as they come."""
    output, result = loop.in_flight.popleft()
    return loop.scheduler.update_from_output(output, result or loop.runner.execute(output))


class TestOutputs:
    def test_each_client_gets_its_own_requests_and_the_first_the_statistics(self) -> None:
        loop = SchedulerLoop(make_config())
        for i in range(4):
            loop.add(f"r{i}", prompt_of(4, i), client_index=i % 2)
        loop.schedule()
        messages = update_raw(loop)
        assert {c: [o.request_id for o in m.outputs] for c, m in messages.items()} == {
            0: ["r0", "r2"],
            1: ["r1", "r3"],
        }
        assert messages[0].scheduler_stats is not None
        assert messages[1].scheduler_stats is None

    def test_a_step_without_tokens_still_reports_statistics(self) -> None:
        loop = SchedulerLoop(make_config(max_num_batched_tokens=4))
        loop.add("a", prompt_of(10), client_index=3)
        loop.schedule()
        messages = update_raw(loop)
        assert messages[0].outputs == []
        assert messages[0].scheduler_stats.num_scheduled_tokens == 4

    def test_without_log_stats_there_are_neither_statistics_nor_events(self) -> None:
        loop = SchedulerLoop(make_config(log_stats=False))
        loop.add("a", prompt_of(4))
        loop.schedule()
        messages = update_raw(loop)
        assert messages[0].scheduler_stats is None
        assert messages[0].outputs[0].events is None

    def test_a_request_whose_logits_are_nan_ends_with_an_error_and_the_others_go_on(self) -> None:
        loop = SchedulerLoop(make_config())
        loop.add("bad", prompt_of(4, 1))
        loop.add("good", prompt_of(4, 2), max_tokens=6)
        loop.schedule()
        output, _ = loop.in_flight.popleft()
        result = replace(loop.runner.execute(output), num_nans_in_logits={"bad": 3})
        messages = loop.scheduler.update_from_output(output, result)
        ended = next(o for o in messages[0].outputs if o.request_id == "bad")
        assert (ended.new_token_ids, ended.finish_reason) == ([], FinishReason.ERROR)
        loop.run()
        assert loop.finish_reasons == {"good": FinishReason.LENGTH}

    def test_a_prefix_hit_is_reported_with_every_output(self) -> None:
        loop = SchedulerLoop(make_config(block_size=4))
        loop.add("a", prompt_of(9))
        loop.run()
        loop.add("b", prompt_of(9))
        loop.run()
        assert {o.request_id: o.num_cached_tokens for o in loop.outputs} == {"a": 0, "b": 8}

    def test_events_tell_queued_scheduled_and_preempted_in_order(self) -> None:
        loop = SchedulerLoop(make_config(num_blocks=6, block_size=4))
        loop.add("a", prompt_of(8, 1), max_tokens=10)
        loop.add("b", prompt_of(8, 2), max_tokens=10)
        loop.run()
        events = [e for o in loop.outputs if o.request_id == "b" for e in o.events or ()]
        kinds = [event.type for event in events]
        assert kinds[:2] == [EngineCoreEventType.QUEUED, EngineCoreEventType.SCHEDULED]
        assert kinds[2:4] == [EngineCoreEventType.PREEMPTED, EngineCoreEventType.SCHEDULED]
        times = [event.timestamp for event in events]
        assert times == sorted(times)

    def test_output_order_of_the_runner_does_not_matter(self) -> None:
        loop = SchedulerLoop(make_config())
        loop.add("a", prompt_of(4, 1))
        loop.add("b", prompt_of(4, 2))
        output = loop.schedule()
        loop.in_flight.clear()
        result = loop.runner.execute(output)
        turned = ModelRunnerOutput(result.req_ids[::-1], result.sampled_token_ids[::-1])
        (message,) = loop.scheduler.update_from_output(output, turned).values()
        expected = dict(zip(result.req_ids, result.sampled_token_ids))
        assert {o.request_id: o.new_token_ids for o in message.outputs} == expected


class TestPromptLogprobs:
    def rows(self, start: int, end: int, length: int) -> LogprobsLists:
        """As the runner gives them for a chunk: a row per prompt token after the first, its position."""
        positions = np.arange(start + 1, min(end, length - 1) + 1, dtype=np.int32)
        return LogprobsLists(positions[:, None], -positions[:, None].astype(np.float32), positions)

    def run(self, loop: SchedulerLoop, request: Request) -> list[int]:
        sent: list[int] = []
        while loop.scheduler.has_requests():
            output = loop.schedule()
            loop.in_flight.clear()
            result = loop.runner.execute(output)
            rows = {}
            starts = {n.req_id: n.num_computed_tokens for n in output.scheduled_new_reqs}
            cached = output.scheduled_cached_reqs
            starts |= dict(zip(cached.req_ids, cached.num_computed_tokens))
            start = starts.get("p")
            if start is not None and start < request.num_prompt_tokens - 1:
                rows["p"] = self.rows(
                    start, start + output.num_scheduled_tokens["p"], request.num_prompt_tokens
                )
            result = ModelRunnerOutput(result.req_ids, result.sampled_token_ids, prompt_logprobs=rows)
            for message in loop.scheduler.update_from_output(output, result).values():
                for out in message.outputs:
                    if out.new_prompt_logprobs is not None:
                        sent += out.new_prompt_logprobs.ranks.tolist()
        return sent

    def test_rows_come_chunk_by_chunk(self) -> None:
        loop = SchedulerLoop(make_config(max_num_batched_tokens=5))
        request = loop.add("p", prompt_of(12), prompt_logprobs=0)
        assert self.run(loop, request) == list(range(1, 12))

    @pytest.mark.parametrize("budget", [5, 7, 64])
    def test_rows_computed_again_after_a_preemption_are_not_sent_again(self, budget: int) -> None:
        config = make_config(num_blocks=9, block_size=4, max_num_batched_tokens=budget)
        loop = SchedulerLoop(config)
        loop.scheduler.progress_guard = False  # admit the prompt although it will have to give way
        loop.add("a", prompt_of(8, 1), max_tokens=24)
        request = loop.add("p", prompt_of(20, 2), max_tokens=3, prompt_logprobs=0)
        assert self.run(loop, request) == list(range(1, 20))
        assert request.num_preemptions > 0


class TestStats:
    def test_gauges_and_counters(self) -> None:
        loop = SchedulerLoop(make_config(num_blocks=11, block_size=4, max_num_seqs=2))
        for i in range(3):
            loop.add(f"r{i}", prompt_of(9))
        loop.schedule()
        stats = loop.scheduler.make_stats()
        assert (stats.num_running_reqs, stats.num_waiting_reqs) == (2, 1)
        assert stats.kv_cache_usage == pytest.approx(0.4)  # two shared blocks and one more each
        assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (18, 8)
        assert stats.num_scheduled_tokens == 0  # scheduled, but not computed yet
        (message,) = update_raw(loop).values()
        assert message.scheduler_stats.prefix_cache_queries == 0  # counters begin again
        assert message.scheduler_stats.num_scheduled_tokens == 10

    def test_tokens_count_with_the_step_that_computed_them_also_one_step_ahead(self) -> None:
        config = make_config(max_num_batched_tokens=4)
        loop = SchedulerLoop(config, async_scheduling=True, execute_late=True)
        loop.add("a", prompt_of(6))
        loop.schedule()  # 4 tokens
        loop.schedule()  # 2 tokens, while the first step runs
        counts = [m.scheduler_stats.num_scheduled_tokens for _ in range(2) for m in update_raw(loop).values()]
        assert counts == [4, 2]

    def test_waiting_does_not_count_as_asking_the_cache_again_and_again(self) -> None:
        loop = SchedulerLoop(make_config(num_blocks=6, block_size=4))
        loop.add("a", prompt_of(9, 1), max_tokens=8)
        loop.add("b", prompt_of(9, 2), max_tokens=8)
        queries = preemptions = 0
        while loop.scheduler.has_requests():
            loop.schedule()
            for message in update_raw(loop).values():
                queries += message.scheduler_stats.prefix_cache_queries
                preemptions += message.scheduler_stats.num_preemptions
        assert queries == 18
        assert preemptions == loop.num_preemptions

    def test_a_request_for_prompt_logprobs_asks_nothing(self) -> None:
        loop = SchedulerLoop(make_config())
        loop.add("a", prompt_of(9), prompt_logprobs=1)
        loop.schedule()
        assert loop.scheduler.make_stats().prefix_cache_queries == 0

    def test_prefix_caching_off_asks_nothing(self) -> None:
        loop = SchedulerLoop(make_config(enable_prefix_caching=False))
        loop.add("a", prompt_of(9))
        loop.schedule()
        assert loop.scheduler.make_stats().prefix_cache_queries == 0


class TestStepEvents:
    @pytest.mark.parametrize("async_scheduling", [False, True])
    def test_the_events_tell_the_whole_story(self, async_scheduling: bool) -> None:
        tracer = RecordingTracer()
        config = make_config(num_blocks=8, block_size=4, max_num_batched_tokens=16)
        loop = SchedulerLoop(config, async_scheduling=async_scheduling, tracer=tracer)
        for i in range(4):
            loop.add(f"r{i}", prompt_of(8, i % 2), max_tokens=10)
        loop.run()
        events = tracer.events
        scheduled = [s for event in events for s in event.scheduled]
        assert sum(s.num_tokens for s in scheduled) == sum(o.total_num_scheduled_tokens for o in loop.history)
        for request_id, tokens in loop.tokens.items():
            sampled = [t for s in scheduled if s.req_id == request_id for t in s.sampled]
            assert sampled[: len(tokens)] == tokens
        assert sum(len(event.preempted) for event in events) == loop.num_preemptions > 0
        assert sorted(name for event in events for name in event.finished) == sorted(loop.tokens)
        assert any(event.blocks_evicted for event in events)
        assert any(s.num_cached_tokens for s in scheduled)
        assert all(event.total_blocks == 7 and 0 <= event.free_blocks <= 7 for event in events)
        assert set(events[0].phases) == {"schedule", "execute", "forward", "update"}
        assert to_chrome_trace(events)["traceEvents"]

    def test_blocks_taken_less_blocks_freed_is_what_is_held(self) -> None:
        tracer = RecordingTracer()
        loop = SchedulerLoop(make_config(enable_prefix_caching=False), tracer=tracer)
        for i in range(3):
            loop.add(f"r{i}", prompt_of(6, i))
        loop.run()
        taken = [b for e in tracer.events for s in e.scheduled for ids in s.block_ids for b in ids]
        freed = [b for e in tracer.events for b in e.blocks_freed]
        assert sorted(taken) == sorted(freed)

    def test_without_a_tracer_the_pool_keeps_no_log(self) -> None:
        loop = SchedulerLoop(make_config())
        assert loop.scheduler.kv_cache_manager.block_pool.log is None

    @pytest.mark.parametrize("async_scheduling", [False, True])
    def test_a_tracer_that_wants_states_gets_queues_and_the_whole_pool(self, async_scheduling: bool) -> None:
        tracer = RecordingTracer(states=True)
        config = make_config(num_blocks=8, block_size=4, max_num_batched_tokens=16)
        loop = SchedulerLoop(config, async_scheduling=async_scheduling, tracer=tracer)
        for i in range(4):
            loop.add(f"r{i}", prompt_of(8, i % 2), max_tokens=10)
        loop.run()
        waited = shared = named = 0
        for event in tracer.events:
            assert event.planned is not None
            assert event.taken_in is not None
            assert len(event.planned.running) == event.num_running
            assert len(event.planned.waiting) == event.num_waiting
            assert len(event.planned.free_queue) == event.free_blocks
            assert {s.req_id for s in event.scheduled} <= set(event.planned.tables)
            for state in (event.planned, event.taken_in):
                held = [b for groups in state.tables.values() for ids in groups for b in ids]
                assert [held.count(b) for b in range(8)] == state.ref_counts
                assert sorted({*held, *state.free_queue}) == list(range(1, 8))
                waited += len(state.waiting)
                shared += max(state.ref_counts) > 1
                named += any(state.names)
            assert not set(event.finished) & set(event.taken_in.tables)
        assert waited > 0
        assert shared > 0
        assert named > 0
        assert tracer.events[-1].taken_in.ref_counts == [0] * 8

    def test_states_are_left_out_unless_asked_for(self) -> None:
        tracer = RecordingTracer()
        loop = SchedulerLoop(make_config(), tracer=tracer)
        loop.add("a", prompt_of(6))
        loop.run()
        assert all(event.planned is event.taken_in is None for event in tracer.events)
