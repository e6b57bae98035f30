"""The mixed workload, once, for one engine: `python benchmarks/mixed.py --engine ours --dtype auto`.

64 requests with Poisson arrivals, 16 to 256 tokens in, 16 to 128 out. transformers runs it two ways: static
batches of 16 in order of arrival, and its continuous batching (`generate_batch`'s manager). One line of JSON.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Arrival:
    at: float
    """Seconds after the start."""
    prompt: list[int]
    output_len: int


def workload(seed: int, count: int = 64, rate: float = 8.0) -> list[Arrival]:
    """`rate` requests a second on average: the last of 64 comes after about 8 s.

    By then some 4,600 output tokens are asked for. An engine far below 600 tok/s has work all the time; one
    that gets near waits for arrivals, and its figure says how soon they come rather than how fast it is.
    """
    rng = random.Random(seed)
    at, arrivals = 0.0, []
    for _ in range(count):
        prompt = [rng.randint(10, 49000) for _ in range(rng.randint(16, 256))]
        arrivals.append(Arrival(at, prompt, rng.randint(16, 128)))
        at += rng.expovariate(rate)
    return arrivals


def ours(args: argparse.Namespace, arrivals: list[Arrival]) -> dict[str, object]:
    from learnvllm import SamplingParams
    from learnvllm.architecture.sampling_params import RequestOutputKind
    from learnvllm.assembly import EngineArgs, build_async_llm, create_engine_config

    config = create_engine_config(
        EngineArgs(dtype=args.dtype, max_model_len=2048, enable_prefix_caching=False)
    )
    ttft: list[float] = []
    gaps: list[float] = []

    async def one(llm: object, i: int, arrival: Arrival, start: float) -> int:
        await asyncio.sleep(max(0.0, start + arrival.at - time.perf_counter()))
        begin = last = time.perf_counter()
        params = SamplingParams(
            temperature=0.0,
            max_tokens=arrival.output_len,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        tokens = 0
        async for output in llm.generate({"prompt_token_ids": arrival.prompt}, params, f"r{i}"):
            now = time.perf_counter()
            (gaps if tokens else ttft).append(now - (last if tokens else begin))
            last = now
            tokens += len(output.outputs[0].token_ids)
        return tokens

    async def run() -> tuple[int, float]:
        llm = build_async_llm(config)
        try:
            await one(llm, -1, Arrival(0.0, list(range(100, 140)), 8), time.perf_counter())
            ttft.clear()
            gaps.clear()
            start = time.perf_counter()
            totals = await asyncio.gather(*(one(llm, i, a, start) for i, a in enumerate(arrivals)))
            return sum(totals), time.perf_counter() - start
        finally:
            llm.shutdown()

    tokens, seconds = asyncio.run(run())
    gaps.sort()
    return {
        "output_tok_s": tokens / seconds,
        "tokens": tokens,
        "ttft_p50_s": statistics.median(ttft),
        "itl_p50_ms": 1e3 * statistics.median(gaps),
        "itl_p99_ms": 1e3 * gaps[int(0.99 * (len(gaps) - 1))],
    }


def hf_model(path: str):
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def transformers_static(args: argparse.Namespace, arrivals: list[Arrival]) -> dict[str, object]:
    """Batches of 16 in order of arrival, left-padded, each as long as its longest request."""
    import torch

    model = hf_model(args.hf_model)
    with torch.inference_mode():
        model.generate(torch.tensor([[5] * 32]), max_new_tokens=4, do_sample=False)
        start = time.perf_counter()
        for i in range(0, len(arrivals), 16):
            batch = arrivals[i : i + 16]
            time.sleep(max(0.0, start + batch[-1].at - time.perf_counter()))  # waits for its last member
            width = max(len(a.prompt) for a in batch)
            ids = torch.tensor([[0] * (width - len(a.prompt)) + a.prompt for a in batch])
            mask = torch.tensor([[0] * (width - len(a.prompt)) + [1] * len(a.prompt) for a in batch])
            longest = max(a.output_len for a in batch)
            model.generate(ids, attention_mask=mask, max_new_tokens=longest, do_sample=False)
        seconds = time.perf_counter() - start
    tokens = sum(a.output_len for a in arrivals)
    return {"output_tok_s": tokens / seconds, "tokens": tokens}


def transformers_continuous(args: argparse.Namespace, arrivals: list[Arrival]) -> dict[str, object]:
    """The manager behind `generate_batch`, fed as requests arrive, each with its own output length."""
    from transformers import GenerationConfig

    model = hf_model(args.hf_model)
    config = GenerationConfig(max_new_tokens=128, do_sample=False, eos_token_id=-1, pad_token_id=0)
    tokens = 0
    with model.continuous_batching_context_manager(generation_config=config) as manager:
        manager.add_request(list(range(100, 140)), max_new_tokens=4)
        while manager.get_result(timeout=1) is None:
            pass
        start, waiting, done = time.perf_counter(), list(arrivals), 0
        while done < len(arrivals):
            while waiting and start + waiting[0].at <= time.perf_counter():
                arrival = waiting.pop(0)
                manager.add_request(arrival.prompt, max_new_tokens=arrival.output_len)
            result = manager.get_result(timeout=0.05)
            if result is not None and result.is_finished():
                done += 1
                tokens += len(result.generated_tokens)
        seconds = time.perf_counter() - start
    return {"output_tok_s": tokens / seconds, "tokens": tokens}


ENGINES = {
    "ours": ours,
    "transformers-static": transformers_static,
    "transformers-continuous": transformers_continuous,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", choices=list(ENGINES), required=True)
    parser.add_argument("--dtype", default="auto", help="ours only")
    parser.add_argument("--hf-model", default=os.environ.get("PEER_HF_MODEL"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to standard error
    report = ENGINES[args.engine](args, workload(args.seed))
    print(json.dumps({"engine": args.engine, **report}), file=out, flush=True)


if __name__ == "__main__":
    sys.exit(main())
