"""Grader of engine_core.stream_interval: the real OutputProcessor with your RequestState in it, fed step
by step."""

import itertools

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.day02 import byte_level_tokenizer, lesson, letters

from learnvllm.architecture.messages import EngineCoreOutput, EngineCoreRequest, FinishReason, LogprobsLists
from learnvllm.architecture.outputs import RequestOutput
from learnvllm.architecture.sampling_params import RequestOutputKind, SamplingParams
from learnvllm.engine_core import output_processor
from learnvllm.study.subject import load_subject

subject = load_subject(__file__)
RequestState = subject.RequestState

TOKENIZER = byte_level_tokenizer()
DELTA, CUMULATIVE, FINAL = RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY
KINDS = pytest.mark.parametrize("kind", [DELTA, CUMULATIVE], ids=["delta", "cumulative"])
STEPS = st.lists(st.integers(1, 4), min_size=1, max_size=12)
READ = "fewer-larger-outputs"


@pytest.fixture(autouse=True)
def _your_request_state(monkeypatch) -> None:
    monkeypatch.setattr(output_processor, "RequestState", RequestState)


def logprobs_of(token_ids: list[int]) -> LogprobsLists:
    rows = len(token_ids)
    ids = np.array(token_ids, dtype=np.int32).reshape(rows, 1)
    return LogprobsLists(ids, np.full((rows, 1), -0.5, np.float32), np.ones(rows, np.int32))


def stream(
    steps: list[int],
    end: FinishReason | None = FinishReason.LENGTH,
    stop_reason: int | None = None,
    **params,
) -> list[RequestOutput]:
    """The outputs of a request that makes steps[i] tokens in step i and ends with the last."""
    processor = output_processor.OutputProcessor(TOKENIZER)
    processor.add_request(
        EngineCoreRequest("r", [5, 6], SamplingParams(max_tokens=500, logprobs=0, **params)), "hi"
    )
    text = itertools.cycle("abcdefghijklmnopqrstuvwxyz")
    outputs: list[RequestOutput] = []
    for i, size in enumerate(steps):
        token_ids = letters(TOKENIZER, "".join(itertools.islice(text, size)))
        output = EngineCoreOutput("r", token_ids, logprobs_of(token_ids))
        if i == len(steps) - 1:
            output.finish_reason, output.stop_reason = end, stop_reason
        outputs += processor.process_outputs([output]).request_outputs
    return outputs


def due(steps: list[int], interval: int) -> list[int]:
    """Tokens covered by each output, by the rule itself."""
    told, at, sent = [], 0, 0
    for i, size in enumerate(steps):
        at += size
        if sent == 0 or at - sent >= interval or i == len(steps) - 1:
            told.append(at)
            sent = at
    return told


@pytest.mark.points(3)
@KINDS
@given(steps=STEPS, interval=st.integers(1, 6))
@example(steps=[1] * 8, interval=3)
@example(steps=[2, 2, 2, 2, 2], interval=3)
def test_the_first_token_at_once_then_whole_intervals_then_the_rest(kind, steps, interval) -> None:
    outputs = stream(steps, output_kind=kind, stream_interval=interval)
    sizes = [len(output.outputs[0].token_ids) for output in outputs]
    got = list(itertools.accumulate(sizes)) if kind is DELTA else sizes
    assert got == due(steps, interval), lesson(
        "An output is due with the first token, then when at least stream_interval tokens have come since "
        "the last output, and at the end.",
        case=f"{kind.name}, interval {interval}, tokens per step {steps}",
        expected=f"outputs that cover {due(steps, interval)} tokens",
        got=got,
        read=READ,
    )
    expected, got = [False] * (len(outputs) - 1) + [True], [output.finished for output in outputs]
    assert got == expected, lesson(
        "The last output says that the request has ended, and no other does.",
        case=f"{kind.name}, interval {interval}, tokens per step {steps}",
        expected=expected,
        got=got,
        read=READ,
    )


