"""One rule under one budget: who runs goes first, then the queue, and a prompt comes in whatever pieces
fit."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learnvllm.architecture.errors import ConfigError, QueueFullError, ValidationError
from learnvllm.architecture.messages import FinishReason
from learnvllm.architecture.request import RequestStatus
from tests.scheduling.fake_runner import SchedulerLoop, assert_oracle, make_config, oracle, prompt_of


def scheduled(loop: SchedulerLoop) -> dict[str, int]:
    return loop.schedule().num_scheduled_tokens


class TestTokenBudget:
    def test_a_long_prompt_is_computed_in_chunks_of_the_budget(self) -> None:
        loop = SchedulerLoop(make_config(max_num_batched_tokens=8))
        loop.add("a", prompt_of(20), max_tokens=1)
        loop.run()
        assert [output.num_scheduled_tokens.get("a") for output in loop.history[:3]] == [8, 8, 4]

    def test_who_runs_goes_before_who_waits(self) -> None:
        loop = SchedulerLoop(make_config(max_num_batched_tokens=8))
        loop.add("a", prompt_of(4))
        loop.step()
        loop.add("b", prompt_of(20, 1))
        assert scheduled(loop) == {"a": 1, "b": 7}

    def test_fault_6_decodes_go_on_while_a_long_prompt_is_computed(self) -> None:
        """No prefill phase: everybody who runs gets a token in every step."""
        loop = SchedulerLoop(make_config(max_num_batched_tokens=8))
        loop.add("a", prompt_of(3), max_tokens=12)
        loop.step()
        loop.add("b", prompt_of(60, 1))
        for _ in range(8):
            assert loop.schedule().num_scheduled_tokens["a"] == 1
            loop.update()

    def test_several_prompts_share_a_step(self) -> None:
        loop = SchedulerLoop(make_config(max_num_batched_tokens=10))
        for name in "abc":
            loop.add(name, prompt_of(4, ord(name)))
        assert scheduled(loop) == {"a": 4, "b": 4, "c": 2}

    def test_a_threshold_keeps_one_long_prompt_from_taking_the_whole_budget(self) -> None:
        loop = SchedulerLoop(make_config(max_num_batched_tokens=10, long_prefill_token_threshold=6))
        loop.add("a", prompt_of(20, 1))
        loop.add("b", prompt_of(20, 2))
        assert scheduled(loop) == {"a": 6, "b": 4}

    def test_a_budget_below_the_number_of_running_requests_serves_the_first(self) -> None:
        loop = SchedulerLoop(make_config(max_num_batched_tokens=2))
        prompts = {name: [ord(name) - 90] for name in "abcd"}
        for name, prompt in prompts.items():
            loop.add(name, prompt, max_tokens=5)
        loop.run()
        assert_oracle(loop, prompts, 5)

    def test_prompts_get_a_share_in_proportion_to_those_who_decode(self) -> None:
        config = make_config(max_num_batched_tokens=200, max_model_len=400, prefill_tokens_per_decode=10)
        loop = SchedulerLoop(config)
        for name in "abc":
            loop.add(name, prompt_of(4, ord(name)), max_tokens=30)
        loop.step()
        loop.add("d", prompt_of(90, 1), max_tokens=2)
        loop.add("e", prompt_of(50, 2), max_tokens=2)
        steps = [loop.schedule().num_scheduled_tokens]
        loop.update()
        while len(steps) < 5:
            steps.append(loop.schedule().num_scheduled_tokens)
            loop.update()
        decodes = {"a": 1, "b": 1, "c": 1}
        assert steps[:3] == [{**decodes, "d": 30}] * 3
        assert steps[3] == {**decodes, "d": 1, "e": 40}  # d decodes now, so four let ten each by
        loop.run()
        assert_oracle(loop, {"d": prompt_of(90, 1), "e": prompt_of(50, 2)}, 2)

    def test_a_prompt_alone_takes_the_whole_budget_and_few_decodes_let_a_chunk_by(self) -> None:
        config = make_config(max_num_batched_tokens=64, max_model_len=400, prefill_tokens_per_decode=1)
        loop = SchedulerLoop(config)
        loop.add("a", prompt_of(100), max_tokens=9)
        assert scheduled(loop) == {"a": 64}
        loop.update()
        assert scheduled(loop) == {"a": 36}
        loop.update()
        loop.add("b", prompt_of(100, 1), max_tokens=1)
        assert scheduled(loop) == {"a": 1, "b": 16}

    def test_a_more_important_prompt_leaves_those_who_decode_their_token(self) -> None:
        """By priority it is served before them: its share must leave one token for each."""
        config = make_config(
            num_blocks=60, max_num_batched_tokens=16, policy="priority", prefill_tokens_per_decode=2
        )
        loop = SchedulerLoop(config)
        for i in range(6):
            loop.add(f"d{i}", prompt_of(2, i), max_tokens=30, priority=5)
        loop.step()
        loop.step()
        loop.add("p", prompt_of(40, 9), max_tokens=2, priority=0)
        loop.step()
        assert scheduled(loop) == {"p": 10, **{f"d{i}": 1 for i in range(6)}}

    def test_without_chunks_the_share_does_not_cut_a_prompt(self) -> None:
        config = make_config(
            max_num_batched_tokens=64,
            max_model_len=64,
            enable_chunked_prefill=False,
            prefill_tokens_per_decode=None,  # a CPU: 2
        )
        loop = SchedulerLoop(config)
        loop.add("a", prompt_of(4))
        loop.step()
        loop.add("b", prompt_of(40, 1))
        assert scheduled(loop) == {"a": 1, "b": 40}

    def test_the_last_token_of_a_prompt_counts_as_a_decode_but_a_chunk_of_one_does_not(self) -> None:
        """A share of 17 is 16 for the first prompt's end and 1 for the next, not 1 for each that waits."""
        config = make_config(max_num_batched_tokens=64, max_model_len=64, prefill_tokens_per_decode=17)
        loop = SchedulerLoop(config)
        loop.add("a", prompt_of(4), max_tokens=9)
        loop.step()
        for i, name in enumerate("bcd"):
            loop.add(name, prompt_of(16, i + 1), max_tokens=1)
        assert scheduled(loop) == {"a": 1, "b": 16, "c": 1}

    def test_at_most_max_num_seqs_run(self) -> None:
        loop = SchedulerLoop(make_config(max_num_seqs=2))
        for name in "abc":
            loop.add(name, prompt_of(4, ord(name)))
        assert list(scheduled(loop)) == ["a", "b"]
        assert loop.scheduler.get_request_counts() == (2, 1)

    @given(
        lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
        budget=st.integers(1, 50),
        block_size=st.sampled_from([1, 3, 8, 16]),
        threshold=st.sampled_from([0, 2, 7]),
        per_decode=st.sampled_from([0, 1, 9]),
    )
    def test_output_does_not_depend_on_how_prompts_are_cut(
        self, lengths: list[int], budget: int, block_size: int, threshold: int, per_decode: int
    ) -> None:
        config = make_config(
            num_blocks=300,
            block_size=block_size,
            max_num_batched_tokens=budget,
            long_prefill_token_threshold=threshold,
            prefill_tokens_per_decode=per_decode,
        )
        loop = SchedulerLoop(config)
        prompts = {f"r{i}": prompt_of(length, i) for i, length in enumerate(lengths)}
        for request_id, prompt in prompts.items():
            loop.add(request_id, prompt, max_tokens=3)
        loop.run()
        assert_oracle(loop, prompts, 3)


