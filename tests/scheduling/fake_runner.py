"""A model runner without a model, which knows what every KV slot holds and checks every read.

`FakeRunner` stands in for the workers. Its "KV" of a token is a hash over the whole prefix that leads to it,
written to (block, offset) exactly where a real runner would write. Whatever a scheduled token would attend to
is looked up through the block table and compared, so a wrong table, a stale block, a prefix hit on uncomputed
content or a block shared by mistake fails on the spot, with the request and the position. The next token is a
hash of all tokens before it, so `oracle` predicts every output without any cache.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.messages import EngineCoreOutput, FinishReason
from learnvllm.architecture.request import Request
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.architecture.step import ModelRunnerOutput, NewRequestData, SchedulerOutput
from learnvllm.architecture.tracing import StepTracer
from learnvllm.kv_cache.interface import KVCacheConfig
from learnvllm.scheduling.async_scheduler import AsyncScheduler
from learnvllm.scheduling.scheduler import Scheduler
from learnvllm.scheduling.toy import VOCAB_SIZE, make_kv_cache, make_prompt, toy_config

prompt_of = make_prompt


# ------------------------------------------------------------------------------------------- the model


def extend_prefix_hash(prefix: bytes, token_id: int) -> bytes:
    """The hash of a prefix and one more token: the fake KV of that token."""
    return hashlib.blake2b(prefix + token_id.to_bytes(4, "little"), digest_size=8).digest()


def next_token(prefix: bytes) -> int:
    """The fake model's greedy choice after a prefix."""
    return int.from_bytes(prefix, "little") % VOCAB_SIZE


def oracle(
    prompt: Sequence[int],
    max_tokens: int,
    *,
    max_model_len: int = 1 << 30,
    eos_token_ids: Sequence[int] = (),
    stop_token_ids: Sequence[int] = (),
    min_tokens: int = 0,
) -> tuple[list[int], FinishReason]:
    """What a request must produce, worked out alone and without a cache."""
    prefix = b""
    for token in prompt:
        prefix = extend_prefix_hash(prefix, token)
    tokens: list[int] = []
    while True:
        token = next_token(prefix)
        prefix = extend_prefix_hash(prefix, token)
        tokens.append(token)
        if len(tokens) >= min_tokens and (token in eos_token_ids or token in stop_token_ids):
            return tokens, FinishReason.STOP
        if len(tokens) >= max_tokens or len(prompt) + len(tokens) >= max_model_len:
            return tokens, FinishReason.LENGTH


# ------------------------------------------------------------------------------------------ the runner


@dataclass
class _Row:
    """A request as the workers hold it."""

    token_ids: list[int]
    num_prompt_tokens: int
    block_ids: tuple[list[int], ...]
    prefixes: list[bytes] = field(default_factory=list)
    """prefixes[i]: hash of tokens 0 to i."""

    def append(self, token_id: int) -> None:
        self.token_ids.append(token_id)
        self._extend_prefixes()

    def __post_init__(self) -> None:
        self._extend_prefixes()

    def _extend_prefixes(self) -> None:
        for token in self.token_ids[len(self.prefixes) :]:
            self.prefixes.append(extend_prefix_hash(self.prefixes[-1] if self.prefixes else b"", token))


