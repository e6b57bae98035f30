"""Functions and methods outside the scheduler: each call beside the reference's, results compared."""

from __future__ import annotations

import asyncio
import math
import re
import signal
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from learnvllm.architecture.messages import EngineCoreOutput
from learnvllm.study import shadow_limit
from learnvllm.study.shadow_engine import ShadowDivergence
from learnvllm.study.shadow_loans import LARGE, Loan
from learnvllm.study.shadow_mirror import _on_both_async, _short
from learnvllm.study.shadow_values import Outcome, first_difference, snapshot
from tests.study.overlay.conftest import Learner

OUTPUTS = "import runpy; runpy.run_module('tests.study.overlay.outputs_traffic', run_name='__main__')"
DAY_2 = ("token_stream", "stop_strings", "output_collector", "stream_interval")


def test_solutions_are_not_flagged_alone_or_together(learner: Learner) -> None:
    for name in DAY_2:
        learner.solve(name)
    assert learner.python(OUTPUTS, ",".join(DAY_2), shadow=True) == "OK\n"


def test_a_loop_without_end_is_a_difference_and_its_line_is_told(learner: Learner) -> None:
    taken = "        self._pending.append(token_id)\n"
    learner.solve("token_stream", (taken, f"{taken}        while self._pending:\n            pass\n"))
    limit = "from learnvllm.study import shadow_limit; shadow_limit.LIMIT_S = 0.5; "
    done = learner.try_python(limit + OUTPUTS, "token_stream", shadow=True)
    assert done.stdout.startswith("STOPPED --shadow: TokenStream.push of engine_core.token_stream differs")
    assert "NeverEnds: not done after 0.5 s" in done.stderr
    assert re.search(
        r"engine_core\.token_stream, exercise\.py line \d+: (while self\._pending:|pass)\n", done.stderr
    )


def test_a_call_within_a_call_does_not_stop_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_limit, "LIMIT_S", 0.2)

    def goes_round() -> None:
        with shadow_limit.time_limit():
            pass
        end = time.monotonic() + 10
        while time.monotonic() < end:
            pass

    with pytest.raises(shadow_limit.NeverEnds), shadow_limit.time_limit():
        goes_round()
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_another_way_to_keep_its_state_is_not_flagged(learner: Learner) -> None:
    """They write every public method, so what lies between the calls is theirs."""
    text = learner.solve("output_collector").path.read_text()
    start = text.index("    def __init__")
    own = """
    def __init__(self, output_kind: RequestOutputKind) -> None:
        self._kind, self._store = output_kind, []
        self._wakers = []

    def put(self, output: RequestOutput | Exception) -> None:
        if self._store and isinstance(self._store[0], Exception):
            return
        if self._store and not isinstance(output, Exception):
            output = merge_outputs(self._store[0], output, self._kind is RequestOutputKind.DELTA)
        self._store = [output]
        while self._wakers:
            self._wakers.pop().set()

    def get_nowait(self) -> RequestOutput | None:
        output = self._store.pop() if self._store else None
        if isinstance(output, Exception):
            raise output
        return output

    async def get(self) -> RequestOutput:
        while not self._store:
            self._wakers.append(asyncio.Event())
            await self._wakers[-1].wait()
        return self.get_nowait()


def merge_outputs("""
    rest = text[text.index("def merge_outputs(") + len("def merge_outputs(") :]
    learner.write("output_collector", text[:start] + own.lstrip("\n") + rest)
    assert learner.python(OUTPUTS, "output_collector", shadow=True) == "OK\n"


@pytest.mark.parametrize(
    ("name", "mutant", "where"),
    [
        ("token_stream", "each-token-alone", "TokenStream.push"),
        ("token_stream", "flush-forgets", "TokenStream.flush"),
        ("stop_strings", "a-fixed-number-held-back", "undecided_length"),
        ("stop_strings", "deltas-repeat", "IncrementalDetokenizer.next_text"),
        ("output_collector", "the-newest-wins", "RequestOutputCollector.get"),
        ("output_collector", "cumulative-outputs-are-joined", "merge_outputs"),
        ("stream_interval", "multiples-of-n", "RequestState._is_due"),
        ("stream_interval", "cumulative-outputs-are-not-counted", "RequestState._completion"),
    ],
)
def test_a_wrong_version_is_caught(learner: Learner, name: str, mutant: str, where: str) -> None:
    exercise = learner.mutate(name, mutant)
    for other in DAY_2:
        if other != name:
            learner.solve(other)
    done = learner.try_python(OUTPUTS, ",".join(DAY_2), shadow=True)
    assert done.stdout.startswith(f"STOPPED --shadow: {where} of {exercise.id} differs in "), done.stdout
    assert f"{where} of {exercise.id}: your code and the reference differ for the first time." in done.stderr
    assert "yours: " in done.stderr


