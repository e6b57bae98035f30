"""Figures that Day 2's pages quote are what our code computes."""

import re
from pathlib import Path

import numpy as np
import pytest

from learnvllm.architecture.messages import (
    EngineCoreOutput,
    EngineCoreRequest,
    FinishReason,
    LogprobsLists,
)
from learnvllm.architecture.sampling_params import RequestOutputKind, SamplingParams
from learnvllm.engine_core.detokenizer import undecided_length
from learnvllm.engine_core.output_processor import OutputProcessor
from learnvllm.engine_core.serial import MsgpackEncoder
from tests.engine_core.parts import byte_level_tokenizer
from tests.wire_sizes import message_sizes

PAGES = Path(__file__).parents[2] / "docs/topics/engine_core"
CONCEPTS = " ".join((PAGES / "concepts.md").read_text("utf-8").split())


def frame_sizes(message) -> list[int]:
    return [len(frame) for frame in MsgpackEncoder().encode(message)]


def test_the_sizes_of_messages() -> None:
    """The figures of Day 1's table."""
    request, _, step, _ = message_sizes()
    assert f"A request of 512 prompt tokens is {request:,} bytes" in CONCEPTS
    assert f"the outputs of a step for 16 requests {step:,}" in CONCEPTS


def test_the_frames_of_prompt_logprobs() -> None:
    rows = LogprobsLists(
        np.zeros((512, 21), np.int32), np.zeros((512, 21), np.float32), np.zeros(512, np.int32)
    )
    message, *frames = frame_sizes(EngineCoreOutput("r", [], new_prompt_logprobs=rows))
    a, b, c = (f"{size:,}" for size in frames)
    assert f"are {message} bytes of message and frames of {a}, {b} and {c} bytes" in CONCEPTS


@pytest.mark.parametrize("interval", [1, 4, 8, 16, 32])
def test_what_a_stream_interval_saves(interval) -> None:
    row = re.search(rf"\| {interval} \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|", CONCEPTS)
    assert row is not None
    outputs, delta, cumulative = (int(cell.replace(",", "")) for cell in row.groups())
    assert stream(RequestOutputKind.DELTA, interval) == (outputs, delta)
    assert stream(RequestOutputKind.CUMULATIVE, interval) == (outputs, cumulative)


def stream(kind: RequestOutputKind, interval: int) -> tuple[int, int]:
    """Outputs of a request of 256 tokens, and the ids in them."""
    tokenizer = byte_level_tokenizer()
    processor = OutputProcessor(tokenizer)
    params = SamplingParams(max_tokens=256, output_kind=kind, stream_interval=interval)
    processor.add_request(EngineCoreRequest("r", [5], params), "a")
    letter = tokenizer.encode("a")
    made = []
    for step in range(256):
        reason = FinishReason.LENGTH if step == 255 else None
        made += processor.process_outputs(
            [EngineCoreOutput("r", letter, finish_reason=reason)]
        ).request_outputs
    return len(made), sum(len(output.outputs[0].token_ids) for output in made)


def test_what_is_held_back() -> None:
    text, stop = "Paris is the capital.\nIt lies on the Seine.\n\nUser", "\n\nUser:"
    ends = range(1, len(text) + 1)
    ours = sum(undecided_length(text[:end], [stop]) for end in ends) / len(text)
    fixed = sum(min(end, len(stop) - 1) for end in ends) / len(text)
    assert f"that is {fixed:.2f} characters held back on average" in CONCEPTS
    assert f"become the stop string is {ours:.2f}" in CONCEPTS


def test_what_decoding_everything_anew_costs() -> None:
    assert f"{sum(range(1, 513)):,} token decodings for an answer of 512" in CONCEPTS


@pytest.mark.parametrize("share", [2, 8, 20, 40, 50])
def test_what_overlapping_gains_at_most(share) -> None:
    longer = max(share, 100 - share)
    assert f"| {share} % | {longer} % | × {100 / longer:.2f} |" in CONCEPTS
