"""The messages whose sizes Days 1 and 2 quote: one builder, so that one message has one figure."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from learnvllm.architecture.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    LogprobsLists,
    SchedulerStats,
)
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.engine_core.serial import MsgpackEncoder

NAME = "cmpl-" + "0" * 30
"""A request's id on the wire has 37 characters: this and two digits."""


def size(message: Any) -> int:
    return sum(len(frame) for frame in MsgpackEncoder().encode(message))


def message_sizes() -> list[int]:
    """Bytes of a request of 512 tokens, and of a step's outputs: plain, with statistics, with logprobs."""
    rng = random.Random(0)

    def ids(count: int) -> list[int]:
        return [rng.randrange(49_152) for _ in range(count)]

    def with_logprobs(output: EngineCoreOutput) -> EngineCoreOutput:
        token_ids = np.array([ids(6)], dtype=np.int32)
        logprobs = LogprobsLists(token_ids, np.zeros((1, 6), np.float32), np.array([1], np.int32))
        return EngineCoreOutput(output.request_id, output.new_token_ids, logprobs)

    params = SamplingParams(temperature=0.0, max_tokens=64)
    request = EngineCoreRequest(NAME + "00", ids(512), params, [2], 1_700_000_000.0)
    outputs = [EngineCoreOutput(f"{NAME}{i:02}", ids(1)) for i in range(16)]
    stats = SchedulerStats(16, 3, 0.25, 0, 0, 0, 16)
    return [
        size(request),
        size(EngineCoreOutputs(outputs, timestamp=1234.5)),
        size(EngineCoreOutputs(outputs, stats, timestamp=1234.5)),
        size(EngineCoreOutputs([with_logprobs(output) for output in outputs], timestamp=1234.5)),
    ]