class FakeRunner:
    """Executes SchedulerOutputs. Call `execute` in the order of the steps, each once."""

    def __init__(self, kv_cache_config: KVCacheConfig) -> None:
        self.block_size = kv_cache_config.block_size
        self.num_blocks = kv_cache_config.num_blocks
        self.windows = [getattr(group.spec, "sliding_window", None) for group in kv_cache_config.groups]
        self.rows: dict[str, _Row] = {}
        self.kv: dict[tuple[int, int], tuple[int, bytes]] = {}
        """(block id, offset) -> (group, hash of the prefix up to this token)."""
        self._next_step_id = 0
        self.num_steps = 0

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        assert output.step_id == self._next_step_id, "a step was left out or came out of order"
        self._next_step_id += 1
        for req_id in output.finished_req_ids | output.preempted_req_ids:
            self.rows.pop(req_id, None)
        starts = self._take_requests(output)
        self._check_output(output, starts)
        if output.total_num_scheduled_tokens:
            self.num_steps += 1
        spans = {
            req_id: (starts[req_id], starts[req_id] + n) for req_id, n in output.num_scheduled_tokens.items()
        }
        for req_id, (start, end) in spans.items():  # as in a layer: all writes, then all reads
            self._write(req_id, start, end)
        for req_id, (start, end) in spans.items():
            self._read(req_id, start, end)
        sampled = [self._sample(req_id, end) for req_id, (_, end) in spans.items()]
        return ModelRunnerOutput(list(spans), sampled)

    def _take_requests(self, output: SchedulerOutput) -> dict[str, int]:
        """Update the rows; return request id -> tokens computed before this step."""
        starts: dict[str, int] = {}
        for new in output.scheduled_new_reqs:
            assert new.req_id not in self.rows, f"{new.req_id} comes as new but the workers have it"
            self._add_row(new)
            starts[new.req_id] = new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for req_id, blocks, computed in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens):
            row = self.rows[req_id]
            for table, ids in zip(row.block_ids, blocks or ()):
                table.extend(ids)
            starts[req_id] = computed
        return starts

    def _add_row(self, new: NewRequestData) -> None:
        assert len(new.block_ids) == len(self.windows)
        tables = tuple(list(ids) for ids in new.block_ids)
        self.rows[new.req_id] = _Row(list(new.token_ids), new.num_prompt_tokens, tables)

    def _check_output(self, output: SchedulerOutput, starts: dict[str, int]) -> None:
        assert set(starts) == set(output.num_scheduled_tokens)
        assert all(n >= 1 for n in output.num_scheduled_tokens.values())
        assert sum(output.num_scheduled_tokens.values()) == output.total_num_scheduled_tokens
        assert not output.preempted_req_ids & set(starts), "preempted and scheduled in one step"

    def _slot(self, req_id: str, group: int, position: int) -> tuple[int, int]:
        table = self.rows[req_id].block_ids[group]
        index, offset = divmod(position, self.block_size)
        assert index < len(table), f"{req_id}: no block for position {position} in group {group}"
        assert 0 < table[index] < self.num_blocks, (
            f"{req_id}: position {position} of group {group} lies in block {table[index]}"
        )
        return table[index], offset

    def _write(self, req_id: str, start: int, end: int) -> None:
        row = self.rows[req_id]
        assert end <= len(row.token_ids), f"{req_id}: {end} tokens scheduled, {len(row.token_ids)} known"
        for group in range(len(self.windows)):
            for position in range(start, end):
                self.kv[self._slot(req_id, group, position)] = (group, row.prefixes[position])

    def _read(self, req_id: str, start: int, end: int) -> None:
        """Everything that the tokens at positions start to end - 1 attend to."""
        prefixes = self.rows[req_id].prefixes
        for group, window in enumerate(self.windows):
            first = 0 if window is None else max(start - window + 1, 0)
            for position in range(first, end):
                found = self.kv.get(self._slot(req_id, group, position))
                assert found == (group, prefixes[position]), (
                    f"{req_id}: position {position} of group {group} reads {found or 'nothing'}"
                )

    def _sample(self, req_id: str, end: int) -> list[int]:
        row = self.rows[req_id]
        if end < len(row.token_ids):
            return []
        token = next_token(row.prefixes[-1])
        row.append(token)
        return [token]


# ---------------------------------------------------------------------------------- scheduler and loop


def make_config(**changes: Any) -> EngineConfig:
    """The toy's configuration in small, with what an engine has on by default."""
    small = {"num_blocks": 100, "block_size": 4, "max_model_len": 512}
    limits = {"max_num_batched_tokens": 64, "max_num_seqs": 16, "prefill_tokens_per_decode": None}
    return toy_config(**{**small, **limits, "enable_prefix_caching": True, "log_stats": True, **changes})


