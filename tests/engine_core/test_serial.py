"""The codec: what goes in comes out, arrays by reference, and no buffer is reused while on its way."""

import gc
import weakref

import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from learnvllm.architecture.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    LogprobsLists,
    SchedulerStats,
)
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.engine_core.serial import FrameSender, MsgpackDecoder, MsgpackEncoder

ARRAYS = npst.arrays(
    dtype=st.sampled_from(["int32", "float32", "int64", "bool", "uint8"]),
    shape=npst.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40),
)


class Box(msgspec.Struct):
    arrays: list[np.ndarray]


@given(arrays=st.lists(ARRAYS, max_size=5), inline_bytes=st.sampled_from([0, 16, 256]))
def test_arrays_of_any_shape_and_type_come_back_equal(arrays: list[np.ndarray], inline_bytes: int) -> None:
    frames = MsgpackEncoder(inline_bytes).encode(Box(arrays))
    decoded = MsgpackDecoder(Box).decode([bytes(frame) for frame in frames])
    for before, after in zip(arrays, decoded.arrays, strict=True):
        assert after.dtype == before.dtype
        np.testing.assert_array_equal(after, before)


def test_large_arrays_are_frames_of_their_own_and_are_not_copied() -> None:
    array = np.arange(1000, dtype=np.int32)
    _message, frame = MsgpackEncoder().encode(Box([array, np.arange(3)]))
    assert np.shares_memory(np.frombuffer(frame, dtype=np.int32), array)


def test_arrays_that_are_not_contiguous_arrive_whole() -> None:
    array = np.arange(4000, dtype=np.float32).reshape(40, 100)[:, ::2]
    frames = MsgpackEncoder().encode(Box([array]))
    np.testing.assert_array_equal(MsgpackDecoder(Box).decode(frames).arrays[0], array)


def test_requests_and_outputs_come_back_equal() -> None:
    request = EngineCoreRequest(
        "r", [1, 2, 3], SamplingParams(max_tokens=5, stop=["x"], logit_bias={7: 1.5}, seed=3), [2], priority=4
    )
    frames = MsgpackEncoder().encode(request)
    assert MsgpackDecoder(EngineCoreRequest).decode(frames) == request

    lists = LogprobsLists(np.ones((2, 101), np.int32), np.zeros((2, 101), np.float32), np.ones(2, np.int32))
    outputs = EngineCoreOutputs(
        [EngineCoreOutput("r", [5, 6], lists, finish_reason=FinishReason.STOP, stop_reason=6)],
        SchedulerStats(num_running_reqs=3),
        timestamp=1.5,
    )
    decoded = MsgpackDecoder(EngineCoreOutputs).decode(MsgpackEncoder().encode(outputs))
    assert decoded.scheduler_stats == outputs.scheduler_stats
    output = decoded.outputs[0]
    assert (output.finish_reason, output.stop_reason, output.new_token_ids) == (FinishReason.STOP, 6, [5, 6])
    assert output.new_logprobs is not None
    np.testing.assert_array_equal(output.new_logprobs.token_ids, lists.token_ids)


def test_what_cannot_cross_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="a complex cannot be sent"):
        MsgpackEncoder().encode([1, 2j])
    with pytest.raises(TypeError, match="array of Python objects"):
        MsgpackEncoder().encode(Box([np.array([object()] * 100)]))


# --------------------------------------------------------------------------- buffers that are on their way


@pytest.fixture
def push(tmp_path):
    """A PUSH socket whose peer is not there yet: everything sent stays in flight, zero-copy at any size."""
    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.copy_threshold = 0
    address = f"ipc://{tmp_path}/s" if zmq.has("ipc") and len(str(tmp_path)) < 80 else "inproc://s"
    socket.connect(address)
    yield socket, address
    context.destroy(linger=0)


def receive(push, count: int) -> list[list[bytes]]:
    socket, address = push
    pull = socket.context.socket(zmq.PULL)
    pull.bind(address)
    return [pull.recv_multipart() for _ in range(count)]


def messages(count: int) -> list[EngineCoreOutputs]:
    return [EngineCoreOutputs([EngineCoreOutput(f"r{i}", [i] * 50)]) for i in range(count)]


def test_a_buffer_reused_without_asking_zmq_corrupts_the_message_before(push) -> None:
    encoder, buffer = MsgpackEncoder(), bytearray()
    for message in messages(2):
        push[0].send(encoder.encode_into(message, buffer)[0], copy=False)
    decoder = MsgpackDecoder(EngineCoreOutputs)
    received = [decoder.decode(frames).outputs[0].request_id for frames in receive(push, 2)]
    assert received == ["r1", "r1"], "the fault this codec guards against does not show any more"


def test_the_sender_reuses_only_buffers_that_have_been_sent(push) -> None:
    sender = FrameSender(push[0])
    for message in messages(6):
        sender.send(message)
    decoder = MsgpackDecoder(EngineCoreOutputs)
    received = [decoder.decode(frames).outputs[0].request_id for frames in receive(push, 6)]
    assert received == [f"r{i}" for i in range(6)]


def test_the_sender_does_reuse_buffers_once_they_have_been_sent(push) -> None:
    push[0].copy_threshold = 1 << 16  # small messages are copied, so at once done with
    sender = FrameSender(push[0])
    for message in messages(20):
        sender.send(message)
    assert len(sender._in_flight) + len(sender._spare) == 1


def test_arrays_live_until_they_are_sent_and_no_longer(push) -> None:
    sender = FrameSender(push[0])
    array = np.arange(5000, dtype=np.float32)
    alive = weakref.ref(array)
    lists = LogprobsLists(
        array.reshape(50, 100).astype(np.int32), array.reshape(50, 100), np.ones(50, np.int32)
    )
    sender.send(EngineCoreOutputs([EngineCoreOutput("r", [1], lists)]))
    del lists, array
    gc.collect()
    assert alive() is not None, "freed while ZMQ still has to read it"
    (frames,) = receive(push, 1)
    decoded = MsgpackDecoder(EngineCoreOutputs).decode(frames).outputs[0].new_logprobs
    np.testing.assert_array_equal(decoded.logprobs.ravel(), np.arange(5000, dtype=np.float32))