class TestChunkedPrefillOff:
    def test_a_prompt_is_scheduled_whole_or_waits(self) -> None:
        loop = SchedulerLoop(
            make_config(max_num_batched_tokens=64, max_model_len=64, enable_chunked_prefill=False)
        )
        loop.add("a", prompt_of(40, 1), max_tokens=5)
        loop.add("b", prompt_of(30, 2), max_tokens=5)
        assert scheduled(loop) == {"a": 40}
        loop.update()
        assert scheduled(loop) == {"a": 1, "b": 30}
        loop.update()
        loop.run()
        assert_oracle(loop, {"a": prompt_of(40, 1)}, 5)

    def test_the_long_prefill_threshold_does_not_cut_it(self) -> None:
        config = make_config(max_model_len=64, enable_chunked_prefill=False, long_prefill_token_threshold=4)
        loop = SchedulerLoop(config)
        loop.add("a", prompt_of(40))
        assert scheduled(loop) == {"a": 40}

    def test_fault_4_a_budget_below_the_longest_prompt_is_refused_at_once(self) -> None:
        with pytest.raises(ConfigError, match="max_num_batched_tokens"):
            make_config(max_num_batched_tokens=32, max_model_len=64, enable_chunked_prefill=False)

    def test_fault_5_a_threshold_above_the_budget_is_just_the_budget(self) -> None:
        loop = SchedulerLoop(make_config(max_num_batched_tokens=8, long_prefill_token_threshold=100))
        loop.add("a", prompt_of(20), max_tokens=2)
        loop.run()
        assert_oracle(loop, {"a": prompt_of(20)}, 2)


