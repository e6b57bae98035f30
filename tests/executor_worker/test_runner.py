"""Whatever the schedule, a request's tokens are those of plain greedy decoding, one request at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.architecture.step import CachedRequestData, NewRequestData, SchedulerOutput
from learnvllm.executor_worker.device import inputs
from learnvllm.executor_worker.input_batch import InputBatch
from learnvllm.executor_worker.model_state import DefaultModelState, ModelInputs
from tests.executor_worker.configs import make_config
from tests.executor_worker.driver import Driver
from tests.executor_worker.fake_model import greedy


@pytest.fixture(scope="module", params=["simple", "device"], autouse=True)
def runner(request: pytest.FixtureRequest) -> Iterator[str]:
    """Both runners keep every promise below; the device-resident one here with its torch twins on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEARNVLLM_MODEL_RUNNER", request.param)
        yield request.param


HYBRID = ("full_attention", "sliding_attention")
PROMPT = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20]


def check(driver: Driver) -> None:
    for request in driver.requests.values():
        assert request.output == greedy(request.prompt, len(request.output), driver.config), request.req_id


def test_one_request_decodes_greedily() -> None:
    driver = Driver(make_config())
    driver.add("a", PROMPT)
    driver.decode(20)
    assert len(driver.requests["a"].output) == 20
    check(driver)


@pytest.mark.parametrize("block_size", [1, 4, 8, 32])
@pytest.mark.parametrize("layer_types", [("full_attention",) * 2, HYBRID])
@pytest.mark.parametrize("chunk", [1, 3, 4, 10])
def test_chunked_prefill_gives_the_same_tokens(
    block_size: int, layer_types: tuple[str, ...], chunk: int
) -> None:
    driver = Driver(make_config(block_size=block_size, layer_types=layer_types))
    request = driver.add("a", PROMPT)
    while request.remaining > 1 or not request.output:
        output = driver.step({"a": min(chunk, request.remaining)})
        assert bool(output.sampled_token_ids[0]) == (request.computed == len(PROMPT))
    driver.decode(6)
    check(driver)


