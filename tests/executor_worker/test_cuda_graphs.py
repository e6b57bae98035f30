"""Which batches are replayed, padded to what; and that a recorder freezes what a CUDA graph freezes."""

from __future__ import annotations

import pytest
import torch

from learnvllm.executor_worker.device.cuda_graphs import (
    CudaGraphManager,
    GraphKey,
    GraphSupport,
    decode_sizes,
    needed_support,
    weakest,
)
from learnvllm.executor_worker.device.graph_recorder import RecorderBackend

NEVER, SINGLE, UNIFORM, ALWAYS = GraphSupport


@pytest.mark.parametrize(
    ("components", "support", "decides"),
    [
        ({"attention": ALWAYS, "sampler": ALWAYS}, ALWAYS, "attention"),
        ({"attention": UNIFORM, "sampler": ALWAYS}, UNIFORM, "attention"),
        ({"attention": UNIFORM, "sampler": SINGLE}, SINGLE, "sampler"),
        ({"attention": SINGLE, "sampler": NEVER, "moe": ALWAYS}, NEVER, "sampler"),
    ],
)
def test_the_weakest_component_decides(components, support, decides) -> None:
    assert weakest(components) == (support, decides)


@pytest.mark.parametrize(
    ("num_reqs", "num_tokens", "max_query_len", "needed"),
    [(1, 1, 1, SINGLE), (8, 8, 1, SINGLE), (4, 12, 3, UNIFORM), (1, 500, 500, UNIFORM), (4, 12, 9, ALWAYS)],
)
def test_what_a_batch_needs(num_reqs, num_tokens, max_query_len, needed) -> None:
    assert needed_support(num_reqs, num_tokens, max_query_len) == needed


def test_sizes_grow_and_end_with_the_largest_batch() -> None:
    assert decode_sizes(1) == [1]
    assert decode_sizes(6) == [1, 2, 4, 6]
    assert decode_sizes(20) == [1, 2, 4, 8, 16, 20]
    sizes = decode_sizes(300)
    assert sizes == sorted(set(sizes))
    assert sizes[-3:] == [272, 288, 300]


def manager(support: GraphSupport, max_reqs: int = 20, backend=RecorderBackend) -> CudaGraphManager:
    graphs = CudaGraphManager(backend and backend(), {"attention": support}, max_reqs, 100, lambda key: None)
    graphs.capture()
    return graphs


def test_a_decode_is_padded_to_the_next_size() -> None:
    keys = [manager(SINGLE).dispatch(n, n, 1, samples_all=True) for n in range(1, 22)]
    sizes = [1, 2, 4, 4, *[8] * 4, *[16] * 8, *[20] * 4]
    assert keys == [*(GraphKey(n, n, 1) for n in sizes), None]


@pytest.mark.parametrize("support", [SINGLE, UNIFORM])
def test_what_was_not_captured_runs_as_it_is(support) -> None:
    graphs = manager(support)
    assert graphs.dispatch(4, 12, 3, samples_all=True) is None
    assert graphs.dispatch(4, 12, 9, samples_all=True) is None
    assert graphs.dispatch(4, 4, 1, samples_all=False) is None  # a prompt's last piece but one, of one token


def test_a_mixed_batch_is_padded_in_tokens_and_requests() -> None:
    graphs = manager(ALWAYS)
    assert graphs.dispatch(4, 12, 9, samples_all=True) == GraphKey(8, 16, 16)
    assert graphs.dispatch(4, 4, 1, samples_all=False) == GraphKey(8, 16, 16)
    assert graphs.dispatch(1, 64, 64, samples_all=True) == GraphKey(8, 64, 64)
    assert graphs.dispatch(8, 65, 9, samples_all=True) == GraphKey(21, 96, 96)  # one is needed for padding
    assert graphs.dispatch(20, 65, 9, samples_all=True) == GraphKey(21, 96, 96)
    assert graphs.dispatch(1, 97, 97, samples_all=True) == GraphKey(8, 100, 100)
    assert graphs.dispatch(1, 101, 101, samples_all=True) is None
    assert graphs.dispatch(3, 3, 1, samples_all=True) == GraphKey(4, 4, 1)


def test_never_and_no_backend_capture_nothing_and_say_why() -> None:
    never, none = manager(NEVER), manager(SINGLE, backend=None)
    assert never.dispatch(1, 1, 1, samples_all=True) is none.dispatch(1, 1, 1, samples_all=True) is None
    assert never.explain() == "none: attention cannot be captured."
    assert "enforce-eager" in none.explain()
    assert manager(ALWAYS).explain() == "6 of decodes and 10 of mixed batches; attention allows ALWAYS."


def test_the_recorder_replays_operators_over_the_same_memory() -> None:
    x, y, scale = torch.zeros(3), torch.zeros(3), 2.0

    def step() -> None:
        y.copy_((x * scale + 1).view(3).relu())

    replay = RecorderBackend().capture(step)
    x.copy_(torch.tensor([1.0, -5.0, 3.0]))
    scale = 100.0  # Python does not run again: the 2 is frozen
    replay()
    assert y.tolist() == [3.0, 0.0, 7.0]


@pytest.mark.parametrize("ask", [lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: x.nonzero()])
def test_asking_for_a_value_while_recording_is_an_error(ask) -> None:
    with pytest.raises(RuntimeError, match="asks the device for a value"):
        RecorderBackend().capture(lambda: ask(torch.ones(3)))
