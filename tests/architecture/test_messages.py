"""What crosses a process: small, complete, and the same on the other side."""

import msgspec
import pytest

from learnvllm.architecture.messages import (
    EngineCoreEvent,
    EngineCoreEventType,
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    RemoteError,
    SchedulerStats,
    UtilityOutput,
)
from learnvllm.architecture.request import Request, RequestStatus
from learnvllm.architecture.sampling_params import SamplingParams

MESSAGES = [
    EngineCoreRequest("r", [1, 2, 3], SamplingParams(max_tokens=4), [2], 1.5, -3, "salt", 1),
    EngineCoreOutput("r", [7], None, None, FinishReason.STOP, "END", None, 4),
    EngineCoreOutput("r", [], finish_reason=FinishReason.ERROR, error=RemoteError("ServerError", "no")),
    EngineCoreOutputs([EngineCoreOutput("r", [1])], SchedulerStats(1, 2, 0.5), UtilityOutput(3, [1]), 2.5),
    EngineCoreEvent(EngineCoreEventType.PREEMPTED, 1.5),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda m: type(m).__name__)
def test_messages_come_back_equal(message: msgspec.Struct) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message)) == message


def test_a_decode_step_costs_a_few_bytes_a_request() -> None:
    outputs = [EngineCoreOutput(f"request-{i}", [1000 + i]) for i in range(100)]
    assert len(msgspec.msgpack.encode(EngineCoreOutputs(outputs))) < 100 * 25


def test_finish_reasons_are_spelled_as_openai_does() -> None:
    assert [str(reason) for reason in FinishReason] == ["stop", "length", "abort", "error"]


def test_every_final_status_has_its_reason_and_no_other_has() -> None:
    for status in RequestStatus:
        assert (status.finish_reason is not None) == status.is_finished
    assert RequestStatus.FINISHED_LENGTH_CAPPED.finish_reason is FinishReason.LENGTH


def test_a_request_becomes_what_the_scheduler_keeps() -> None:
    message = EngineCoreRequest("r", [1, 2, 3], SamplingParams(max_tokens=4), [2, 9], 1.5, -3, "salt", 1)
    request = Request.from_engine_core_request(message, block_hasher=None)
    assert (request.request_id, request.priority, request.cache_salt, request.client_index) == (
        "r",
        -3,
        "salt",
        1,
    )
    assert (request.num_prompt_tokens, request.num_tokens, request.max_tokens) == (3, 3, 4)
    request.append_output_token_ids([5, 6])
    assert (request.all_token_ids[3:], request.num_output_tokens, request.num_tokens) == ([5, 6], 2, 5)
    assert message.prompt_token_ids == [1, 2, 3]  # the message is left alone


def test_requests_order_by_priority_then_arrival_then_id() -> None:
    def make(request_id: str, priority: int, arrival: float) -> Request:
        return Request(request_id, [1], SamplingParams(), priority=priority, arrival_time=arrival)

    ordered = [make("c", -1, 9.0), make("b", 0, 1.0), make("a", 0, 2.0), make("z", 0, 2.0)]
    assert sorted(ordered[i] for i in (2, 0, 3, 1)) == ordered


def test_events_are_taken_once() -> None:
    request = Request("r", [1], SamplingParams())
    assert request.take_events() is None
    request.record_event(EngineCoreEventType.QUEUED)
    events = request.take_events()
    assert events is not None
    assert [event.type for event in events] == [EngineCoreEventType.QUEUED]
    assert request.take_events() is None