@pytest.mark.points(2)
@KINDS
@given(steps=STEPS, interval=st.integers(1, 6))
def test_no_client_can_tell_from_what_it_has_in_the_end(kind, steps, interval) -> None:
    def whole(interval: int):
        outputs = [o.outputs[0] for o in stream(steps, output_kind=kind, stream_interval=interval)]
        at = 0
        for o in outputs:
            at += len(o.token_ids) if kind is DELTA else len(o.token_ids) - at
            assert o.cumulative_logprob == -0.5 * at, lesson(
                "cumulative_logprob is that of the whole completion so far, in a delta as well.",
                case=f"{kind.name}, interval {interval}, {at} tokens so far, each of log-probability -0.5",
                expected=-0.5 * at,
                got=o.cumulative_logprob,
                read=READ,
            )
            assert [next(iter(entry)) for entry in o.logprobs] == o.token_ids, lesson(
                "Entry i of an output's log-probabilities belongs to its token i.",
                case=f"{kind.name}, interval {interval}, tokens per step {steps}",
                expected=o.token_ids,
                got=[next(iter(entry)) for entry in o.logprobs],
                read=READ,
            )
        if kind is not DELTA:
            return outputs[-1].text, outputs[-1].token_ids, outputs[-1].cumulative_logprob
        joined = "".join(o.text for o in outputs)
        return joined, [t for o in outputs for t in o.token_ids], outputs[-1].cumulative_logprob

    assert whole(interval) == whole(1), lesson(
        "Whatever the interval, the outputs of a request add up to the same text, ids and log-probabilities.",
        case=f"{kind.name}, interval {interval}, tokens per step {steps}",
        expected=whole(1),
        got=whole(interval),
        read=READ,
    )


@pytest.mark.points(1)
def test_final_only_is_one_output_whatever_the_interval() -> None:
    outputs = stream([1] * 9, output_kind=FINAL, stream_interval=2)
    got = [(output.finished, output.outputs[0].text) for output in outputs]
    assert got == [(True, "abcdefghi")], lesson(
        "FINAL_ONLY asks for the end only.", expected=[(True, "abcdefghi")], got=got, read=READ
    )


@pytest.mark.points(1)
@KINDS
def test_a_step_without_a_token_makes_no_output(kind) -> None:
    got = stream([0, 0, 1, 1], output_kind=kind, stream_interval=1)
    assert len(got) == 2, lesson(
        "A chunk of a long prompt gives no token, and so no output.",
        case=f"{kind.name}: two steps of prompt, two tokens",
        expected="2 outputs",
        got=f"{len(got)} outputs",
        read=READ,
    )


@pytest.mark.points(1)
@KINDS
def test_outputs_that_were_handed_out_do_not_change(kind) -> None:
    outputs = stream([1, 1, 1, 1], output_kind=kind, stream_interval=2)
    lengths = [len(output.outputs[0].token_ids) for output in outputs]
    expected = [1, 2, 1] if kind is DELTA else [1, 3, 4]
    assert lengths == expected, lesson(
        "A client may keep an output. The list of ids goes on growing inside the engine: hand out a copy.",
        case=f"{kind.name}, interval 2, four tokens; lengths read at the end",
        expected=expected,
        got=lengths,
        read=READ,
    )


@pytest.mark.points(1)
@KINDS
@pytest.mark.parametrize("end", [FinishReason.LENGTH, FinishReason.STOP], ids=str)
def test_what_a_stop_string_held_back_comes_with_the_end(kind, end) -> None:
    letters_of_a_stop_token = int(end is FinishReason.STOP)  # its text is no output
    steps = [1] * (5 + letters_of_a_stop_token)
    outputs = stream(steps, end, output_kind=kind, stream_interval=5, stop=["efg"])
    got = [output.outputs[0].text for output in outputs]
    expected = ["a", "bcde"] if kind is DELTA else ["a", "abcde"]
    assert got == expected, lesson(
        "At the end nothing is undecided: the text that could have become a stop string is given out, "
        "whatever the end is. FinishReason.STOP is the number 0: ask whether finish_reason is None.",
        case=f'{kind.name}, "abcde", then the end ({end}), interval 5, stop "efg"',
        expected=expected,
        got=got,
        read=READ,
    )


@pytest.mark.points(1)
@KINDS
def test_no_output_shows_a_piece_of_a_stop_string(kind) -> None:
    outputs = stream([1] * 6, output_kind=kind, stream_interval=1, stop=["cdx"])
    got = [output.outputs[0].text for output in outputs]
    expected = ["a", "b", "", "", "cde", "f"] if kind is DELTA else ["a", "ab", "ab", "ab", "abcde", "abcdef"]
    assert got == expected, lesson(
        "While the end of the text could still become a stop string no output shows it, a cumulative one no "
        "more than a delta: a client that has printed it cannot take it back. next_text knows what may be "
        "shown; detokenizer.text holds what may not as well.",
        case=f'{kind.name}, the letters of "abcdef", interval 1, stop "cdx"',
        expected=expected,
        got=got,
        read=READ,
    )