def test_positions_slots_and_lengths_of_a_mixed_step() -> None:
    """Two decodes and a prefill chunk in one step: the attention sees chunk lengths, not full lengths (fault
    31)."""
    driver = Driver(make_config(block_size=4))
    driver.add("a", [5] * 6)
    driver.add("b", [6] * 3)
    driver.decode(1)
    driver.add("c", PROMPT)
    driver.step({"c": 5})
    seen = {}
    forward = driver.runner.model.forward

    def spy(input_ids, positions, ctx):  # type: ignore[no-untyped-def]
        seen.update(positions=positions.tolist(), meta=ctx.metadata["layers.0"])
        return forward(input_ids, positions, ctx)

    driver.runner.model.forward = spy  # type: ignore[method-assign]
    driver.step({"b": 1, "c": 4, "a": 1})
    assert seen["positions"] == [3, 5, 6, 7, 8, 6]
    meta = seen["meta"]
    assert meta.query_start_loc.tolist() == [0, 1, 5, 6]
    assert meta.seq_lens.tolist() == [4, 9, 7]
    blocks = {r: driver.requests[r].blocks[0] for r in "abc"}
    expected = [(r, p) for r, ps in (("b", [3]), ("c", [5, 6, 7, 8]), ("a", [6])) for p in ps]
    assert meta.slot_mapping.tolist() == [blocks[r][p // 4] * 4 + p % 4 for r, p in expected]
    assert meta.block_table.shape == (3, 3)
    assert meta.block_table[1].tolist() == blocks["c"]


def test_logits_are_computed_only_where_a_token_is_sampled() -> None:
    driver = Driver(make_config())
    driver.add("a", PROMPT)
    driver.add("b", PROMPT[:4])
    model = driver.runner.model
    driver.step({"a": 6, "b": 4})
    driver.step({"a": 4, "b": 1})
    assert model.forward_shapes == [10, 5]  # type: ignore[attr-defined]
    assert model.logit_rows == [1, 2]  # type: ignore[attr-defined]


def test_a_step_in_which_no_request_is_sampled() -> None:
    driver = Driver(make_config())
    driver.add("a", PROMPT)
    output = driver.step({"a": 3})
    assert output.sampled_token_ids == [[]]
    driver.step({"a": 7})
    check(driver)


def test_a_step_without_tokens_only_forgets() -> None:
    driver = Driver(make_config())
    driver.add("a", PROMPT)
    driver.decode(2)
    driver.finish("a")
    output = driver.step({})
    assert output.req_ids == []
    assert driver.runner.states.row_of == {}
    assert len(driver.runner.model.forward_shapes) == 2  # type: ignore[attr-defined]


def test_a_preempted_request_comes_back_as_new_and_goes_on() -> None:
    driver = Driver(make_config())
    driver.add("a", PROMPT)
    driver.add("b", PROMPT[:3])
    driver.decode(5)
    driver.preempt("a")
    driver.step({"b": 1})
    assert "a" not in driver.runner.states.row_of
    driver.add("c", [30, 31])
    driver.step({"c": 2, "b": 1})  # c takes a's row
    driver.step({"a": 6, "b": 1, "c": 1})
    driver.step({"a": 9})
    driver.decode(3)
    check(driver)


def test_preempted_and_rescheduled_in_the_same_step() -> None:
    driver = Driver(make_config())
    driver.add("a", PROMPT)
    driver.decode(3)
    driver.preempt("a")
    driver.decode(3)
    check(driver)


def test_finished_and_added_again_under_the_same_id_in_one_step() -> None:
    driver = Driver(make_config())
    driver.add("a", PROMPT)
    driver.decode(3)
    driver.finish("a")
    driver.add("a", [40, 41, 42])
    driver.decode(3)
    check(driver)


def test_forgetting_an_unknown_request_is_no_error() -> None:
    driver = Driver(make_config())
    driver.finished.add("never seen")
    assert driver.step({}).req_ids == []


def test_a_prompt_of_max_model_len_and_a_step_beyond_it() -> None:
    """Async scheduling may run one step more than a request needs (and fault 5.2 I: the table is wide
    enough)."""
    driver = Driver(make_config(max_model_len=16, block_size=4))
    driver.add("a", [7] * 16)
    driver.decode(1)
    check(driver)


def test_a_request_scheduled_beyond_its_tokens_is_a_bug_that_is_named() -> None:
    driver = Driver(make_config())
    driver.add("a", PROMPT)
    with pytest.raises(RuntimeError, match=r"'a' is scheduled up to token 11 but only 10"):
        driver.step({"a": 11})


def test_more_requests_than_rows_is_a_bug_that_is_named() -> None:
    driver = Driver(make_config(max_num_seqs=2))
    for name in "abc":
        driver.add(name, [5])
    with pytest.raises(RuntimeError, match="max_num_seqs"):
        driver.decode(1)


def test_a_step_in_flight_keeps_its_inputs(runner: str) -> None:
    """Fault 17: the next step must not overwrite buffers that a running step still reads."""
    if runner == "device":
        return  # it does overwrite them, in the device's own order: behind the kernels that read them
    driver = Driver(make_config())
    driver.add("a", PROMPT)
    kept = []
    forward = driver.runner.model.forward

    def spy(input_ids, positions, ctx):  # type: ignore[no-untyped-def]
        meta = ctx.metadata["layers.0"]
        tensors = (input_ids, positions, meta.slot_mapping, meta.block_table, meta.seq_lens)
        kept.append((tensors, tuple(t.clone() for t in tensors)))
        return forward(input_ids, positions, ctx)

    driver.runner.model.forward = spy  # type: ignore[method-assign]
    driver.decode(6)
    for tensors, copies in kept:
        assert all(t.equal(c) for t, c in zip(tensors, copies))


def test_sampled_tokens_stay_on_the_worker() -> None:
    """The host may send the next step before it has seen the last one's tokens (async scheduling)."""
    config = make_config()
    driver = Driver(config)
    runner = driver.runner
    new = NewRequestData("a", PROMPT, 10, SamplingParams(temperature=0.0), (2,), ([4, 9, 2, 7],), 0)
    outputs = [runner.execute_model(SchedulerOutput(0, [new], CachedRequestData(), {"a": 10}, 10))]
    for step in range(1, 5):
        cached = CachedRequestData(["a"], [None], [9 + step])
        outputs.append(runner.execute_model(SchedulerOutput(step, [], cached, {"a": 1}, 1)))
    assert [o.sampled_token_ids[0][0] for o in outputs] == greedy(PROMPT, 5, config)


def test_more_changes_than_one_copy_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long prompts come to the device in several pieces."""
    monkeypatch.setattr(inputs, "MAX_CHANGES", 7)
    driver = Driver(make_config())
    driver.add("a", PROMPT * 3)
    driver.add("b", PROMPT)
    driver.decode(3)
    check(driver)


@settings(max_examples=60)
@given(data=st.data())
def test_any_schedule_gives_each_request_its_own_tokens(data: st.DataObject) -> None:
    """Random arrivals, chunk sizes, orders, preemptions and ends, on two cache groups."""
    layers = data.draw(st.sampled_from([("full_attention",), HYBRID, HYBRID * 2]))
    config = make_config(
        layer_types=layers, block_size=data.draw(st.sampled_from([1, 3, 4, 16])), max_num_seqs=4
    )
    driver = Driver(config, seed=data.draw(st.integers(0, 9)))
    next_id = 0
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["step", "step", "step", "add", "preempt", "finish"]))
        names = list(driver.requests)
        if action == "add" and len(names) < 4:
            prompt = data.draw(st.lists(st.integers(3, 96), min_size=1, max_size=20))
            driver.add(f"r{next_id}", prompt)
            next_id += 1
        elif action == "preempt" and names:
            driver.preempt(data.draw(st.sampled_from(names)))
        elif action == "finish" and names:
            driver.finish(data.draw(st.sampled_from(names)))
        elif action == "step":
            chosen = data.draw(st.permutations(names))[: data.draw(st.integers(0, 4))]
            running = [n for n in chosen if len(driver.requests[n].tokens) < 60]
            driver.step({n: data.draw(st.integers(1, driver.requests[n].remaining)) for n in running})
    check(driver)
    rows = list(driver.runner.states.row_of.values())
    assert len(set(rows)) == len(rows)
    assert np.all(driver.runner.states.num_tokens[rows] <= 61)


@pytest.mark.parametrize("batch", [3, 12, 17, 100, 200])
def test_fault_8_no_batch_size_is_special(batch: int) -> None:
    """Upstream engines pad batches to captured sizes and missed some; here every size must just work."""
    driver = Driver(make_config(max_num_seqs=256, max_num_batched_tokens=1024), num_blocks=512)
    for i in range(batch):
        driver.add(f"r{i}", [3 + (7 * i + j) % 50 for j in range(2 + i % 3)])
    driver.decode(2)
    check(driver)


def test_exw_02_a_model_state_plugs_in_without_touching_the_runner(runner: str) -> None:
    """A toy architecture that swaps token 5 for 6 on its way in: rows are announced, inputs are its own."""
    if runner == "device":
        return  # has no such extension point: of models that need it nobody makes one so far
    driver = Driver(make_config())

    class Swapping(DefaultModelState):
        rows: ClassVar[list[tuple[str, int]]] = []

        def add_request(self, row: int, request: NewRequestData) -> None:
            self.rows.append((f"+{request.req_id}", row))

        def remove_request(self, row: int) -> None:
            self.rows.append(("-", row))

        def prepare_inputs(self, batch: InputBatch) -> ModelInputs:
            inputs = super().prepare_inputs(batch)
            return replace(inputs, input_ids=torch.where(inputs.input_ids == 5, 6, inputs.input_ids))

    driver.runner.model_state = Swapping(torch.device("cpu"))
    driver.add("a", [5, 5, 7])
    driver.decode(1)
    assert driver.requests["a"].output == greedy([6, 6, 7], 1, driver.config)
    driver.finish("a")
    driver.add("b", [8, 9])
    driver.decode(1)
    row = Swapping.rows[0][1]
    assert Swapping.rows[:2] == [("+a", row), ("-", row)]
