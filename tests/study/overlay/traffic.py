"""Random but repeatable traffic for a scheduler: shared prefixes, aborts, resets, a pool that runs short."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.request import Request, RequestStatus
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.kv_cache.interface import KVCacheConfig
from learnvllm.scheduling.toy import ToyDevice, make_kv_cache, toy_config, toy_kv_cache

BLOCK_SIZE = 4


@dataclass(frozen=True)
class Scenario:
    """One configuration that traffic runs under."""

    scheduler: str = "Scheduler"
    windows: tuple[int, ...] = ()
    """Sliding-window groups beside the full one."""
    eviction: str = "lru"
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def home(self) -> str:
        return "learnvllm.scheduling." + ("scheduler" if self.scheduler == "Scheduler" else "async_scheduler")

    def config(self) -> EngineConfig:
        from dataclasses import replace

        usual = {"max_num_batched_tokens": 32, "max_num_seqs": 8, "prefill_tokens_per_decode": 1}
        if not self.options.get("enable_chunked_prefill", True):
            usual["prefill_tokens_per_decode"] = 0
        config = toy_config(
            num_blocks=24 + 16 * len(self.windows),
            block_size=BLOCK_SIZE,
            max_model_len=64,
            enable_prefix_caching=True,
            watermark=0.1,
            **{**usual, **self.options},
        )
        cache = replace(
            config.cache_config, prefix_cache_eviction=self.eviction, prefix_caching_hash_seed="a"
        )
        return replace(config, cache_config=cache)

    def kv_cache(self, config: EngineConfig) -> KVCacheConfig:
        return make_kv_cache(toy_kv_cache(config).num_blocks, BLOCK_SIZE, (None, *self.windows))


SCENARIOS = {
    "tight": Scenario(),
    "async": Scenario("AsyncScheduler"),
    "whole prompts": Scenario(
        options={
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": 64,
            "long_prefill_token_threshold": 9,
        }
    ),
    "thresholds": Scenario(
        options={
            "long_prefill_token_threshold": 9,
            "max_num_batched_tokens": 24,
            "prefill_tokens_per_decode": 0,
        }
    ),
    "priority": Scenario("AsyncScheduler", options={"policy": "priority"}),
    "shortest": Scenario(options={"policy": "shortest"}),
    "windows": Scenario(windows=(7, 18)),
    "segmented": Scenario(eviction="segmented"),
}


def drive(scheduler: Any, *, pipelined: bool, seed: int = 0, steps: int = 180) -> int:
    """Run traffic through `scheduler`; returns how many requests came. What it raises comes out."""
    rng, device, count = random.Random(seed), ToyDevice(), 0
    alive: set[str] = set()
    in_flight: deque[Any] = deque()
    for step in range(steps):
        busy = step % 60 < 45  # then a pause, in which all finish and the cache may be reset
        arrivals = rng.randrange(1, 8) if busy and rng.random() < 0.2 and len(alive) < 10 else 0
        for _ in range(arrivals):
            scheduler.add_request(_request(f"r{count}", rng, scheduler, step))
            alive.add(f"r{count}")
            count += 1
        if alive and rng.random() < 0.05:
            gone = rng.choice(sorted(alive))
            scheduler.finish_requests([gone], RequestStatus.FINISHED_ABORTED)
            alive.discard(gone)
        if step % 60 == 59 or rng.random() < 0.02:
            scheduler.reset_prefix_cache()
        if scheduler.has_requests():
            output = scheduler.schedule()
            in_flight.append((output, device.execute(output)))
        if in_flight and (not pipelined or len(in_flight) > 1 or not scheduler.has_requests()):
            for outputs in scheduler.update_from_output(*in_flight.popleft()).values():
                alive -= {output.request_id for output in outputs.outputs if output.finished}
    return count


def _request(request_id: str, rng: random.Random, scheduler: Any, step: int) -> Request:
    start = rng.choice([3, 5])  # half of all prompts begin alike
    prompt = [start * i % 50 for i in range(rng.choice([4, 16, 30]))]
    prompt += [rng.randrange(50) for _ in range(rng.choice([0, rng.randrange(1, 20)]))]
    return Request(
        request_id,
        prompt,
        SamplingParams(max_tokens=rng.randrange(1, 20), prompt_logprobs=rng.choice([None] * 9 + [1])),
        arrival_time=step / 10,
        priority=rng.randrange(3),
        cache_salt=rng.choice([None, None, "", "a"]),
        block_hasher=scheduler.block_hasher,
    )