class TestAdmission:
    @pytest.mark.parametrize("async_scheduling", [False, True])
    @pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 9])
    def test_fault_9_a_fully_cached_prompt_computes_at_least_its_last_token(
        self, length: int, async_scheduling: bool
    ) -> None:
        loop = SchedulerLoop(make_config(block_size=4), async_scheduling=async_scheduling)
        prompt = prompt_of(length)
        loop.add("a", prompt)
        loop.run()
        loop.add("b", prompt)
        computed = loop.schedule().num_scheduled_tokens["b"]
        assert computed == length - (length - 1) // 4 * 4 >= 1
        loop.run()
        assert loop.tokens["a"] == loop.tokens["b"] == oracle(prompt, 4)[0]

    def test_fault_c_equal_prompts_in_one_step_share_blocks(self) -> None:
        loop = SchedulerLoop(make_config(block_size=4))
        for name in "abc":
            loop.add(name, prompt_of(9))
        assert scheduled(loop) == {"a": 9, "b": 1, "c": 1}
        loop.run()
        assert_oracle(loop, {name: prompt_of(9) for name in "abc"}, 4)

    @pytest.mark.parametrize("execute_late", [False, True])
    def test_fault_18_a_hit_on_blocks_of_a_step_still_in_flight_reads_them_after_they_are_written(
        self, execute_late: bool
    ) -> None:
        """The fake runner fails on a read of a slot nobody has written."""
        loop = SchedulerLoop(make_config(block_size=4), async_scheduling=True, execute_late=execute_late)
        loop.add("a", prompt_of(12))
        assert scheduled(loop) == {"a": 12}
        loop.add("b", prompt_of(12))
        assert scheduled(loop) == {"a": 1, "b": 4}
        loop.run()
        assert loop.tokens["a"] == loop.tokens["b"]

    @pytest.mark.parametrize("execute_late", [False, True])
    def test_fault_18_a_request_aborted_in_flight_leaves_only_blocks_that_get_written(
        self, execute_late: bool
    ) -> None:
        loop = SchedulerLoop(make_config(block_size=4), async_scheduling=True, execute_late=execute_late)
        loop.add("a", prompt_of(12))
        loop.schedule()
        loop.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
        loop.add("b", prompt_of(12))
        assert scheduled(loop) == {"b": 4}
        loop.run()
        assert_oracle(loop, {"b": prompt_of(12)}, 4)

    def test_the_watermark_holds_back_admission_but_not_those_who_run(self) -> None:
        loop = SchedulerLoop(make_config(num_blocks=11, block_size=4, watermark=0.3))
        loop.add("a", prompt_of(16, 1), max_tokens=20)
        loop.step()
        loop.add("b", prompt_of(16, 2))  # needs 4 of 6 free blocks, 3 must stay
        assert list(scheduled(loop)) == ["a"]
        loop.update()
        loop.run()
        assert loop.num_preemptions == 0
        assert len(loop.tokens["a"]) == 20

    def test_a_prompt_that_waits_for_its_share_keeps_its_blocks_promised(self) -> None:
        """One decode is left, so the first prompt takes the whole share; nobody takes what p2 will need."""
        config = make_config(
            num_blocks=2 + 25,
            block_size=4,
            max_num_batched_tokens=64,
            max_model_len=100,
            long_prefill_token_threshold=16,
            prefill_tokens_per_decode=16,
            watermark=0.0,
        )
        loop = SchedulerLoop(config)
        loop.add("a", prompt_of(3, 1), max_tokens=20)
        loop.add("b", prompt_of(3, 2), max_tokens=2)
        loop.step()
        loop.add("p1", prompt_of(47, 3), max_tokens=1)
        loop.add("p2", prompt_of(47, 4), max_tokens=1)
        assert scheduled(loop) == {"a": 1, "b": 1, "p1": 16, "p2": 16}
        loop.update()  # b ends
        loop.add("c", prompt_of(1, 5), max_tokens=2)
        assert scheduled(loop) == {"a": 1, "p1": 16}
        loop.update()
        loop.run()
        assert loop.num_preemptions == 0
        assert_oracle(loop, {"p2": prompt_of(47, 4)}, 1)

    def test_sch_03_preemptions_fall_as_the_watermark_rises(self) -> None:
        preemptions = [self._preemptions_of_forty_requests(w) for w in (0.0, 0.05, 0.1, 0.2, 0.3)]
        assert preemptions == sorted(preemptions, reverse=True)
        assert preemptions[-1] < preemptions[0] / 4

    @staticmethod
    def _preemptions_of_forty_requests(watermark: float) -> int:
        loop = SchedulerLoop(
            make_config(num_blocks=101, max_num_seqs=64, watermark=watermark, enable_prefix_caching=False)
        )
        rng = random.Random(1)
        for i in range(40):
            loop.add(f"r{i}", prompt_of(rng.randint(4, 60), i), max_tokens=rng.randint(8, 80))
        loop.run(20_000)
        return loop.num_preemptions

    def test_fault_sglang_d_only_whole_blocks_are_shared(self) -> None:
        loop = SchedulerLoop(make_config(block_size=4))
        loop.add("a", prompt_of(10))
        loop.run()
        request = loop.add("b", [*prompt_of(10)[:7], 1, 2, 3])
        loop.run()
        assert request.num_cached_tokens == 4  # 7 tokens are equal, one block of 4 is

    def test_the_watermark_is_no_reason_for_never_admitting(self) -> None:
        """An idle engine admits whatever fits."""
        loop = SchedulerLoop(make_config(num_blocks=11, block_size=4, watermark=0.9))
        loop.add("a", prompt_of(40), max_tokens=1)
        loop.run()
        assert_oracle(loop, {"a": prompt_of(40)}, 1)

    def test_a_prompt_is_admitted_only_if_all_of_it_will_fit(self) -> None:
        """Blocks that a running prompt will still need are as good as taken."""
        config = make_config(
            num_blocks=11, block_size=4, max_num_batched_tokens=8, long_prefill_token_threshold=4
        )
        loop = SchedulerLoop(config)
        loop.add("a", prompt_of(28, 1), max_tokens=1)  # one block now, six to come
        loop.add("b", prompt_of(16, 2), max_tokens=1)  # four, of nine free
        assert scheduled(loop) == {"a": 4}
        loop.update()
        loop.run()
        assert loop.num_preemptions == 0

    def test_nobody_overtakes_the_head_of_the_queue(self) -> None:
        loop = SchedulerLoop(make_config(num_blocks=11, block_size=4))
        loop.add("a", prompt_of(24, 1), max_tokens=2)
        loop.step()
        loop.add("big", prompt_of(24, 2))
        loop.add("small", prompt_of(2, 3))
        assert list(scheduled(loop)) == ["a"]