def test_functions_with_tensors_are_compared_with_a_tolerance(learner: Learner) -> None:
    program = """
        import torch
        from learnvllm.model_layers.ops import torch_ref
        k = torch.arange(24.0).view(3, 2, 4)
        caches = torch.zeros(2, 2, 4, 4), torch.zeros(2, 2, 4, 4)
        torch_ref.reshape_and_cache(k, k + 1, *caches, torch.tensor([5, 6, -1]))
        q = torch.ones(1, 2, 4)
        one = [torch.tensor(values, dtype=torch.int32) for values in ([[1]], [3], [0, 1])]
        print(torch_ref.paged_attention(q, *caches, *one, 0.5).shape)
    """
    rounding = ("scores = q[first:last].float()", "scores = (1 + 1e-7) * q[first:last].float()")
    learner.solve("paged_attention", rounding)
    assert learner.python(program, "paged_attention", shadow=True).startswith("torch.Size")
    learner.mutate("paged_attention", "values are keys")
    done = learner.try_python(program, "paged_attention", shadow=True)
    assert done.returncode == 1
    assert "reshape_and_cache of kv_cache.paged_attention" in done.stderr
    assert "In what it leaves behind" in done.stderr


# ----------------------------------------------------------------------------------- copying and comparing


@dataclass
class Node:
    name: str
    items: list[int] = field(default_factory=list)
    other: Node | None = None
    timestamp: float = 0.0


Node.__module__ = "learnvllm.of_a_test"  # only objects of our own classes are looked into


def test_a_snapshot_stays_while_the_original_changes() -> None:
    node = Node("a", [1])
    node.other = node
    event, tensor = asyncio.Event(), torch.zeros(2)
    copy, again, set_event, zeros = snapshot((node, node, event, tensor))
    node.items.append(2)
    event.set()
    tensor += 1
    assert (copy.items, copy.other is copy, again is copy) == ([1], True, True)
    assert not set_event.is_set()
    assert zeros.tolist() == [0, 0]
    output = EngineCoreOutput("r", [1])
    frozen = snapshot(output)
    output.new_token_ids.append(2)
    assert frozen == EngineCoreOutput("r", [1])


class Point(msgspec.Struct):
    x: int


@pytest.mark.parametrize(
    ("mine", "theirs", "path"),
    [
        ([1, 2], [1, 2], None),
        ([1, [2, 3]], [1, [2, 4]], "[1][1]"),
        ({"a": 1.0}, {"a": math.nan}, "['a']"),
        (math.nan, math.nan, None),
        (1, True, None),
        ([1], [1, 2], ""),
        (Node("a", [1]), Node("a", [2]), ".items[0]"),
        (Node("a", timestamp=1.0), Node("a", timestamp=2.0), None),
        (torch.ones(2), torch.ones(2) + 1e-6, None),
        (torch.ones(2), torch.ones(2) + 1e-2, ""),
        (torch.ones(2), torch.ones(3), ""),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), ""),
        (np.array([1.0]), np.array([1.0 + 1e-9]), None),
        (None, np.array([1, 2]), ""),  # a forgotten return
        (0.0, torch.ones(2), ""),
        (ValueError("one"), ValueError("other"), None),
        (ValueError("one"), KeyError("one"), ""),
        ({1, 2}, {2, 1}, None),
    ],
)
def test_first_difference(mine: object, theirs: object, path: str | None) -> None:
    found = first_difference(mine, theirs)
    assert (None if found is None else found[0]) == path


def test_what_is_shown_of_a_result_may_hold_arrays() -> None:
    assert _short((np.array([1, 2]), 3)) == "(array([1, 2]), 3)"
    assert _short(Outcome(error=ValueError("no"))) == "raises ValueError: no"
    assert _short(Outcome([1])) == "returns [1]"


async def test_a_difference_within_a_coroutine_is_told_as_it_is() -> None:
    class Holder:
        async def get(self) -> int:
            raise ShadowDivergence("within")

    class Twin:
        async def get(self) -> int:
            return 1

    holder: Any = Holder()
    holder._shadow_twin = Twin()
    plan: Any = SimpleNamespace(exercise=SimpleNamespace(id="a.b", path="exercise.py"))
    with pytest.raises(ShadowDivergence, match="^within$"):
        await _on_both_async(Holder.get, plan, "Holder.get")(holder)


# ------------------------------------------------------------------------------------ classes that hold data

DAY_1 = ("request_counters", "config_checks", "chrome_trace", "merge_decodes")
DATA = """
    from learnvllm.architecture.errors import ConfigError
    from learnvllm.architecture.config import SchedulerConfig
    from learnvllm.architecture.tracing import RecordingTracer
    from learnvllm.scheduling.scheduler import Scheduler
    from tests.study.overlay.traffic import SCENARIOS, drive
    config = SCENARIOS["tight"].config()
    print(drive(Scheduler(config, SCENARIOS["tight"].kv_cache(config), None), pipelined=False, steps=60) > 9)
    try:
        SchedulerConfig(max_num_batched_tokens=0)
    except ConfigError as error:
        print(config.config_hash()[:0], error)
"""


