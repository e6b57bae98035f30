"""A scheduler small enough to be obviously right: tests say what runs, it keeps the books and makes
SchedulerOutputs."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.architecture.step import (
    CachedRequestData,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from learnvllm.executor_worker.model_runner import ModelRunner
from learnvllm.executor_worker.worker import Worker
from learnvllm.kv_cache.interface import KVCacheConfig
from tests.executor_worker.fake_model import load_fake_model, make_kv_cache_config

EOS = (2,)


@dataclass
class FakeRequest:
    req_id: str
    prompt: list[int]
    params: SamplingParams
    output: list[int] = field(default_factory=list)
    computed: int = 0
    blocks: list[list[int]] = field(default_factory=list)
    on_worker: bool = False

    @property
    def tokens(self) -> list[int]:
        return self.prompt + self.output

    @property
    def remaining(self) -> int:
        return len(self.tokens) - self.computed


class Driver:
    """Owns a worker's runner, the requests and the blocks. Blocks are handed out in random order."""

    def __init__(self, config: EngineConfig, num_blocks: int = 256, seed: int = 0) -> None:
        self.config = config
        self.kv_cache_config: KVCacheConfig = make_kv_cache_config(config, num_blocks)
        worker = Worker(config, load_model=load_fake_model)
        worker.init_device()
        worker.load_model()
        worker.initialize_from_config(self.kv_cache_config)
        self.runner: ModelRunner = worker.runner
        for k, v in self.runner.kv_caches.values():
            k.fill_(float("nan"))
            v.fill_(float("nan"))
        self.rng = random.Random(seed)
        self.free_blocks = list(range(1, num_blocks))
        self.rng.shuffle(self.free_blocks)
        self.requests: dict[str, FakeRequest] = {}
        self.finished: set[str] = set()
        self.preempted: set[str] = set()
        self.step_id = 0
        self.last_output: ModelRunnerOutput | None = None

    def add(self, req_id: str, prompt: list[int], params: SamplingParams | None = None) -> FakeRequest:
        self.requests[req_id] = FakeRequest(req_id, list(prompt), params or SamplingParams(temperature=0.0))
        return self.requests[req_id]

    def finish(self, req_id: str) -> FakeRequest:
        request = self.requests.pop(req_id)
        self._release(request)
        self.finished.add(req_id)
        return request

    def preempt(self, req_id: str) -> None:
        request = self.requests[req_id]
        if request.on_worker:
            self.preempted.add(req_id)
        self._release(request)

    def _release(self, request: FakeRequest) -> None:
        for blocks in request.blocks:
            self.free_blocks.extend(blocks)
        self.rng.shuffle(self.free_blocks)
        request.blocks, request.computed, request.on_worker = [], 0, False

    def step(self, scheduled: dict[str, int]) -> ModelRunnerOutput:
        """Compute so many tokens of each request, in this order; sampled tokens are appended to the
        requests."""
        new: list[NewRequestData] = []
        cached = CachedRequestData()
        for req_id, count in scheduled.items():
            request = self.requests[req_id]
            fresh = self._grow(request, request.computed + count)
            if request.on_worker:
                cached.req_ids.append(req_id)
                cached.new_block_ids.append(fresh if any(fresh) else None)
                cached.num_computed_tokens.append(request.computed)
            else:
                new.append(
                    NewRequestData(
                        req_id,
                        request.tokens,
                        len(request.prompt),
                        request.params,
                        EOS,
                        fresh,
                        request.computed,
                    )
                )
                request.on_worker = True
        output = self.runner.execute_model(
            SchedulerOutput(
                self.step_id,
                new,
                cached,
                dict(scheduled),
                sum(scheduled.values()),
                self.finished,
                self.preempted,
            )
        )
        self.step_id += 1
        self.finished, self.preempted = set(), set()
        for req_id, tokens in zip(output.req_ids, output.sampled_token_ids, strict=True):
            request = self.requests[req_id]
            request.computed += scheduled[req_id]
            assert len(tokens) == (request.computed == len(request.tokens))
            request.output.extend(tokens)
        self.last_output = output
        return output

    def decode(self, steps: int) -> None:
        """Run every request whole: its remaining tokens in one chunk, then one at a time."""
        for _ in range(steps):
            self.step({r.req_id: r.remaining for r in self.requests.values()})

    def _grow(self, request: FakeRequest, num_tokens: int) -> tuple[list[int], ...]:
        groups = self.kv_cache_config.groups
        if not request.blocks:
            request.blocks = [[] for _ in groups]
        fresh: tuple[list[int], ...] = tuple([] for _ in groups)
        for group, spec in enumerate(g.spec for g in groups):
            while len(request.blocks[group]) * spec.block_size < num_tokens:
                block = self.free_blocks.pop()
                request.blocks[group].append(block)
                fresh[group].append(block)
        return fresh