class SchedulerLoop:
    """A scheduler, a FakeRunner, and the loop that joins them as the engine core does.

    Args:
        config: from make_config.
        windows: cache groups; None is full attention.
        async_scheduling: AsyncScheduler, and step N+1 is scheduled before N's output is taken in.
        execute_late: execute a step only when its output is needed: the latest moment a worker might.
    """

    def __init__(
        self,
        config: EngineConfig,
        windows: Sequence[int | None] = (None,),
        *,
        async_scheduling: bool = False,
        execute_late: bool = True,
        tracer: StepTracer | None = None,
    ) -> None:
        cache = config.cache_config
        assert cache.num_gpu_blocks_override is not None
        self.config = config
        self.kv_cache_config = make_kv_cache(cache.num_gpu_blocks_override, cache.block_size, windows)
        scheduler_class = AsyncScheduler if async_scheduling else Scheduler
        self.scheduler = scheduler_class(config, self.kv_cache_config, tracer)
        self.runner = FakeRunner(self.kv_cache_config)
        self.depth = 2 if async_scheduling else 1
        self.execute_late = execute_late
        self.in_flight: deque[tuple[SchedulerOutput, ModelRunnerOutput | None]] = deque()
        self.history: list[SchedulerOutput] = []
        self.outputs: list[EngineCoreOutput] = []
        self.tokens: dict[str, list[int]] = {}
        self.finish_reasons: dict[str, FinishReason] = {}
        self.max_tokens_in_step = 0

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int = 4,
        *,
        priority: int = 0,
        arrival_time: float = 0.0,
        eos_token_ids: Sequence[int] = (),
        cache_salt: str | None = None,
        client_index: int = 0,
        **params: object,
    ) -> Request:
        request = Request(
            request_id,
            list(prompt),
            SamplingParams(max_tokens=max_tokens, **params),  # type: ignore[arg-type]
            eos_token_ids=tuple(eos_token_ids),
            priority=priority,
            arrival_time=arrival_time,
            cache_salt=cache_salt,
            client_index=client_index,
            block_hasher=self.scheduler.block_hasher,
        )
        self.scheduler.add_request(request)
        self.tokens[request_id] = []
        return request

    def schedule(self) -> SchedulerOutput:
        """Schedule a step and hand it to the workers."""
        output = self.scheduler.schedule()
        assert output.total_num_scheduled_tokens <= self.config.scheduler_config.max_num_batched_tokens
        self.history.append(output)
        self.in_flight.append((output, None if self.execute_late else self.runner.execute(output)))
        self.scheduler.check_invariants()
        return output

    def update(self) -> list[EngineCoreOutput]:
        """Take in the output of the oldest step in flight."""
        output, result = self.in_flight.popleft()
        if result is None:
            result = self.runner.execute(output)
        new: list[EngineCoreOutput] = []
        for message in self.scheduler.update_from_output(output, result).values():
            new += message.outputs
        for out in new:
            assert out.request_id not in self.finish_reasons, f"{out.request_id} goes on after its end"
            self.tokens[out.request_id] += out.new_token_ids
            if out.finish_reason is not None:
                self.finish_reasons[out.request_id] = out.finish_reason
        self.outputs += new
        self.scheduler.check_invariants()
        return new

    def step(self) -> None:
        """One turn of the engine's loop: fill the pipeline, then take in one output."""
        while self.scheduler.has_requests() and len(self.in_flight) < self.depth:
            self.schedule()
        if self.in_flight:
            self.update()

    def run(self, max_steps: int = 2000) -> dict[str, list[int]]:
        """Step until nothing is left; return the tokens of every request."""
        for _ in range(max_steps):
            if not self.scheduler.has_requests() and not self.in_flight:
                self.check_idle()
                return self.tokens
            self.step()
        raise AssertionError(f"not done after {max_steps} steps: {self.scheduler.get_request_counts()}")

    def check_idle(self) -> None:
        """Nothing is held once nothing runs."""
        pool = self.scheduler.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_usable_blocks, "blocks leaked"
        assert not self.runner.rows, f"the workers were not told to forget {sorted(self.runner.rows)}"
        assert not self.scheduler.requests

    @property
    def num_preemptions(self) -> int:
        return sum(len(output.preempted_req_ids) for output in self.history)


def assert_oracle(loop: SchedulerLoop, prompts: dict[str, Sequence[int]], max_tokens: int) -> None:
    """Every request produced what the oracle says."""
    for request_id, prompt in prompts.items():
        expected, reason = oracle(prompt, max_tokens, max_model_len=loop.scheduler.max_model_len)
        assert loop.tokens[request_id] == expected, request_id
        assert loop.finish_reasons[request_id] == reason
