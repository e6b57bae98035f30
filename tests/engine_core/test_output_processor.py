"""From the core's outputs to the caller's: kinds, intervals, stop strings, n, aborts, statistics."""

import asyncio

import pytest

from learnvllm.architecture.errors import EngineDeadError, QueueFullError, ValidationError
from learnvllm.architecture.messages import (
    EngineCoreEvent,
    EngineCoreEventType,
    EngineCoreOutput,
    EngineCoreRequest,
    FinishReason,
    RemoteError,
)
from learnvllm.architecture.outputs import RequestOutput
from learnvllm.architecture.sampling_params import RequestOutputKind, SamplingParams
from learnvllm.engine_core import core_ids
from learnvllm.engine_core.metrics.stats import IterationStats
from learnvllm.engine_core.output_collector import RequestOutputCollector
from learnvllm.engine_core.output_processor import OutputProcessor
from tests.engine_core.parts import byte_level_tokenizer, fake_logprobs

TOKENIZER = byte_level_tokenizer()
PROMPT = TOKENIZER.encode("hello")
DELTA, CUMULATIVE, FINAL = RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY


def letter(text: str) -> int:
    return TOKENIZER.encode(text, add_special_tokens=False)[0]


class Session:
    """An OutputProcessor fed by hand."""

    def __init__(self, log_stats: bool = False) -> None:
        self.processor = OutputProcessor(TOKENIZER, log_stats)
        self.aborted: list[str] = []
        self.stats = IterationStats(timestamp=1000.0) if log_stats else None

    def add(self, request_id: str = "r", queue: RequestOutputCollector | None = None, **params) -> list[str]:
        """The ids that the core gets."""
        request = EngineCoreRequest(
            request_id, PROMPT, SamplingParams(max_tokens=50, **params), arrival_time=990.0
        )
        return [child.request_id for child in self.processor.add_request(request, "hello", queue)]

    def feed(
        self, text: str, request_id: str = "r", finish: FinishReason | None = None, **more
    ) -> list[RequestOutput]:
        """One step per letter; the outputs of all of them."""
        outputs: list[RequestOutput] = []
        for i, character in enumerate(text):
            last = finish if i == len(text) - 1 else None
            outputs += self.step(
                EngineCoreOutput(request_id, [letter(character)], finish_reason=last, **more)
            )
        return outputs

    def step(self, *outputs: EngineCoreOutput, engine_ts: float = 0.0) -> list[RequestOutput]:
        processed = self.processor.process_outputs(list(outputs), engine_ts, self.stats)
        self.aborted += processed.reqs_to_abort
        return processed.request_outputs


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [completion.text for output in outputs for completion in output.outputs]


# ----------------------------------------------------------------------------------- what an output carries


def test_cumulative_outputs_carry_everything_so_far() -> None:
    session = Session()
    session.add(output_kind=CUMULATIVE)
    outputs = session.feed("abc", finish=FinishReason.LENGTH)
    assert texts(outputs) == ["a", "ab", "abc"]
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 2, 3]
    assert [output.finished for output in outputs] == [False, False, True]
    assert outputs[-1].outputs[0].finish_reason == "length"
    assert outputs[0].prompt == "hello"
    assert outputs[0].prompt_token_ids == PROMPT


def test_delta_outputs_carry_what_is_new() -> None:
    session = Session()
    session.add(output_kind=DELTA)
    outputs = session.feed("abc", finish=FinishReason.LENGTH)
    assert texts(outputs) == ["a", "b", "c"]
    assert [output.outputs[0].token_ids for output in outputs] == [[letter(c)] for c in "abc"]


def test_final_only_means_one_output() -> None:
    session = Session()
    session.add(output_kind=FINAL)
    (output,) = session.feed("abc", finish=FinishReason.LENGTH)
    assert (output.finished, texts([output])) == (True, ["abc"])


def test_outputs_already_handed_out_do_not_change() -> None:
    session = Session()
    session.add(output_kind=CUMULATIVE)
    first, *_ = session.feed("abc")
    assert first.outputs[0].token_ids == [letter("a")]


