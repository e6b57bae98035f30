"""Logprobs as callers read them, and `n` completions as one request."""

import numpy as np
import pytest

from learnvllm.architecture.messages import EngineCoreRequest, LogprobsLists
from learnvllm.architecture.outputs import CompletionOutput
from learnvllm.architecture.sampling_params import RequestOutputKind, SamplingParams
from learnvllm.engine_core.logprobs import LogprobsProcessor
from learnvllm.engine_core.parallel_sampling import ParentRequest, fan_out
from tests.engine_core.parts import byte_fallback_tokenizer, byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()


def lists(rows: list[tuple[int, float, int, list[tuple[int, float]]]]) -> LogprobsLists:
    ids = [[token, *(t for t, _ in top)] for token, _, _, top in rows]
    values = [[value, *(v for _, v in top)] for _, value, _, top in rows]
    return LogprobsLists(
        np.array(ids, np.int32), np.array(values, np.float32), np.array([row[2] for row in rows], np.int32)
    )


def test_the_sampled_token_comes_first_with_its_own_rank() -> None:
    processor = LogprobsProcessor(TOKENIZER, SamplingParams(logprobs=2))
    processor.update(lists([(50, -3.0, 7, [(40, -0.25), (41, -1.0)])]), 1)
    assert processor.logprobs is not None
    entry = processor.logprobs[0]
    assert list(entry) == [50, 40, 41]
    assert [e.rank for e in entry.values()] == [7, 1, 2]
    assert [e.logprob for e in entry.values()] == [-3.0, -0.25, -1.0]
    assert entry[40].decoded_token == TOKENIZER.token_text(40)
    assert processor.cumulative_logprob == -3.0


def test_a_sampled_token_among_the_most_likely_is_listed_once() -> None:
    processor = LogprobsProcessor(TOKENIZER, SamplingParams(logprobs=2))
    processor.update(lists([(41, -1.0, 2, [(40, -0.25), (41, -1.0)])]), 1)
    assert processor.logprobs is not None
    assert {token: entry.rank for token, entry in processor.logprobs[0].items()} == {41: 2, 40: 1}


def test_zero_logprobs_means_the_sampled_token_only_and_none_means_none() -> None:
    zero = LogprobsProcessor(TOKENIZER, SamplingParams(logprobs=0))
    zero.update(lists([(50, -3.0, 7, [(40, -0.25)])]), 1)
    assert zero.logprobs is not None
    assert list(zero.logprobs[0]) == [50]
    none = LogprobsProcessor(TOKENIZER, SamplingParams())
    none.update(lists([(50, -3.0, 7, [])]), 1)
    assert none.logprobs is None
    assert none.cumulative_logprob is None


def test_prompt_logprobs_begin_with_none_and_come_in_chunks() -> None:
    processor = LogprobsProcessor(TOKENIZER, SamplingParams(prompt_logprobs=1))
    processor.update_prompt(lists([(5, -1.0, 3, [(6, -0.5)]), (6, -0.5, 1, [(6, -0.5)])]))
    processor.update_prompt(lists([(7, -2.0, 4, [(6, -0.5)])]))
    assert processor.prompt_logprobs is not None
    assert [entry and list(entry) for entry in processor.prompt_logprobs] == [None, [5, 6], [6], [7, 6]]


def test_token_texts_keep_their_spaces() -> None:
    tokenizer = byte_fallback_tokenizer()
    the = tokenizer.token_to_id("▁the")
    assert the is not None
    assert tokenizer.decode([the]) == "the"  # decoded alone, the space is lost
    assert tokenizer.token_text(the) == " the"
    assert TOKENIZER.token_text(TOKENIZER.encode(" the")[0]) == " the"
    assert TOKENIZER.token_text(2) == "<|im_end|>"


# ------------------------------------------------------------------------------------------------------- n


def test_children_differ_in_id_and_seed_only() -> None:
    request = EngineCoreRequest("r", [1, 2], SamplingParams(n=3, seed=10, prompt_logprobs=1, max_tokens=4))
    children = fan_out(request)
    assert [child.request_id for child, _, _ in children] == ["0_r", "1_r", "2_r"]
    assert [child.sampling_params.seed for child, _, _ in children] == [10, 11, 12]
    assert [child.sampling_params.n for child, _, _ in children] == [1, 1, 1]
    assert [child.sampling_params.prompt_logprobs for child, _, _ in children] == [1, None, None]
    assert len({id(parent) for _, parent, _ in children}) == 1


def test_the_largest_seed_still_has_a_successor() -> None:
    request = EngineCoreRequest("r", [1], SamplingParams(n=2, seed=2**63 - 1, max_tokens=1))
    seeds = [child.sampling_params.seed for child, _, _ in fan_out(request)]
    assert seeds == [2**63 - 1, -(2**63)]
    for child, _, _ in fan_out(request):
        child.sampling_params.verify()


def test_one_completion_needs_no_parent() -> None:
    request = EngineCoreRequest("r", [1, 2], SamplingParams(max_tokens=1))
    assert fan_out(request) == [(request, None, 0)]


def completion(index: int, finished: bool = True) -> CompletionOutput:
    return CompletionOutput(index, f"text{index}", [index], finish_reason="stop" if finished else None)


def test_final_outputs_come_together_in_order() -> None:
    parent = ParentRequest("r", SamplingParams(n=3, output_kind=RequestOutputKind.FINAL_ONLY))
    assert parent.add_output("2_r", completion(2)) == ([], False)
    assert parent.add_output("0_r", completion(0)) == ([], False)
    outputs, finished = parent.add_output("1_r", completion(1))
    assert finished
    assert [output.index for output in outputs] == [0, 1, 2]


@pytest.mark.parametrize("kind", [RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE])
def test_streamed_outputs_are_handed_on_at_once(kind: RequestOutputKind) -> None:
    parent = ParentRequest("r", SamplingParams(n=2, output_kind=kind))
    assert parent.add_output("1_r", completion(1, finished=False)) == ([completion(1, finished=False)], False)
    assert parent.add_output("0_r", completion(0))[1] is False
    assert parent.add_output("1_r", completion(1))[1] is True
