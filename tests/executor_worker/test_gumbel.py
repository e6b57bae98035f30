"""Noise depends on (seed, position, token) and nothing else, and draws follow the distribution exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.executor_worker.sample import kernels
from learnvllm.executor_worker.sample.gumbel import mix64, request_seed, uniform
from tests.executor_worker.sampling import Bench


def draws(
    logits: np.ndarray, seeds: np.ndarray, positions: np.ndarray, top_k: int = 0, top_p: float = 1.0
) -> np.ndarray:
    """One draw a seed, all from the same logits [V]."""
    n = len(seeds)
    return kernels.sample(
        np.ascontiguousarray(logits[None], dtype=np.float32),
        np.zeros(n, np.int64),
        np.ones(n, np.float32),
        np.full(n, top_k, np.int32),
        np.full(n, top_p, np.float32),
        np.zeros(n, np.float32),
        seeds.astype(np.int64),
        positions.astype(np.int64),
    )


def chi_square(tokens: np.ndarray, probabilities: np.ndarray) -> float:
    """Standardised (roughly normal) chi-square statistic of draws against a distribution."""
    expected = probabilities * len(tokens)
    used = expected > 0
    assert set(np.unique(tokens)) <= set(np.flatnonzero(used))
    observed = np.bincount(tokens, minlength=len(probabilities))
    statistic = ((observed[used] - expected[used]) ** 2 / expected[used]).sum()
    freedom = used.sum() - 1
    return float((statistic - freedom) / np.sqrt(2 * freedom))


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


LOGITS = (1.2 * np.random.default_rng(5).standard_normal(40)).astype(np.float32)
N = 40_000


@pytest.mark.parametrize("vary", ["seed", "position", "both"])
def test_draws_follow_the_distribution(vary: str) -> None:
    """Neighbouring seeds and neighbouring positions are as good as independent."""
    count = np.arange(N)
    seeds = count if vary == "seed" else count % 200 if vary == "both" else np.full(N, 7)
    positions = count if vary == "position" else count // 200 if vary == "both" else np.full(N, 3)
    assert abs(chi_square(draws(LOGITS, seeds, positions), softmax(LOGITS))) < 4


def test_draws_follow_the_filtered_distribution() -> None:
    order = np.argsort(-LOGITS)
    kept = np.full(40, -np.inf, dtype=np.float32)
    kept[order[:6]] = LOGITS[order[:6]]
    assert abs(chi_square(draws(LOGITS, np.arange(N), np.zeros(N), top_k=6), softmax(kept))) < 4
    probabilities = softmax(LOGITS)
    size = int(np.searchsorted(np.cumsum(probabilities[order]), 0.8)) + 1
    kept[:] = -np.inf
    kept[order[:size]] = LOGITS[order[:size]]
    assert abs(chi_square(draws(LOGITS, np.arange(N), np.zeros(N), top_p=0.8), softmax(kept))) < 4


def test_draws_at_neighbouring_positions_are_independent() -> None:
    """Pairs of consecutive draws of the same request fall as the product of two distributions says."""
    logits = LOGITS[:6]
    seeds = np.arange(N)
    pairs = 6 * draws(logits, seeds, np.zeros(N)) + draws(logits, seeds, np.ones(N))
    product = np.outer(softmax(logits), softmax(logits)).ravel()
    assert abs(chi_square(pairs, product)) < 4


def test_draws_of_neighbouring_seeds_are_independent() -> None:
    logits = LOGITS[:6]
    pairs = 6 * draws(logits, 2 * np.arange(N), np.zeros(N)) + draws(
        logits, 2 * np.arange(N) + 1, np.zeros(N)
    )
    product = np.outer(softmax(logits), softmax(logits)).ravel()
    assert abs(chi_square(pairs, product)) < 4


def test_uniform_numbers_are_uniform_and_differ_between_tokens() -> None:
    numbers = uniform(torch.arange(50), torch.arange(50), 2000).flatten().numpy()
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert len(np.unique(numbers)) == len(numbers)
    bins = (numbers * 64).astype(int)
    assert abs(chi_square(bins, np.full(64, 1 / 64))) < 4
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.01


def test_mix64_is_splitmix64() -> None:
    """Reference values of SplitMix64 seeded with 0: mix64 of 1, 2, 3 times the golden gamma."""
    state = torch.tensor([1, 2, 3]) * (0x9E3779B97F4A7C15 - (1 << 64))
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [x & ((1 << 64) - 1) for x in mix64(state).tolist()] == expected


@pytest.mark.parametrize("use_kernels", [True, False])
@given(data=st.data())
def test_a_draw_does_not_depend_on_the_batch(use_kernels: bool, data: st.DataObject) -> None:
    """Alone, in any company, in any order, in any row: the same tokens."""
    n = data.draw(st.integers(2, 6))
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    steps = [rng.standard_normal((n, 30)).astype(np.float32) * 2 for _ in range(3)]
    params = [
        SamplingParams(
            seed=data.draw(st.one_of(st.none(), st.integers(0, 3))),
            temperature=data.draw(st.sampled_from([0.0, 0.8, 2.0])),
            top_p=data.draw(st.sampled_from([1.0, 0.7])),
            presence_penalty=data.draw(st.sampled_from([0.0, 1.0])),
        )
        for _ in range(n)
    ]

    def run(order: list[int]) -> dict[int, list[int]]:
        bench = Bench(30, use_kernels, engine_seed=11)
        rows = {i: bench.add(params[i], [1, 2], req_id=f"request {i}") for i in order}
        tokens: dict[int, list[int]] = {i: [] for i in order}
        for logits in steps:
            out = bench.sample(logits[order], [rows[i] for i in order]).token_ids.tolist()
            for i, token in zip(order, out):
                tokens[i].append(token)
        return tokens

    together = run(list(range(n)))
    some = data.draw(st.permutations(range(n)))[: data.draw(st.integers(1, n))]
    assert run(some) == {i: together[i] for i in some}


@pytest.mark.parametrize("use_kernels", [True, False])
def test_the_position_is_the_index_of_the_output_token(use_kernels: bool) -> None:
    """Whatever the length of the prompt; each step draws anew."""
    expected = draws(LOGITS, np.full(12, 77), np.arange(12)).tolist()
    assert len(set(expected)) > 4
    for prompt in ([1], [1, 2, 3, 4]):
        bench = Bench(40, use_kernels)
        bench.add(SamplingParams(seed=77), prompt)
        assert [int(bench.sample(LOGITS[None]).token_ids[0]) for _ in range(12)] == expected


def test_a_request_goes_on_after_a_preemption_as_if_nothing_had_happened() -> None:
    rng = np.random.default_rng(1)
    steps = [rng.standard_normal((1, 30)).astype(np.float32) * 2 for _ in range(8)]
    for params in (SamplingParams(seed=5, frequency_penalty=0.5), SamplingParams(presence_penalty=1.0)):
        bench = Bench(30)
        bench.add(params, [4, 5], req_id="a")
        whole = [int(bench.sample(logits).token_ids[0]) for logits in steps]
        bench = Bench(30)
        bench.add(params, [4, 5], req_id="a")
        first = [int(bench.sample(logits).token_ids[0]) for logits in steps[:3]]
        bench.requests.remove("a")
        bench.add(SamplingParams(seed=1), [9], req_id="b")  # takes the row
        row = bench.add(params, [4, 5], first, req_id="a")
        rest = [int(bench.sample(logits, [row]).token_ids[0]) for logits in steps[3:]]
        assert first + rest == whole


def test_requests_without_a_seed_get_different_ones_that_can_be_repeated() -> None:
    seeds = {request_seed(engine, f"cmpl-{i}") for engine in range(3) for i in range(100)}
    assert len(seeds) == 300
    assert request_seed(0, "a") == request_seed(0, "a")
    assert all(-(2**63) <= seed < 2**63 for seed in seeds)