@pytest.mark.parametrize("kind", [DELTA, CUMULATIVE])
def test_eng_08_the_first_token_comes_at_once_then_whole_intervals_then_the_rest(kind) -> None:
    session = Session()
    session.add(output_kind=kind, stream_interval=3)
    outputs = session.feed("abcdefgh", finish=FinishReason.LENGTH)
    expected = ["a", "bcd", "efg", "h"] if kind is DELTA else ["a", "abcd", "abcdefg", "abcdefgh"]
    assert texts(outputs) == expected


def test_logprobs_follow_their_tokens() -> None:
    session = Session()
    session.add(output_kind=DELTA, logprobs=2, stream_interval=2)
    outputs = []
    for i, character in enumerate("abcd"):
        finish = FinishReason.LENGTH if i == 3 else None
        outputs += session.step(
            EngineCoreOutput(
                "r", [letter(character)], fake_logprobs([letter(character)], 2), finish_reason=finish
            )
        )
    for output in outputs:
        completion = output.outputs[0]
        assert completion.logprobs is not None
        assert [next(iter(entry)) for entry in completion.logprobs] == completion.token_ids
    assert outputs[-1].outputs[0].cumulative_logprob == -2.0


def test_prompt_logprobs_come_once_in_deltas() -> None:
    session = Session()
    session.add(output_kind=DELTA, prompt_logprobs=1)
    assert session.step(EngineCoreOutput("r", [], new_prompt_logprobs=fake_logprobs(PROMPT[1:3], 1))) == []
    rest = EngineCoreOutput("r", [letter("a")], new_prompt_logprobs=fake_logprobs(PROMPT[3:], 1))
    first, second = [*session.step(rest), *session.feed("b")]
    assert first.prompt_logprobs is not None
    assert len(first.prompt_logprobs) == len(PROMPT)
    assert second.prompt_logprobs is None


# ------------------------------------------------------------------------------------------ stop strings


def test_a_stop_string_ends_the_request_and_aborts_it_in_the_core() -> None:
    session = Session()
    session.add(output_kind=DELTA, stop=["cd"])
    outputs = session.feed("abcde")
    assert "".join(texts(outputs)) == "ab"
    last = outputs[-1]
    assert (last.finished, last.outputs[0].finish_reason, last.outputs[0].stop_reason) == (True, "stop", "cd")
    assert session.aborted == ["r"]
    assert not session.processor.has_unfinished_requests()
    assert [token for output in outputs for token in output.outputs[0].token_ids] == [
        letter(c) for c in "abcd"
    ]


def test_a_stop_string_in_the_last_token_needs_no_abort() -> None:
    session = Session()
    session.add(stop=["c"], output_kind=FINAL)
    (output,) = session.feed("abc", finish=FinishReason.LENGTH)
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", "c")
    assert session.aborted == []


def test_text_held_back_comes_out_when_the_length_ends_it() -> None:
    session = Session()
    session.add(stop=["cdx"], output_kind=DELTA)
    outputs = session.feed("abcd", finish=FinishReason.LENGTH)
    assert texts(outputs) == ["a", "b", "", "cd"]


def test_a_stop_token_says_which() -> None:
    session = Session()
    session.add(output_kind=FINAL, stop_token_ids=[letter(".")])
    (output,) = session.step(
        EngineCoreOutput(
            "r", [letter("a"), letter(".")], finish_reason=FinishReason.STOP, stop_reason=letter(".")
        )
    )
    completion = output.outputs[0]
    assert (completion.text, completion.stop_reason) == ("a", letter("."))
    assert completion.token_ids == [letter("a"), letter(".")]


# --------------------------------------------------------------------------------------------------- n > 1


def test_n_completions_are_one_output_when_only_the_end_is_wanted() -> None:
    session = Session()
    session.add(n=3, output_kind=FINAL)
    assert session.feed("x", "1_r", FinishReason.LENGTH) == []
    assert session.feed("y", "2_r", FinishReason.LENGTH) == []
    (output,) = session.feed("z", "0_r", FinishReason.LENGTH)
    assert (output.request_id, output.finished, texts([output])) == ("r", True, ["z", "x", "y"])
    assert not session.processor.parent_requests