ENDS = {
    "the length": (FinishReason.LENGTH, None, {}, "length", None),
    "the end of sequence": (FinishReason.STOP, None, {}, "stop", None),
    "stop token 260": (FinishReason.STOP, 260, {}, "stop", 260),
    "stop token 0": (FinishReason.STOP, 0, {}, "stop", 0),
    'stop string "cd"': (FinishReason.LENGTH, None, {"stop": ["cd"]}, "stop", "cd"),
    'stop string "a", before any text': (FinishReason.LENGTH, None, {"stop": ["a"]}, "stop", "a"),
    "the client": (FinishReason.ABORT, None, {}, "abort", None),
}
"""What ends the request: (the core's reason, its stop_reason, parameters), and what the client is told."""


@pytest.mark.points(1)
@KINDS
@pytest.mark.parametrize("ended_by", ENDS)
def test_the_last_output_says_why_it_ended_and_no_other_does(kind, ended_by) -> None:
    end, stop_reason, params, *told = ENDS[ended_by]
    outputs = stream([1] * 5, end, stop_reason, output_kind=kind, stream_interval=2, **params)
    got = [(c.finish_reason, c.stop_reason) for output in outputs for c in output.outputs]
    expected = [(None, None)] * (len(outputs) - 1) + [tuple(told)]
    assert got == expected, lesson(
        "The last completion says how it ended in OpenAI's word, str(finish_reason), and what stopped it, "
        "with text or without; until then finish_reason is None, not a word for it. FinishReason.STOP is "
        "the number 0 and so is a token id: neither is None.",
        case=f"{kind.name}, interval 2, ended by {ended_by}; (finish_reason, stop_reason) by output",
        expected=expected,
        got=got,
        read=READ,
    )


@pytest.mark.points(1)
def test_each_completion_has_an_interval_of_its_own() -> None:
    processor = output_processor.OutputProcessor(TOKENIZER)
    params = SamplingParams(n=2, max_tokens=50, output_kind=DELTA, stream_interval=3)
    processor.add_request(EngineCoreRequest("r", [5, 6], params), "hi")
    got: list[tuple[int, str]] = []
    for step, character in enumerate("abcdefg"):
        ids = ["0_r", "1_r"] if step else ["0_r"]  # the second one starts a step later
        for request_id in ids:
            output = EngineCoreOutput(request_id, letters(TOKENIZER, character))
            for made in processor.process_outputs([output]).request_outputs:
                got += [(c.index, c.text) for c in made.outputs]
    expected = [(0, "a"), (1, "b"), (0, "bcd"), (1, "cde"), (0, "efg")]
    assert got == expected, lesson(
        "Completions of one request do not wait for one another.",
        case="n = 2, interval 3, the second completion starts a step later",
        expected=expected,
        got=got,
        read=READ,
    )


@pytest.mark.points(2)
def test_what_it_saves() -> None:
    """The measured effect: an answer of 256 tokens, one a step."""

    def cost(kind: RequestOutputKind, interval: int) -> tuple[int, int]:
        outputs = stream([1] * 256, output_kind=kind, stream_interval=interval)
        return len(outputs), sum(len(output.outputs[0].token_ids) for output in outputs)

    got = {(kind.name, n): cost(kind, n) for kind in (DELTA, CUMULATIVE) for n in (1, 8, 100)}
    expected = {
        ("DELTA", 1): (256, 256),
        ("DELTA", 8): (33, 256),
        ("DELTA", 100): (4, 256),
        ("CUMULATIVE", 1): (256, 256 * 257 // 2),
        ("CUMULATIVE", 8): (33, sum(range(1, 256, 8)) + 256),
        ("CUMULATIVE", 100): (4, 1 + 101 + 201 + 256),
    }
    assert got == expected, lesson(
        "With N = 8 an answer of 256 tokens takes 1 + 31 + 1 outputs instead of 256, and cumulative ones "
        "carry an eighth of the ids.",
        case="(kind, interval): (outputs, token ids carried)",
        expected=expected,
        got=got,
        read=READ,
    )