def test_fields_that_others_set_are_no_difference(learner: Learner) -> None:
    for name in DAY_1:
        learner.solve(name)
    out = learner.python(DATA, ",".join(DAY_1), shadow=True)
    assert out.startswith("True\n")
    assert "max_num_batched_tokens=0" in out


def test_a_check_that_lets_something_pass_is_caught(learner: Learner) -> None:
    text = learner.solve("config_checks").path.read_text()
    start = text.index("    def __post_init__(self) -> None:\n", text.index("class SchedulerConfig"))
    learner.write("config_checks", text[: start + 37] + "        return\n" + text[start + 37 :])
    done = learner.try_python(DATA, "config_checks", shadow=True)
    assert "SchedulerConfig.__post_init__ of architecture.config_checks" in done.stderr
    assert "the reference:  raises ConfigError: max_num_batched_tokens=0" in done.stderr


# ----------------------------------------------------------------------------------- the KV cache is large

ATTENTION = """
    import torch
    from learnvllm.model_layers.ops import torch_ref
    copied, clone = [], torch.Tensor.clone
    def counted(tensor, *args, **kwargs):
        copied.append(tensor.numel() * tensor.element_size())
        return clone(tensor, *args, **kwargs)
    torch.Tensor.clone = counted
    torch.manual_seed(0)
    caches = torch.zeros(1024, 2, 4, 64), torch.zeros(1024, 2, 4, 64)  # 2 MiB each
    k = torch.randn(3, 2, 64)
    torch_ref.reshape_and_cache(k, k + 1, *caches, torch.tensor([5, 6, -1]))
    one = [torch.tensor(values, dtype=torch.int32) for values in ([[1]], [3], [0, 1])]
    for _ in range(5):
        with torch.inference_mode():
            q = torch.randn(1, 2, 64)
            out = torch_ref.paged_attention(q, *caches, *one, 0.1)
        print(max(copied, default=0), round(float(out.norm()), 3))
        copied.clear()
"""


def test_a_large_tensor_that_nobody_changes_is_copied_once(learner: Learner) -> None:
    alone = [line.split() for line in learner.python(ATTENTION).splitlines()]
    learner.solve("paged_attention")
    beside = [line.split() for line in learner.python(ATTENTION, "paged_attention", shadow=True).splitlines()]
    assert [value for _, value in beside] == [value for _, value in alone]
    sizes = [int(size) for size, _ in beside]
    assert sizes[0] == 2**21  # by writing into it, and when nothing was known yet of those who read it
    assert max(sizes[1:]) < 2**12


@pytest.mark.parametrize("line", ["k_cache[0] = 1", "k_cache.mul_(1)", "v_cache[0, 0, 0, 0] += 1"])
def test_a_large_tensor_that_only_the_learner_changes_is_a_difference(learner: Learner, line: str) -> None:
    """At a later call than the first, when there is no copy any more that could look different."""
    late = f"    calls.append(0)\n    if len(calls) == 3:\n        {line}\n"
    start = "    group = q.shape[1] // k_cache.shape[1]\n"
    imports = "from torch import Tensor\n"
    learner.solve("paged_attention", (start, late + start), (imports, f"{imports}\ncalls = []\n"))
    done = learner.try_python(ATTENTION, "paged_attention", shadow=True)
    assert len(done.stdout.splitlines()) == 2
    name = line[:7]
    assert f"In what it leaves behind, at ['{name}']:" in done.stderr
    assert "yours:          'changes its argument'" in done.stderr
    assert "the reference:  'leaves it as it is'" in done.stderr


def loan(known: dict[str, bool], **tensors: torch.Tensor) -> Loan:
    return Loan(tensors, known)


def test_what_the_reference_changes_is_copied_at_every_call() -> None:
    known: dict[str, bool] = {}
    a, b = torch.zeros(LARGE), torch.zeros(LARGE)
    for _ in range(2):
        first = loan(known, a=a, b=b)
        assert first.memo[id(b)] is not b
        first.memo[id(b)] += 1
        first.learn()
    assert known == {"a": True, "b": False}
    assert loan(known, a=a, b=b).memo[id(a)] is a


def test_one_count_serves_all_views_so_none_is_lent_beside_a_changed_one() -> None:
    both = torch.zeros(2, LARGE)
    known = {"a": True, "b": False}
    assert loan(known, a=both[0], b=both[1]).lent == {}
    assert [*loan(known, a=both[0], b=torch.zeros(LARGE)).lent] == ["a"]


def test_what_counts_no_changes_is_copied() -> None:
    with torch.inference_mode():
        uncounted = torch.zeros(LARGE)
        found = loan({"a": True}, a=uncounted)
        assert found.lent == {}
        found.memo[id(uncounted)] += 1
        assert float(uncounted.sum()) == 0


def test_a_reference_that_changes_what_it_was_lent_is_noticed() -> None:
    known, a = {"a": True}, torch.zeros(LARGE)
    found = loan(known, a=a)
    assert found.changed() == []
    a[0] = 1
    assert found.changed() == ["a"]
    found.learn()
    assert known == {"a": False}