def test_n_completions_stream_under_their_index_and_the_last_one_finishes() -> None:
    session = Session()
    session.add(n=2, output_kind=DELTA)
    outputs = session.feed("ab", "1_r", FinishReason.LENGTH) + session.feed("c", "0_r", FinishReason.LENGTH)
    assert [(o.outputs[0].index, o.outputs[0].text, o.finished) for o in outputs] == [
        (1, "a", False),
        (1, "b", False),
        (0, "c", True),
    ]


def test_prompt_logprobs_of_the_first_child_serve_the_whole_request() -> None:
    session = Session()
    session.add(n=2, output_kind=FINAL, prompt_logprobs=0)
    session.step(EngineCoreOutput("0_r", [letter("a")], new_prompt_logprobs=fake_logprobs(PROMPT[1:], 0)))
    session.feed("b", "0_r", FinishReason.LENGTH)
    (output,) = session.feed("c", "1_r", FinishReason.LENGTH)
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(PROMPT)


@pytest.mark.parametrize("order", [["0_r", "1_r"], ["1_r", "0_r"]])
def test_deltas_of_n_completions_bring_prompt_logprobs_once(order: list[str]) -> None:
    session = Session()
    session.add(n=2, output_kind=DELTA, prompt_logprobs=0)
    new = {"0_r": fake_logprobs(PROMPT[1:], 0), "1_r": None}
    outputs = []
    for child in order:
        outputs += session.step(EngineCoreOutput(child, [letter("a")], new_prompt_logprobs=new[child]))
    for child in order:
        outputs += session.feed("b", child, FinishReason.LENGTH)
    bring_them = [output.outputs[0].index for output in outputs if output.prompt_logprobs is not None]
    assert bring_them == [0]


# ------------------------------------------------------------------------------------- refusals and aborts


def test_a_request_the_core_refuses_comes_back_with_its_error() -> None:
    session = Session()
    session.add()
    session.add("other")
    refused = EngineCoreOutput(
        "r", [], finish_reason=FinishReason.ERROR, error=RemoteError("QueueFullError", "full")
    )
    (output,) = session.step(refused)
    assert isinstance(output.error, QueueFullError)
    assert output.outputs[0].finish_reason == "error"
    assert texts(session.feed("a", "other")) == ["a"]  # nobody else is touched


def test_one_refused_child_ends_its_siblings() -> None:
    session = Session()
    session.add(n=3, output_kind=FINAL)
    error = RemoteError("ValidationError", "no", "prompt", 3)
    (output,) = session.step(EngineCoreOutput("1_r", [], finish_reason=FinishReason.ERROR, error=error))
    assert isinstance(output.error, ValidationError)
    assert output.error.parameter == "prompt"
    assert output.finished
    assert sorted(session.aborted) == ["0_r", "2_r"]
    assert not session.processor.has_unfinished_requests()
    assert not session.processor.parent_requests


def test_ids_in_use_are_refused_until_they_are_free_again() -> None:
    session = Session()
    session.add()
    with pytest.raises(ValidationError, match="'r' is in use"):
        session.add()
    assert session.processor.num_unfinished_requests() == 1
    session.feed("a", finish=FinishReason.LENGTH)
    assert session.add() == ["r"]


def test_the_ids_of_completions_are_in_use_too() -> None:
    session = Session()
    session.add("r", n=2)
    with pytest.raises(ValidationError, match="'1_r' is in use"):
        session.add("1_r")
    session.add("0_s")
    with pytest.raises(ValidationError, match="'0_s' is in use"):
        session.add("s", n=2)
    assert session.processor.num_unfinished_requests() == 3
    assert list(session.processor.parent_requests) == ["r"]