class TestRefusals:
    def test_fault_b_a_prompt_that_can_never_fit_is_refused_with_what_does(self) -> None:
        loop = SchedulerLoop(make_config(num_blocks=3, block_size=4))
        with pytest.raises(ValidationError, match="9 tokens, but the KV cache holds 8") as error:
            loop.add("a", prompt_of(9))
        assert error.value.parameter == "prompt"
        assert not loop.scheduler.has_requests()
        loop.add("b", prompt_of(8), max_tokens=1)
        loop.run()

    def test_fault_11_a_prompt_must_leave_room_for_a_token(self) -> None:
        loop = SchedulerLoop(make_config(max_model_len=16))
        with pytest.raises(ValidationError, match="at most 15 leave room"):
            loop.add("a", prompt_of(16))
        loop.add("b", prompt_of(15), max_tokens=5)
        loop.run()
        assert len(loop.tokens["b"]) == 1
        assert loop.finish_reasons["b"] == FinishReason.LENGTH

    def test_fault_11_and_d_an_empty_prompt_is_refused(self) -> None:
        loop = SchedulerLoop(make_config())
        with pytest.raises(ValidationError, match="prompt is empty"):
            loop.add("a", [])

    def test_fault_f_max_tokens_0_is_refused(self) -> None:
        loop = SchedulerLoop(make_config())
        with pytest.raises(ValidationError, match="max_tokens must be at least 1"):
            loop.add("a", [1], max_tokens=0)

    def test_an_id_in_use_is_refused_and_may_be_used_again_later(self) -> None:
        loop = SchedulerLoop(make_config())
        loop.add("a", [1], max_tokens=2)
        with pytest.raises(ValidationError, match="request_id='a' is in use"):
            loop.add("a", [2])
        assert loop.run()["a"] == oracle([1], 2)[0]
        loop.finish_reasons.clear()
        loop.add("a", [2], max_tokens=2)
        assert loop.run()["a"] == oracle([2], 2)[0]

    def test_a_refused_request_does_not_hurt_the_others(self) -> None:
        loop = SchedulerLoop(make_config(num_blocks=5, block_size=4))
        loop.add("a", prompt_of(5))
        with pytest.raises(ValidationError):
            loop.add("b", prompt_of(17))
        loop.add("c", prompt_of(6))
        loop.run()
        assert_oracle(loop, {"a": prompt_of(5), "c": prompt_of(6)}, 4)

    def test_a_full_queue_is_refused_until_it_empties(self) -> None:
        loop = SchedulerLoop(make_config(max_num_queued_reqs=2))
        loop.add("a", [1])
        loop.add("b", [2])
        with pytest.raises(QueueFullError, match="2 requests wait already"):
            loop.add("c", [3])
        loop.schedule()
        loop.add("c", [3])
        loop.run()
        assert set(loop.finish_reasons) == {"a", "b", "c"}

    def test_a_queue_full_of_tokens_is_refused_but_a_long_prompt_never_is_for_itself(self) -> None:
        loop = SchedulerLoop(make_config(max_num_queued_tokens=10))
        loop.add("a", prompt_of(50))
        with pytest.raises(QueueFullError, match="50 prompt tokens wait already"):
            loop.add("b", [1])
        loop.schedule()
        loop.add("b", [1])


