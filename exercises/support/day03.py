"""What the graders of Day 3 share: a device that checks every KV read, and words for what went wrong.

The device's "KV" of a token is the whole prefix that leads to it, written to (block, offset) where a real
device would write it. Whatever a scheduled token attends to is looked up through the request's block table,
so a plan that forgets a token, or gives a block to two requests, fails at the first read of something else.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.step import ModelRunnerOutput, SchedulerOutput
from learnvllm.scheduling import async_scheduler
from learnvllm.scheduling.simulator import Arrival, Simulation
from learnvllm.scheduling.toy import next_token, predict

CONCEPTS = "docs/topics/scheduling/concepts.md"


class CheckedDevice:
    """Executes steps as a ToyDevice does, and knows what every KV slot holds."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.tokens: dict[str, list[int]] = {}
        self.tables: dict[str, list[int]] = {}
        self.kv: dict[tuple[int, int], tuple[int, ...]] = {}

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        for req_id in output.finished_req_ids | output.preempted_req_ids:
            self.tokens.pop(req_id, None)
            self.tables.pop(req_id, None)
        starts = self._take_requests(output)
        counts = output.num_scheduled_tokens
        assert set(starts) == set(counts), (
            f"The step computes tokens of {sorted(counts)}, but tells the workers of {sorted(starts)}."
        )
        for req_id, count in counts.items():
            assert count >= 1, f"{req_id} is in the step with {count} tokens. Who has none is left out of it."
            known = len(self.tokens[req_id])
            assert starts[req_id] + count <= known, (
                f"{req_id}: positions {starts[req_id]} to {starts[req_id] + count - 1} are to be computed, "
                f"but only {known} tokens are known."
            )
            for position in range(starts[req_id], starts[req_id] + count):
                self.kv[self._slot(req_id, position)] = tuple(self.tokens[req_id][: position + 1])
        for req_id, count in counts.items():
            self._read(req_id, starts[req_id] + count)
        return ModelRunnerOutput(list(counts), [self._sample(r, starts[r] + n) for r, n in counts.items()])

    def _take_requests(self, output: SchedulerOutput) -> dict[str, int]:
        """Request id -> tokens computed before this step."""
        starts = {}
        for new in output.scheduled_new_reqs:
            assert new.req_id not in self.tokens, (
                f"{new.req_id} comes as new, but the workers still hold it: nobody told them to forget it "
                "when it gave way (StepPlan.preempted)."
            )
            self.tokens[new.req_id] = list(new.token_ids)
            self.tables[new.req_id] = list(new.block_ids[0])
            starts[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for req_id, blocks, start in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens):
            assert req_id in self.tables, (
                f"{req_id} is scheduled as one the workers know, but they were told to forget it: a "
                "preempted request comes back as new."
            )
            self.tables[req_id] += blocks[0] if blocks else []
            starts[req_id] = start
        return starts

    def _slot(self, req_id: str, position: int) -> tuple[int, int]:
        index, offset = divmod(position, self.block_size)
        table = self.tables[req_id]
        assert index < len(table), (
            f"{req_id}: position {position} is to be computed, but its {len(table)} blocks of "
            f"{self.block_size} tokens end before it. Blocks come from allocate_slots, before the step."
        )
        return table[index], offset

    def _read(self, req_id: str, end: int) -> None:
        for position in range(end):
            slot = self._slot(req_id, position)
            expected, found = tuple(self.tokens[req_id][: position + 1]), self.kv.get(slot)
            assert found == expected, (
                f"{req_id}: attention reads position {position} in block {slot[0]}, offset {slot[1]}, and "
                f"finds {'nothing' if found is None else 'the KV of other tokens'}. Invariant: whatever "
                "counts as computed has its KV in the request's own blocks."
            )

    def _sample(self, req_id: str, end: int) -> list[int]:
        tokens = self.tokens[req_id]
        if end < len(tokens):
            return []
        tokens.append(next_token(tokens))
        return tokens[-1:]


def simulation(make_scheduler: Any, config: EngineConfig, **options: Any) -> Simulation:
    """A simulation that checks every KV read, and all invariants after every call."""
    device = CheckedDevice(config.cache_config.block_size)
    return Simulation(config, make_scheduler=make_scheduler, device=device, check=True, **options)


def finish(sim: Simulation, arrivals: list[Arrival], max_steps: int = 3000) -> Simulation:
    """Run to the end; every request must have produced the tokens that it produces alone."""
    try:
        sim.run(arrivals, max_steps)
    except AssertionError as error:
        if "not done after" not in str(error):
            raise
        raise AssertionError(
            f"{error}. Steps go by and nobody gets on: a request is never admitted, or is put out again each "
            f"time. The last steps computed {[s.num_scheduled_tokens for s in sim.steps[-3:]]}."
        ) from None
    for arrival in arrivals:
        check_tokens(sim, arrival)
    pool = sim.scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_usable_blocks, (
        f"All requests have ended, but {pool.num_usable_blocks - pool.get_num_free_blocks()} blocks are "
        "still held. Invariant: who ends or gives way hands back all blocks."
    )
    return sim


def run_until(done: Callable[[], bool], advance: Callable[[], object], what: str) -> None:
    """`advance` until `done`. what: told where it does not come about."""
    for _ in range(200):
        if done():
            return
        advance()
    raise AssertionError(f"Within 20 steps {what}; after 200 it has not happened.")


def check_tokens(sim: Simulation, arrival: Arrival) -> None:
    limit = sim.scheduler.max_model_len - len(arrival.prompt)
    expected = predict(arrival.prompt, min(arrival.max_tokens, limit))
    got = sim.tokens[arrival.request_id]
    assert got == expected, (
        f"{arrival.request_id} ({len(arrival.prompt)} prompt tokens, max_tokens={arrival.max_tokens}) must "
        f"produce {expected}, but produced {got}. Invariant: tokens do not depend on who else runs, how they "
        f"are cut into steps, or how often a request gave way. Read {CONCEPTS}#one-rule."
    )


def preemptions_without_progress(sim: Simulation, max_steps: int = 3000) -> Counter[str]:
    """Run to the end; per request: how often it gave way with no more tokens than when it last gave way."""
    known: dict[str, tuple[int, int]] = {}
    count: Counter[str] = Counter()
    for _ in range(max_steps):
        if not sim.is_busy:
            return count
        sim.step()
        for request_id, request in sim.scheduler.requests.items():
            before = known.get(request_id, (0, -1))
            now = request.num_preemptions, request.num_tokens_at_preemption
            count[request_id] += now[0] > before[0] and now[1] == before[1]
            known[request_id] = now
    raise AssertionError(
        f"not done after {max_steps} steps: {sim.scheduler.get_request_counts()} run and wait"
    )


def async_over(scheduler_class: type) -> Any:
    """The reference's AsyncScheduler, built on another Scheduler than the reference's."""
    namespace = dict(vars(async_scheduler), Scheduler=scheduler_class)
    source = inspect.getsource(async_scheduler.AsyncScheduler)
    exec(compile(source, async_scheduler.__file__, "exec"), namespace)
    return namespace["AsyncScheduler"]