def test_eng_13_aborting_names_the_children_and_forgets_everything() -> None:
    session = Session()
    session.add("r", n=2)
    session.add("s")
    session.feed("a", "0_r", FinishReason.LENGTH)
    assert session.processor.abort_requests(["r", "unknown"]) == ["1_r"]
    assert session.feed("b", "1_r") == []  # what was on its way is dropped
    assert session.processor.num_unfinished_requests() == 1
    assert not session.processor.parent_requests
    assert session.processor.abort_requests(["r"]) == []


@pytest.mark.parametrize("how", ["an abort", "a stop string", "a refused sibling"])
def test_outputs_on_their_way_are_not_those_of_the_next_request_of_that_id(how: str) -> None:
    session = Session()
    if how == "an abort":
        ended = session.add("r")
        session.processor.abort_requests(["r"])
    elif how == "a stop string":
        ended = session.add("r", stop=["b"])
        session.feed("b")
    else:
        ended = session.add("r", n=2)[:1]
        error = RemoteError("QueueFullError", "2 requests wait already.")
        session.step(EngineCoreOutput("1_r", [], finish_reason=FinishReason.ERROR, error=error))
    for n in (1, 2, 2):
        again = session.add("r", n=n)
        with pytest.raises(ValidationError, match="'r' is in use"):
            session.add("r")
        for core_id in ended:
            assert session.feed("x", core_id, FinishReason.LENGTH) == []
        outputs = [output for core_id in again for output in session.feed("y", core_id)]
        assert texts(outputs) == ["y"] * n
        assert {output.request_id for output in outputs} == {"r"}
        assert session.processor.abort_requests(["r"]) == again
        ended += again


def test_an_id_that_ended_in_the_core_is_the_cores_next_one_too() -> None:
    session = Session()
    for _ in range(2):
        assert session.add("r") == ["r"]
        session.feed("a", finish=FinishReason.LENGTH)


def test_aborting_many_ends_nobody_who_has_the_id_of_one_that_is_done() -> None:
    session = Session()
    first, second = session.add("r", n=2)
    session.feed("a", first, FinishReason.LENGTH)
    (other,) = session.add(first)
    assert session.processor.abort_requests(["r"]) == [second]
    assert [output.request_id for output in session.feed("x", other)] == [first]


def test_an_id_like_the_name_the_core_has_for_another_request_is_an_id_like_any() -> None:
    session = Session()
    session.add("r")
    session.processor.abort_requests(["r"])
    (core_id,) = session.add("r")  # "r#1", as the outputs of the first may be on their way
    assert session.processor.abort_requests([core_id]) == []
    assert session.processor.forget(core_id) == []
    (of_other,) = session.add(core_id)
    assert of_other != core_id
    outputs = session.feed("x", core_id) + session.feed("y", of_other)
    assert [(output.request_id, output.outputs[0].text) for output in outputs] == [("r", "x"), (core_id, "y")]
    assert session.processor.abort_requests([core_id, "r"]) == [of_other, core_id]
    assert not session.processor.has_unfinished_requests()


