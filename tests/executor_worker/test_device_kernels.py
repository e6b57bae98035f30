"""The Triton kernels that build inputs and sample do what their torch twins do (no GPU: interpreted)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from learnvllm.executor_worker.device.inputs import StepInputs, StepNumbers
from learnvllm.executor_worker.device.rows import DeviceRows
from learnvllm.executor_worker.device.sampling import DeviceSampler
from learnvllm.kv_cache.interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor

pytest.importorskip("triton", reason="triton is not installed")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCAB = 5000


def make_inputs(use_triton: bool) -> StepInputs:
    """Rows 0 to 3 of five, two groups of other block sizes; requests 2, 0, 3 and two of padding in the step:
    a decode, a prompt whose end it computes, a piece of a prompt."""
    groups = tuple(
        KVCacheGroupSpec((f"layers.{i}",), FullAttentionSpec(size, 1, 8, "float32"))
        for i, size in enumerate((4, 16))
    )
    config = KVCacheConfig(64, 4, groups, tuple(KVCacheTensor((f"layers.{i}",)) for i in range(2)))
    rows = DeviceRows(config, 6, 700, DEVICE)
    rng = np.random.default_rng(0)
    for row, (known, temperature) in enumerate([(600, 0.0), (3, 1.0), (40, 0.7), (650, 1.5), (9, 0.0)]):
        rows.add_request(row, rng.integers(0, VOCAB, known).tolist(), min(known, 30), row - 2, temperature)
        rows.append_blocks(row, (rng.integers(1, 64, 170).tolist(), rng.integers(1, 64, 43).tolist()))
    inputs = StepInputs(rows, 1024, use_triton)
    spare = rows.spare_row
    starts = np.array([0, 1, 601, 901, 902, 903])
    inputs.send(
        StepNumbers(np.array([2, 0, 3, spare, spare]), starts, np.array([39, 0, 300, 0, 0]), np.array([0, 1]))
    )
    return inputs


def test_inputs_are_built_alike() -> None:
    twin, kernel = make_inputs(False), make_inputs(True)
    for inputs in (twin, kernel):
        inputs.prepare(5, 903, 2)
    assert twin.seq_lens[:5].tolist() == [40, 600, 600, 0, 0]
    assert twin.logits_indices[:2].tolist() == [0, 600]
    assert twin.slots[0, 901:903].tolist() == [-1, -1]
    for name in ("input_ids", "positions", "slots", "seq_lens", "logits_indices"):
        assert torch.equal(getattr(twin, name), getattr(kernel, name)), name
    for group, size in enumerate((4, 16)):
        for request, length in enumerate((40, 600, 600)):
            used = -(-length // size)
            tables = [inputs.block_tables[group, request, :used] for inputs in (twin, kernel)]
            assert torch.equal(*tables)


@pytest.mark.parametrize("special", [False, True])
def test_tokens_are_chosen_and_stored_alike(special: bool) -> None:
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(3)).to(DEVICE) * 3
    if special:
        logits[0, 17], logits[0, 4999] = float("nan"), float("-inf")
        logits[1] = float("-inf")
    found = []
    for use_triton in (False, True):
        inputs = make_inputs(use_triton)
        inputs.prepare(5, 903, 2)
        sampler = DeviceSampler(inputs, VOCAB)
        sampler.sample(logits.clone())
        found.append((sampler.chosen[:, :2].tolist(), inputs.rows.arena.tolist()))
    if special:  # a row with a NaN means nothing, and both say so
        assert found[0][0][1] == found[1][0][1] == [1, 0]
        assert found[0][0][0][1] == found[1][0][0][1] == 0
    else:
        assert found[0] == found[1]
        assert found[0][0][0][1] == int(logits[1].argmax())


def test_draws_follow_the_distribution() -> None:
    """20,000 draws of one row, each at its own position in a request, by the kernel's noise."""
    from learnvllm.executor_worker.device.sampling_kernel import sample

    draws = 20_000 if DEVICE.type == "cuda" else 300
    rows = make_inputs(True).rows
    weights = torch.tensor([8.0, 4.0, 2.0, 1.0, 1.0], device=DEVICE)
    counts = torch.zeros(5)
    inputs = StepInputs(rows, 1024, True)
    sampler = DeviceSampler(inputs, 5)
    rows.temperature.fill_(1.0)
    logits = weights.log().expand(6, 5).contiguous()
    inputs.row[:6] = torch.arange(6, dtype=torch.int32)
    inputs.sampling[:6] = torch.arange(6, dtype=torch.int32)
    for first in range(0, draws, 6):
        inputs.seq_lens[:6] = 30 + first // 6 % 600
        rows.seeds[:6] = torch.arange(6) + first // 3600 * 6
        sample(sampler, logits)
        counts += torch.bincount(sampler.chosen[0, :6].cpu(), minlength=5)
    expected = weights.cpu() / 16 * counts.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 23  # chi-square, 4 degrees of freedom: p > 1e-4
