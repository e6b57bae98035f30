"""Messages as msgpack, arrays as frames of their own: an array is never copied on its way to another process.

`FrameSender` reuses the buffer a message is encoded into, but only once ZMQ is done with it: a frame still on
its way would otherwise be overwritten by the next message. Upstream namesake: vllm/v1/serial_utils.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import zmq

T = TypeVar("T")
Frame = bytearray | memoryview

INLINE_BYTES = 256
"""Arrays up to this size travel inside the message: a frame of their own would cost more."""


class MsgpackEncoder:
    """Encodes an object into frames: the message, then one frame per large array. Not thread-safe."""

    def __init__(self, inline_bytes: int = INLINE_BYTES) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._encode_other)
        self._inline_bytes = inline_bytes
        self._arrays: list[memoryview] = []

    def encode(self, obj: Any) -> list[Frame]:
        return self.encode_into(obj, bytearray())

    def encode_into(self, obj: Any, buffer: bytearray) -> list[Frame]:
        """As `encode`, the message written over `buffer`, which is the first frame returned.

        The other frames are views of the arrays' own memory; each view keeps its array alive.
        """
        self._arrays = []
        self._encoder.encode_into(obj, buffer)
        frames: list[Frame] = [buffer, *self._arrays]
        self._arrays = []
        return frames

    def _encode_other(self, obj: Any) -> Any:
        if isinstance(obj, np.ndarray):
            return self._encode_array(obj)
        if isinstance(obj, np.generic):
            return obj.item()
        raise TypeError(f"a {type(obj).__name__} cannot be sent to another process: {obj!r}")

    def _encode_array(self, array: np.ndarray) -> tuple[str, tuple[int, ...], int | bytes]:
        if array.dtype.hasobject:
            raise TypeError("an array of Python objects cannot be sent to another process")
        header = (array.dtype.str, array.shape)
        if array.nbytes <= self._inline_bytes:
            return (*header, array.tobytes())
        self._arrays.append(np.ascontiguousarray(array).data.cast("B"))
        return (*header, len(self._arrays))  # the number of its frame


class MsgpackDecoder(Generic[T]):
    """Decodes frames into a `type`. Arrays are read-only views of the frames they came in."""

    def __init__(self, type: type[T]) -> None:
        self._decoder = msgspec.msgpack.Decoder(type, dec_hook=self._decode_other)
        self._frames: Sequence[Any] = ()

    def decode(self, frames: Sequence[Any]) -> T:
        """`frames`: bytes-like objects, as `MsgpackEncoder.encode` returned them."""
        self._frames = frames
        try:
            return self._decoder.decode(frames[0])
        finally:
            self._frames = ()

    def _decode_other(self, kind: type, obj: Any) -> Any:
        if kind is not np.ndarray:
            raise NotImplementedError(f"no decoder for {kind}")
        dtype, shape, data = obj
        raw = self._frames[data] if isinstance(data, int) else data
        return np.frombuffer(raw, dtype=dtype).reshape(shape)


class FrameSender:
    """Sends objects over one ZMQ socket, reusing message buffers that ZMQ has let go of.

    The first frame is sent with a tracker of its own, because only its buffer is reused; the arrays behind
    the other frames are kept alive by ZMQ itself (frame -> memoryview -> array) and freed when sent.
    """

    def __init__(self, socket: zmq.Socket[bytes], max_spare_buffers: int = 4) -> None:
        self._socket = socket
        self._encoder = MsgpackEncoder()
        self._spare: list[bytearray] = []
        self._in_flight: deque[tuple[zmq.MessageTracker, bytearray]] = deque()
        self._max_spare = max_spare_buffers

    def send(self, obj: Any) -> None:
        self._reclaim()
        buffer = self._spare.pop() if self._spare else bytearray()
        frames = self._encoder.encode_into(obj, buffer)
        last = len(frames) - 1
        more = zmq.SNDMORE if last else 0
        tracker = self._socket.send(frames[0], more, copy=False, track=True)
        for i, frame in enumerate(frames[1:], start=1):
            self._socket.send(frame, zmq.SNDMORE if i < last else 0, copy=False)
        self._in_flight.append((tracker, buffer))

    def _reclaim(self) -> None:
        while self._in_flight and self._in_flight[0][0].done:
            _, buffer = self._in_flight.popleft()
            if len(self._spare) < self._max_spare:
                self._spare.append(buffer)
