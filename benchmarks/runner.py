"""What the model runner itself costs a step: `python benchmarks/runner.py`.

The model is replaced by one that answers at once with ready logits over SmolLM2's vocabulary, so what is left
of a step is the runner: deltas into rows, inputs, attention metadata, sampling, output. Prints medians of the
time of a step in ms, by number of requests and by what they ask of the sampler, and writes them to --json.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from learnvllm.architecture.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
)
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.architecture.step import CachedRequestData, NewRequestData, SchedulerOutput
from learnvllm.executor_worker.worker import Worker
from learnvllm.kv_cache.interface import KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from learnvllm.model_layers.attention import StepContext
from learnvllm.model_layers.model import DecoderModel
from learnvllm.scheduling.toy import toy_architecture

VOCAB, BLOCK_SIZE, PROMPT_LEN = 49152, 16, 128
GOAL_MS = 1.5  # at 16 greedy requests: the runner's part of the engine's 8 % of a 75 ms step

KINDS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature": SamplingParams(temperature=0.7),
    "top-p 0.9": SamplingParams(top_p=0.9),
    "top-k 50": SamplingParams(top_k=50),
    "top-k 50, top-p 0.9": SamplingParams(top_k=50, top_p=0.9),
    "min-p 0.05": SamplingParams(min_p=0.05),
    "greedy, penalties": SamplingParams(temperature=0.0, repetition_penalty=1.1, presence_penalty=0.5),
    "greedy, min-tokens": SamplingParams(temperature=0.0, min_tokens=10_000),
    "greedy, 5 logprobs": SamplingParams(temperature=0.0, logprobs=5),
}


class NullModel(DecoderModel):
    """Answers without computing: hidden states of nothing, logits made beforehand."""

    def __init__(self, config: EngineConfig) -> None:
        self.arch = config.model_config.arch
        rows = config.scheduler_config.max_num_seqs
        self.ready = torch.from_numpy(np.random.default_rng(0).normal(0, 3, (rows, VOCAB)).astype(np.float32))
        self.seconds = 0.0

    def weight_bytes(self) -> int:
        return 0

    def forward(self, input_ids: Tensor, positions: Tensor, ctx: StepContext) -> Tensor:
        return torch.empty(len(input_ids), 1)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        start = time.perf_counter()
        logits = self.ready[: len(hidden)].clone()  # the sampler may overwrite them
        self.seconds += time.perf_counter() - start
        return logits


def make_config(num_requests: int, steps: int) -> EngineConfig:
    arch = toy_architecture(
        vocab_size=VOCAB,
        hidden_size=1,
        head_dim=1,
        max_position_embeddings=8192,
        eos_token_ids=(2,),
    )
    return EngineConfig(
        model_config=ModelConfig(model="null", path=Path(), arch=arch, max_model_len=PROMPT_LEN + 2 * steps),
        cache_config=CacheConfig(block_size=BLOCK_SIZE),
        scheduler_config=SchedulerConfig(max_num_seqs=num_requests),
        device_config=DeviceConfig(device="cpu"),
    )


def measure(num_requests: int, params: SamplingParams, steps: int) -> tuple[float, float]:
    """(milliseconds of a whole decode step without the model, of it before the model is called): medians."""
    config = make_config(num_requests, steps)
    model = NullModel(config)
    worker = Worker(config, load_model=lambda _: model)
    worker.init_device()
    worker.load_model()
    spec = next(iter(model.kv_cache_specs(BLOCK_SIZE).values()))
    layers = tuple(model.layer_names)
    per_request = -(-config.max_model_len // BLOCK_SIZE)
    worker.initialize_from_config(
        KVCacheConfig(
            1 + num_requests * per_request,
            BLOCK_SIZE,
            (KVCacheGroupSpec(layers, spec),),
            tuple(KVCacheTensor((name,)) for name in layers),
        )
    )
    worker.compile_or_warm_up_model()
    names = [f"request-{i}" for i in range(num_requests)]
    blocks = {n: list(range(1 + i * per_request, 1 + (i + 1) * per_request)) for i, n in enumerate(names)}
    prompt = list(range(100, 100 + PROMPT_LEN))
    first = PROMPT_LEN // BLOCK_SIZE
    new = [NewRequestData(n, prompt, PROMPT_LEN, params, (2,), (blocks[n][:first],), 0) for n in names]
    prefill = dict.fromkeys(names, PROMPT_LEN)
    worker.execute_model(SchedulerOutput(0, new, CachedRequestData(), prefill, num_requests * PROMPT_LEN))

    entered = 0.0
    forward = model.forward

    def note_time(input_ids: Tensor, positions: Tensor, ctx: StepContext) -> Tensor:
        nonlocal entered
        entered = time.perf_counter()
        return forward(input_ids, positions, ctx)

    model.forward = note_time  # type: ignore[method-assign]
    whole, before = [], []
    for step in range(1, steps + 1):
        computed = PROMPT_LEN + step - 1
        fresh = ([b[computed // BLOCK_SIZE]] for b in blocks.values()) if computed % BLOCK_SIZE == 0 else None
        new_blocks = [(ids,) for ids in fresh] if fresh else [None] * num_requests
        cached = CachedRequestData(names, new_blocks, [computed] * num_requests)
        output = SchedulerOutput(step, [], cached, dict.fromkeys(names, 1), num_requests)
        model.seconds = 0.0
        start = time.perf_counter()
        worker.execute_model(output)
        whole.append(time.perf_counter() - start - model.seconds)
        before.append(entered - start)
    return statistics.median(whole) * 1e3, statistics.median(before) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--json", type=Path, help="write every figure here")
    args = parser.parse_args()
    results: dict[str, dict[int, dict[str, float]]] = {}
    print(f"{'ms a step, without the model':30}" + "".join(f"{n:>10}" for n in args.requests))
    for name, params in KINDS.items():
        row = {}
        for n in args.requests:
            step_ms, inputs_ms = measure(n, params, args.steps if n <= 64 else args.steps // 4)
            row[n] = {"step_ms": step_ms, "inputs_ms": inputs_ms}
        results[name] = row
        print(f"{name:30}" + "".join(f"{row[n]['step_ms']:10.3f}" for n in args.requests), flush=True)
    greedy = results["greedy"]
    print(
        f"{'  of it building inputs':30}" + "".join(f"{greedy[n]['inputs_ms']:10.3f}" for n in args.requests)
    )
    if 16 in greedy:
        verdict = "met" if greedy[16]["step_ms"] <= GOAL_MS else "MISSED"
        print(f"\n16 greedy requests: {greedy[16]['step_ms']:.3f} ms, goal {GOAL_MS} ms: {verdict}")
    if args.json:
        args.json.write_text(json.dumps({"threads": torch.get_num_threads(), "ms": results}, indent=1))


if __name__ == "__main__":
    main()