class TestWhatTheWorkersGet:
    def test_a_new_request_comes_whole_and_then_only_what_is_new(self) -> None:
        loop = SchedulerLoop(make_config(block_size=4))
        loop.add("a", prompt_of(8), max_tokens=3)
        first = loop.schedule()
        (new,) = first.scheduled_new_reqs
        assert (new.req_id, new.token_ids, new.num_computed_tokens) == ("a", prompt_of(8), 0)
        assert [len(ids) for ids in new.block_ids] == [2]
        loop.update()
        cached = loop.schedule().scheduled_cached_reqs
        assert cached.req_ids == ["a"]
        assert cached.num_computed_tokens == [8]
        assert cached.new_block_ids[0] is not None
        assert len(cached.new_block_ids[0][0]) == 1
        loop.update()
        assert loop.schedule().scheduled_cached_reqs.new_block_ids == [None]

    def test_finished_requests_are_told_in_the_next_step_even_if_it_is_empty(self) -> None:
        loop = SchedulerLoop(make_config())
        loop.add("a", [1], max_tokens=1)
        loop.step()
        assert not loop.scheduler.has_unfinished_requests()
        assert loop.scheduler.has_finished_requests()
        assert loop.scheduler.has_requests()
        output = loop.schedule()
        assert output.finished_req_ids == {"a"}
        assert output.total_num_scheduled_tokens == 0
        assert not loop.scheduler.has_requests()

    def test_a_step_keeps_what_it_was_given(self) -> None:
        """What a step holds must not change when the scheduler goes on: it may be executed later."""
        loop = SchedulerLoop(make_config(), async_scheduling=True)
        loop.add("a", prompt_of(5))
        first = loop.schedule()
        before = (
            list(first.scheduled_new_reqs[0].token_ids),
            [list(i) for i in first.scheduled_new_reqs[0].block_ids],
        )
        loop.schedule()
        loop.update()
        after = (
            list(first.scheduled_new_reqs[0].token_ids),
            [list(i) for i in first.scheduled_new_reqs[0].block_ids],
        )
        assert before == after


class TestHybridModels:
    """Full attention and sliding windows over one pool."""

    @pytest.mark.parametrize("windows", [(None, 5), (5,), (1, None), (None, 4, 9)])
    @pytest.mark.parametrize("async_scheduling", [False, True])
    def test_fault_26_window_and_prefix_hit_together(
        self, windows: tuple[int | None, ...], async_scheduling: bool
    ) -> None:
        """Hits that end 0 to 10 tokens before the prompt does."""
        loop = SchedulerLoop(make_config(num_blocks=200), windows, async_scheduling=async_scheduling)
        prompts = {"first": prompt_of(24)}
        loop.add("first", prompts["first"])
        loop.run()
        for extra in range(11):
            prompts[f"r{extra}"] = prompt_of(24)[:16] + prompt_of(extra + 1, 5)
            loop.add(f"r{extra}", prompts[f"r{extra}"])
            loop.run()
        assert_oracle(loop, prompts, 4)
        assert loop.scheduler.requests == {}

    def test_a_window_admits_what_full_attention_could_not_hold(self) -> None:
        config = make_config(num_blocks=8, block_size=4, max_num_batched_tokens=8)
        loop = SchedulerLoop(config, (6,))
        loop.add("a", prompt_of(200), max_tokens=50)
        loop.run()
        assert_oracle(loop, {"a": prompt_of(200)}, 50)
