"""Each sampling parameter does what its definition says; transformers and plain loops are the oracles."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation import logits_process as hf

from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.executor_worker.sample import kernels, torch_ref
from learnvllm.executor_worker.sample.logprob import compute_logprobs
from tests.executor_worker.sampling import GREEDY, Bench

both = pytest.mark.parametrize("use_kernels", [True, False], ids=["kernels", "torch"])
RNG = np.random.default_rng(0)
NAN, INF = float("nan"), float("inf")


def random_logits(rows: int, vocab: int = 50, scale: float = 3.0) -> np.ndarray:
    return (scale * RNG.standard_normal((rows, vocab))).astype(np.float32)


# ---------------------------------------------------------------------------------------- greedy, temperature


@both
def test_greedy_takes_the_most_likely_token_and_of_equals_the_first(use_kernels: bool) -> None:
    bench = Bench(4, use_kernels)
    bench.add(GREEDY)
    bench.add(GREEDY)
    assert bench.sample([[0, 3, 1, 3], [5, 1, 5, 0]]).token_ids.tolist() == [1, 0]


@both
@pytest.mark.parametrize("temperature", [0.0, 1e-6, 9e-6])
def test_temperature_near_zero_is_greedy(use_kernels: bool, temperature: float) -> None:
    """Fault 44: temperature 0 is greedy decoding, not a division by zero."""
    logits = random_logits(8)
    bench = Bench(50, use_kernels)
    for _ in logits:
        bench.add(SamplingParams(temperature=temperature))
    assert bench.sample(logits).token_ids.tolist() == logits.argmax(-1).tolist()


@both
def test_a_very_low_temperature_above_that_is_as_good_as_greedy(use_kernels: bool) -> None:
    logits = random_logits(8)
    bench = Bench(50, use_kernels)
    for _ in logits:
        bench.add(SamplingParams(temperature=1e-4))
    assert bench.sample(logits).token_ids.tolist() == logits.argmax(-1).tolist()


@both
def test_greedy_and_random_rows_mix(use_kernels: bool) -> None:
    logits = random_logits(6)
    mixed, alone = Bench(50, use_kernels), Bench(50, use_kernels)
    for i in range(6):
        params = GREEDY if i % 2 else SamplingParams(seed=i)
        mixed.add(params)
        alone.add(params)
    together = mixed.sample(logits).token_ids
    assert together[1::2].tolist() == logits[1::2].argmax(-1).tolist()
    for i in range(6):
        assert alone.sample(logits[i : i + 1], [i]).token_ids[0] == together[i]


# ------------------------------------------------------------------------------------------------ the filters


def weights_of(logits: np.ndarray, **given: float) -> np.ndarray:
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | given
    n = len(logits)
    tensors = [torch.full((n,), values[k], dtype=torch.float32) for k in ("temperature", "top_p", "min_p")]
    top_k = torch.full((n,), int(values["top_k"]))
    return torch_ref.filtered_weights(
        torch.from_numpy(logits), tensors[0], top_k, tensors[1], tensors[2]
    ).numpy()


@pytest.mark.parametrize(
    ("given", "warper"),
    [
        ({"temperature": 0.7}, hf.TemperatureLogitsWarper(0.7)),
        ({"top_k": 5}, hf.TopKLogitsWarper(5)),
        ({"top_k": 500}, hf.TopKLogitsWarper(50)),
        ({"top_p": 0.8}, hf.TopPLogitsWarper(0.8)),
        ({"top_p": 0.05}, hf.TopPLogitsWarper(0.05)),
        ({"min_p": 0.1}, hf.MinPLogitsWarper(0.1)),
    ],
)
def test_each_filter_equals_transformers(given: dict[str, float], warper: hf.LogitsProcessor) -> None:
    logits = random_logits(40)
    theirs = warper(torch.zeros(40, 1, dtype=torch.long), torch.from_numpy(logits)).softmax(-1).numpy()
    ours = weights_of(logits, **given)
    np.testing.assert_allclose(ours / ours.sum(-1, keepdims=True), theirs, atol=1e-6)


def test_filters_come_in_vllms_order() -> None:
    """temperature, min-p, top-k, then top-p over what top-k left."""
    logits = np.log(np.array([[0.4, 0.3, 0.2, 0.08, 0.02]], dtype=np.float32))
    kept = weights_of(logits, top_k=3, top_p=0.75) > 0  # of 0.9: 0.444, 0.333, 0.222
    assert kept.tolist() == [[True, True, False, False, False]]
    kept = weights_of(logits, top_p=0.75) > 0  # of 1.0: 0.4 + 0.3 do not reach 0.75
    assert kept.tolist() == [[True, True, True, False, False]]
    kept = weights_of(logits, min_p=0.6, top_p=0.99) > 0
    assert kept.tolist() == [[True, True, False, False, False]]
    kept = weights_of(logits, temperature=0.1, top_p=0.9) > 0  # the cut sees the sharpened distribution
    assert kept.tolist() == [[True, False, False, False, False]]


def test_tokens_as_likely_as_the_kth_stay() -> None:
    assert (weights_of(np.array([[1.0, 2.0, 2.0, 2.0, 0.0]], dtype=np.float32), top_k=2) > 0).tolist() == [
        [False, True, True, True, False]
    ]


def test_of_equally_likely_tokens_top_p_keeps_those_with_the_lower_ids() -> None:
    assert (weights_of(np.zeros((1, 8), dtype=np.float32), top_p=0.5) > 0).tolist() == [
        [True] * 4 + [False] * 4
    ]


@st.composite
def sampling_problems(draw: st.DrawFn) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    rows, vocab = draw(st.integers(1, 6)), draw(st.integers(1, 300))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    logits = rng.standard_normal((rows, vocab)) * draw(st.sampled_from([0.0, 0.1, 3.0, 30.0]))
    if draw(st.booleans()):  # many equal values
        logits = np.round(logits)
    logits[rng.random(logits.shape) < draw(st.sampled_from([0.0, 0.3]))] = -np.inf
    given = {
        "temperature": rng.choice([0.01, 0.3, 1.0, 5.0], rows).astype(np.float32),
        "top_k": rng.choice([0, 1, 2, 7, 50, 1000], rows).astype(np.int32),
        "top_p": rng.choice([1e-6, 0.1, 0.5, 0.9, 0.999, 1.0], rows).astype(np.float32),
        "min_p": rng.choice([0.0, 0.01, 0.2, 1.0], rows).astype(np.float32),
        "seeds": rng.integers(-(2**63), 2**63 - 1, rows),
        "positions": rng.integers(0, 5000, rows),
    }
    return logits.astype(np.float32), given


@given(sampling_problems())
def test_the_kernel_equals_its_torch_twin(problem: tuple[np.ndarray, dict[str, np.ndarray]]) -> None:
    logits, given = problem
    ours = kernels.sample(logits, np.arange(len(logits)), **given)
    twin = torch_ref.sample(torch.from_numpy(logits), **{k: torch.from_numpy(v) for k, v in given.items()})
    assert ours.tolist() == twin.tolist()


def test_the_kernel_equals_its_torch_twin_on_a_real_vocabulary() -> None:
    logits, n = random_logits(12, 49152), 12
    for top_k, top_p, min_p in ((0, 1.0, 0.0), (0, 0.95, 0.0), (50, 1.0, 0.0), (1000, 0.7, 0.001)):
        given = {
            "temperature": np.full(n, 1.2, np.float32),
            "top_k": np.full(n, top_k, np.int32),
            "top_p": np.full(n, top_p, np.float32),
            "min_p": np.full(n, min_p, np.float32),
            "seeds": np.arange(n),
            "positions": np.arange(n) % 5,
        }
        twin = torch_ref.sample(
            torch.from_numpy(logits), **{k: torch.from_numpy(v) for k, v in given.items()}
        )
        assert kernels.sample(logits, np.arange(n), **given).tolist() == twin.tolist()


def test_the_kernel_refuses_arrays_it_would_misread() -> None:
    logits = random_logits(2)
    given = {
        "temperature": np.ones(2, np.float32),
        "top_k": np.zeros(2, np.int32),
        "top_p": np.ones(2, np.float32),
        "min_p": np.zeros(2, np.float32),
        "seeds": np.zeros(2, np.int64),
        "positions": np.zeros(2, np.int64),
    }
    for name, wrong in (("temperature", np.ones(2)), ("top_k", np.zeros(3, np.int32)), ("seeds", [1, 2])):
        with pytest.raises((TypeError, AttributeError)):
            kernels.sample(logits, np.arange(2), **(given | {name: wrong}))
    with pytest.raises(TypeError, match="contiguous"):
        kernels.sample(logits[:, ::2], np.arange(2), **given)


# -------------------------------------------------------------------------------------------------- penalties


def penalized_by_a_plain_loop(
    logits: np.ndarray, prompt: list[int], output: list[int], params: SamplingParams
) -> list[float]:
    result = []
    for token, logit in enumerate(logits.tolist()):
        if token in prompt or token in output:
            r = params.repetition_penalty
            logit = logit / r if logit > 0 else logit * r
        logit -= params.frequency_penalty * output.count(token)
        logit -= params.presence_penalty * (token in output)
        result.append(logit)
    return result


@both
@given(data=st.data())
def test_penalties_equal_their_definition(use_kernels: bool, data: st.DataObject) -> None:
    params = SamplingParams(
        temperature=0.0,
        repetition_penalty=data.draw(st.sampled_from([1.0, 1.3, 0.7])),
        frequency_penalty=data.draw(st.sampled_from([0.0, 0.5, -1.5])),
        presence_penalty=data.draw(st.sampled_from([0.0, 2.0, -0.25])),
    )
    tokens = st.lists(st.integers(0, 19), max_size=12)
    prompt, output = data.draw(tokens.filter(bool)), data.draw(tokens)
    logits = np.random.default_rng(data.draw(st.integers(0, 999))).standard_normal(20).astype(np.float32)
    bench = Bench(20, use_kernels)
    bench.add(GREEDY)
    row = bench.add(params, prompt, output)
    np.testing.assert_allclose(
        bench.adjusted(logits, row),
        penalized_by_a_plain_loop(logits, prompt, output, params),
        rtol=1e-5,
        atol=1e-6,
    )


@both
def test_repetition_penalty_equals_transformers(use_kernels: bool) -> None:
    logits = random_logits(1)[0]
    bench = Bench(50, use_kernels)
    row = bench.add(SamplingParams(temperature=0.0, repetition_penalty=1.4), [3, 4, 4], [9, 3])
    theirs = hf.RepetitionPenaltyLogitsProcessor(1.4)(
        torch.tensor([[3, 4, 4, 9, 3]]), torch.from_numpy(logits)[None]
    )
    np.testing.assert_allclose(bench.adjusted(logits, row), theirs[0].numpy(), rtol=1e-6)


@both
def test_tokens_sampled_step_by_step_are_counted(use_kernels: bool) -> None:
    bench = Bench(5, use_kernels)
    bench.add(SamplingParams(temperature=0.0, frequency_penalty=1.0), [1])
    row = [[0.0, 2.1, 2.0, 0.5, 0.0]]
    # 2.1 | 1.1 2.0 | 1.1 1.0 | 0.1 1.0 | 0.1 0.0 0.5
    assert [bench.sample(row).token_ids[0] for _ in range(5)] == [1, 2, 1, 2, 3]


@both
def test_counts_start_anew_with_a_new_request_in_the_row(use_kernels: bool) -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=1.5, frequency_penalty=1.0)
    logits = random_logits(1, 6)[0]
    bench = Bench(6, use_kernels, max_rows=1)
    bench.add(params, [1, 2], [3, 3, 4], req_id="first")
    bench.requests.remove("first")
    row = bench.add(params, [0], [5], req_id="second")
    expected = penalized_by_a_plain_loop(logits, [0], [5], params)
    np.testing.assert_allclose(bench.adjusted(logits, row), expected, rtol=1e-5, atol=1e-6)


@both
def test_a_forbidden_token_stays_forbidden_under_penalties(use_kernels: bool) -> None:
    bench = Bench(4, use_kernels)
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0, frequency_penalty=-2.0, min_tokens=9)
    row = bench.add(params, [2], [2, 2])
    assert bench.adjusted([1.0, 1.0, 1.0, 1.0], row)[2] == -INF


# ------------------------------------------------------------------------------------------------------ rules


@both
def test_logit_bias_is_added(use_kernels: bool) -> None:
    bench = Bench(4, use_kernels)
    row = bench.add(SamplingParams(temperature=0.0, logit_bias={1: 2.5, 3: -100}))
    assert bench.adjusted([1.0, 2.0, 3.0, 4.0], row).tolist() == [1.0, 4.5, 3.0, -96.0]
    assert bench.sample([[1.0, 2.0, 3.0, 4.0]]).token_ids.tolist() == [1]


@both
def test_min_tokens_forbids_every_stop_token_until_reached(use_kernels: bool) -> None:
    bench = Bench(8, use_kernels)
    bench.add(SamplingParams(temperature=0.0, min_tokens=2, stop_token_ids=[5, 6]), eos=(2, 3))
    logits = [[0, 1, 9, 8, 2, 7, 6, 3]]  # 2 and 3 end it, and so do 5 and 6
    assert [bench.sample(logits).token_ids[0] for _ in range(3)] == [7, 7, 2]


@both
def test_bad_words_forbid_the_token_that_would_complete_them(use_kernels: bool) -> None:
    bench = Bench(8, use_kernels)
    words = [[4], [5, 6], [1, 2, 3]]
    row = bench.add(SamplingParams(temperature=0.0, bad_words_token_ids=words), [5], [])

    def forbidden(output: list[int]) -> list[int]:
        logits = torch.zeros(1, 8)
        bench.states.bad_words.apply(logits, 0, row, np.array(output, dtype=np.int32))
        return torch.nonzero(logits[0] == -INF).flatten().tolist()

    assert forbidden([]) == [4]  # [5, 6] began in the prompt, which does not count
    assert forbidden([5]) == [4, 6]
    assert forbidden([2]) == [4]  # shorter than the prefix of [1, 2, 3]
    assert forbidden([5, 1, 2]) == [3, 4]
    assert forbidden([1, 2, 5]) == [4, 6]


@given(data=st.data())
def test_bad_words_equal_transformers_over_the_output(data: st.DataObject) -> None:
    words = data.draw(st.lists(st.lists(st.integers(3, 7), min_size=1, max_size=3), min_size=1, max_size=4))
    output = data.draw(st.lists(st.integers(3, 7), min_size=1, max_size=6))
    bench = Bench(8)
    row = bench.add(SamplingParams(temperature=0.0, bad_words_token_ids=words), [0], output)
    logits = np.zeros(8, dtype=np.float32)
    theirs = hf.NoBadWordsLogitsProcessor(words, eos_token_id=None)(torch.tensor([output]), torch.zeros(1, 8))
    assert bench.adjusted(logits, row).tolist() == theirs[0].tolist()


# --------------------------------------------------------------------------------------------------- logprobs


@both
def test_logprobs_are_of_the_raw_distribution(use_kernels: bool) -> None:
    logits = random_logits(3)
    bench = Bench(50, use_kernels)
    params = SamplingParams(temperature=0.5, seed=1, logprobs=4, repetition_penalty=1.5, logit_bias={7: 20.0})
    for _ in logits:
        bench.add(params, [1, 2], [3])
    output = bench.sample(logits)
    expected = torch.from_numpy(logits).log_softmax(-1).numpy()
    for i, token in enumerate(output.token_ids.tolist()):
        row = output.logprobs[i]
        best = np.argsort(-expected[i])[:4]
        assert row.token_ids.tolist() == [[token, *best]]
        np.testing.assert_allclose(row.logprobs[0], expected[i][[token, *best]], atol=1e-5)
        assert row.ranks.tolist() == [1 + int((expected[i] > expected[i][token]).sum())]


@given(data=st.data())
def test_the_logprob_kernel_equals_torch(data: st.DataObject) -> None:
    rows, vocab = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 200))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    logits = torch.from_numpy(
        (rng.permuted(np.tile(np.arange(vocab), (rows, 1)), axis=1) / 7).astype(np.float32)
    )
    chosen, num_top = rng.integers(0, vocab, rows), data.draw(st.integers(0, 25))
    ours = compute_logprobs(logits, chosen, num_top, use_kernels=True)
    theirs = compute_logprobs(logits, chosen, num_top)
    assert ours.token_ids.tolist() == theirs.token_ids.tolist()
    assert ours.ranks.tolist() == theirs.ranks.tolist()
    np.testing.assert_allclose(ours.logprobs, theirs.logprobs, atol=2e-5)
    assert [a.dtype for a in ours] == [a.dtype for a in theirs]


def test_the_logprob_kernel_lists_equally_likely_tokens_by_id() -> None:
    lists = compute_logprobs(torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]]), np.array([4]), 3, use_kernels=True)
    assert lists.token_ids.tolist() == [[4, 1, 2, 3]]


def test_only_requests_that_asked_get_logprobs_and_as_many_as_they_asked_for() -> None:
    bench = Bench(50)
    for k in (None, 0, 3, None, 5):
        bench.add(SamplingParams(temperature=0.0, logprobs=k))
    output = bench.sample(random_logits(5))
    assert {i: row.token_ids.shape for i, row in output.logprobs.items()} == {1: (1, 1), 2: (1, 4), 4: (1, 6)}
    assert all(row.ranks.tolist() == [1] for row in output.logprobs.values())


def test_ranks_of_equally_likely_tokens_are_the_same() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0]] * 4)
    assert compute_logprobs(logits, np.array([0, 1, 2, 3]), 0).ranks.tolist() == [4, 1, 1, 3]


# ----------------------------------------------------------------------------------------- numbers gone wrong


@both
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(seed=3), SamplingParams(seed=3, top_p=0.5)])
def test_a_row_of_nans_does_not_hurt_the_others(use_kernels: bool, params: SamplingParams) -> None:
    logits = random_logits(3, 6)
    clean, broken = Bench(6, use_kernels), Bench(6, use_kernels)
    for _ in range(3):
        clean.add(params)
        broken.add(params)
    expected = clean.sample(logits).token_ids
    with_nans = logits.copy()
    with_nans[1] = [0.0, NAN, 2.0, NAN, 1.0, -NAN]
    output = broken.sample(with_nans)
    assert output.nan_counts == {1: 3}
    assert output.token_ids.tolist() == [expected[0], 2, expected[2]]
    assert clean.sample(logits).nan_counts == {}


@both
@pytest.mark.parametrize(
    "params", [GREEDY, SamplingParams(seed=3), SamplingParams(seed=3, top_k=2, top_p=0.5)]
)
@pytest.mark.parametrize(
    ("row", "expected"),
    [([-INF] * 4, 0), ([1.0, INF, 2.0, INF], 1), ([-INF, -INF, 0.0, -INF], 2), ([NAN] * 4, 0)],
)
def test_infinite_logits_give_a_valid_token(
    use_kernels: bool, params: SamplingParams, row: list[float], expected: int
) -> None:
    bench = Bench(4, use_kernels)
    bench.add(params)
    assert bench.sample([row]).token_ids.tolist() == [expected]


@both
def test_a_vocabulary_of_one(use_kernels: bool) -> None:
    bench = Bench(1, use_kernels)
    bench.add(SamplingParams(seed=0, top_p=0.5, top_k=3))
    output = bench.sample([[math.pi]])
    assert output.token_ids.tolist() == [0]


@both
def test_a_top_k_above_the_vocabulary_keeps_all_of_it(use_kernels: bool) -> None:
    bench = Bench(50, use_kernels)
    bench.add(SamplingParams(seed=0, top_k=10**9))
    assert bench.states.top_k[0] == 50