def test_ids_of_however_many_requests_that_ended_at_once_are_not_the_cores_next_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(core_ids.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(core_ids, "ENDED_HERE_KEPT", 3)
    session, ids = Session(), [f"r{i}" for i in range(5)]
    for request_id in ids:
        session.add(request_id)
    session.processor.abort_requests(ids)
    assert session.add("r0") != ["r0"]
    now[0] = core_ids.ENDED_HERE_S  # later they are kept no longer
    session.processor.abort_requests(["r0"])
    assert len(session.processor._core_ids._ended_here) == 3
    assert session.add("r0") == ["r0"]


# ------------------------------------------------------------------------------------------------- collectors


async def test_a_slow_consumer_gets_deltas_merged() -> None:
    session, queue = Session(), RequestOutputCollector(DELTA)
    session.add(queue=queue, output_kind=DELTA, logprobs=0)
    for character in "abc":
        session.step(EngineCoreOutput("r", [letter(character)], fake_logprobs([letter(character)], 0)))
    output = await queue.get()
    assert texts([output]) == ["abc"]
    assert output.outputs[0].token_ids == [letter(c) for c in "abc"]
    assert output.outputs[0].logprobs is not None
    assert len(output.outputs[0].logprobs) == 3
    assert queue.get_nowait() is None
    session.feed("d", finish=FinishReason.LENGTH)
    assert texts([await queue.get()]) == ["d"]


async def test_a_slow_consumer_gets_the_newest_of_cumulative_outputs() -> None:
    session, queue = Session(), RequestOutputCollector(CUMULATIVE)
    session.add(queue=queue, output_kind=CUMULATIVE, n=2)
    session.feed("abc", "1_r")
    session.feed("x", "0_r")
    output = await queue.get()
    assert [(c.index, c.text) for c in output.outputs] == [(0, "x"), (1, "abc")]


async def test_a_waiting_consumer_wakes_up() -> None:
    session, queue = Session(), RequestOutputCollector(DELTA)
    session.add(queue=queue, output_kind=DELTA)
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    session.feed("a")
    assert texts([await waiting]) == ["a"]


async def test_an_aborted_consumer_gets_a_last_output() -> None:
    session, queue = Session(), RequestOutputCollector(DELTA)
    session.add(queue=queue, output_kind=DELTA)
    session.feed("a")
    session.processor.abort_requests(["r"])
    output = await queue.get()
    assert (output.finished, output.outputs[0].finish_reason, output.outputs[0].text) == (True, "abort", "a")


async def test_every_waiting_consumer_learns_that_the_engine_died() -> None:
    session = Session()
    queues = [RequestOutputCollector(DELTA) for _ in range(3)]
    for i, queue in enumerate(queues):
        session.add(f"r{i}", queue=queue, output_kind=DELTA)
    session.feed("a", "r0")
    session.processor.fail_all(EngineDeadError("gone"))
    for queue in queues:
        with pytest.raises(EngineDeadError, match="gone"):
            await queue.get()


# ------------------------------------------------------------------------------------------------- statistics


def test_a_requests_times_are_intervals_of_one_clock() -> None:
    session = Session(log_stats=True)
    session.add(output_kind=FINAL)
    events = [
        EngineCoreEvent(EngineCoreEventType.QUEUED, 5.0),
        EngineCoreEvent(EngineCoreEventType.SCHEDULED, 7.0),
    ]
    session.step(EngineCoreOutput("r", [letter("a")], events=events), engine_ts=8.0)
    session.step(
        EngineCoreOutput("r", [letter("b")], events=[EngineCoreEvent(EngineCoreEventType.PREEMPTED, 8.5)]),
        engine_ts=9.0,
    )
    (output,) = session.step(
        EngineCoreOutput("r", [letter("c")], finish_reason=FinishReason.LENGTH), engine_ts=12.0
    )
    stats = session.stats
    assert stats is not None
    assert (stats.num_prompt_tokens, stats.num_generation_tokens) == (len(PROMPT), 3)
    assert stats.time_to_first_tokens == [10.0]
    assert stats.inter_token_latencies == [1.0, 3.0]
    (finished,) = stats.finished_requests
    assert (finished.queued_time, finished.prefill_time, finished.decode_time) == (2.0, 1.0, 4.0)
    assert (finished.inference_time, finished.mean_time_per_output_token) == (5.0, 2.0)
    assert finished.e2e_latency == 10.0
    assert (output.metrics.queued_time, output.metrics.num_preemptions) == (2.0, 1)


def test_eng_13_an_abort_is_counted_once_as_an_abort() -> None:
    session = Session(log_stats=True)
    session.add("r", n=2)
    session.processor.abort_requests(["r"])
    session.processor.abort_requests(["r"])
    session.step()
    assert session.stats is not None
    assert [f.finish_reason for f in session.stats.finished_requests] == [FinishReason.ABORT] * 2


def test_a_stop_string_counts_as_stop() -> None:
    session = Session(log_stats=True)
    session.add(stop=["b"])
    session.feed("ab")
    assert session.stats is not None
    assert [f.finish_reason for f in session.stats.finished_requests] == [FinishReason.STOP]


def test_nothing_is_kept_when_statistics_are_off() -> None:
    session = Session(log_stats=False)
    session.add()
    assert session.processor.request_states["r"].stats is None
