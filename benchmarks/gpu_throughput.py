"""Tokens per second on one GPU, and what its memory and matrix units allow: `gpu_throughput.py`.

Qwen3-0.6B's shape with random weights in bf16, the engine in this process, prefix caching off, temperature
0.6. The workloads are those that vLLM 0.26.0 was measured with on an H200; its figures stand beside ours, but
two runs on such a machine differ by up to 20 %, so only interleaved runs compare. `--profile` says where the
host's time goes in a step.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import random
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from learnvllm.architecture.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    ObservabilityConfig,
    SchedulerConfig,
)
from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.architecture.sampling_params import RequestOutputKind, SamplingParams
from learnvllm.engine_core.build import build_engine_core
from learnvllm.engine_core.core_client import InprocClient
from learnvllm.engine_core.llm_engine import LLMEngine

QWEN3_06B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "head_dim": 128,
    "bos_token_id": 151643, "eos_token_id": 151645, "hidden_act": "silu", "hidden_size": 1024,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "num_attention_heads": 16,
    "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 151936,
}  # fmt: skip
COPY_BYTES_PER_S, FLOP_PER_S = 4.259e12, 792e12  # measured on an H200
LIMITS = {"throughput": 36_100, "single": 3_450, "ttft_ms": 1.3}
VLLM = {"throughput": 20_466, "single": 498, "ttft_ms": 21.0, "prefill": 430_000, "decode_8": 3_700,
        "decode_32": 11_900, "decode_64": 19_300, "decode_128": 28_700, "decode_256": 31_000}  # fmt: skip


class HostProfile:
    """Seconds spent in the parts of a step, by wrapping their methods."""

    def __init__(self, engine: LLMEngine) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.steps = 0
        core = engine.engine_core.core  # type: ignore[attr-defined]
        self._wrap(core.scheduler, "schedule", "schedule")
        self._wrap(core.executor, "_execute", "build and launch")
        self._wrap(core.scheduler, "update_from_output", "update")
        self._wrap(core, "_finish_step", "wait for the device, and update")
        self._wrap(core, "step", "core step")
        self._wrap(engine.output_processor, "process_outputs", "process outputs")
        runner = core.executor._worker.runner
        for name in ("_update_states", "_send", "_forward"):
            if hasattr(runner, name):
                self._wrap(runner, name, f"launch: {name}")
        if hasattr(runner, "graphs"):
            self._wrap(runner.graphs, "replay", "launch: replay")

    def _wrap(self, owner: Any, method: str, part: str) -> None:
        call = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = call(*args, **kwargs)
            self.seconds[part] += time.perf_counter() - start
            self.steps += part == "core step"
            return result

        setattr(owner, method, timed)

    def take(self) -> dict[str, float]:
        """Microseconds a step by part, since the last call."""
        steps, self.steps = max(self.steps, 1), 0
        parts = {part: round(1e6 * s / steps, 1) for part, s in sorted(self.seconds.items())}
        self.seconds.clear()
        return {"steps": steps, **parts}


class Bench:
    """An engine and the results so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.results: dict[str, Any] = {"environment": environment(), "args": vars(args)}
        directory = Path(tempfile.mkdtemp())
        (directory / "config.json").write_text(json.dumps(QWEN3_06B))
        model = ModelConfig(
            model="qwen3-0.6b-shape",
            path=directory,
            arch=ModelArchitecture.from_directory(directory),
            max_model_len=4096,
            load_format="dummy",
            enforce_eager=args.eager,
        )
        self.config = EngineConfig(
            model,
            cache_config=CacheConfig(enable_prefix_caching=False, gpu_memory_utilization=0.6),
            scheduler_config=SchedulerConfig(max_num_batched_tokens=args.budget, max_num_seqs=256),
            device_config=DeviceConfig(device=args.device),
            observability_config=ObservabilityConfig(log_stats=False),
        )
        start = time.perf_counter()
        core = build_engine_core(self.config)
        self.engine = LLMEngine(self.config, None, InprocClient(core))
        self.record("engine_start_s", time.perf_counter() - start)
        self.record("runner", str(core.executor._worker.choice))  # type: ignore[attr-defined]
        self.random = random.Random(1)
        self.profile = HostProfile(self.engine) if args.profile else None
        self._next = 0

    def record(self, name: str, value: Any) -> None:
        self.results[name] = value
        shown = f"{value:,.1f}" if isinstance(value, float) else value
        print(f"{name:<22} {shown}", flush=True)

    def prompts(self, count: int, length: int) -> list[list[int]]:
        return [[self.random.randint(0, 10000) for _ in range(length)] for _ in range(count)]

    def run(self, prompts: list[list[int]], lengths: list[int]) -> float:
        """Seconds from the first request's arrival to the last token."""
        start = time.perf_counter()
        for prompt, length in zip(prompts, lengths):
            params = SamplingParams(
                temperature=0.6,
                ignore_eos=True,
                max_tokens=length,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
            self.engine.add_request(str(self._next), {"prompt_token_ids": prompt}, params)
            self._next += 1
        found = {}
        while self.engine.has_unfinished_requests():
            for output in self.engine.step():
                found[output.request_id] = len(output.outputs[0].token_ids)
        seconds = time.perf_counter() - start
        assert sorted(found.values()) == sorted(lengths), "not everybody got all tokens"
        return seconds

    def functions(self, prompts: list[list[int]], length: int) -> None:
        """Which functions a step's time on the host goes to, by cProfile (which slows all of them)."""
        profiler = cProfile.Profile()
        profiler.enable()
        self.run(prompts, [length] * len(prompts))
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(30)

    def kernels(self, streams: int, length: int) -> None:
        """Which kernels the device's time in a decode of so many streams goes to: microseconds a step."""
        prompts = self.prompts(streams, length)
        self.run(prompts, [2] * streams)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            self.run(prompts, [33] * streams)
        found = sorted(profiler.key_averages(), key=lambda event: -event.device_time_total)
        print(f"\nkernels of 32 decodes of {streams} x {length} and the prefill: ms, calls, name")
        for event in found[:16]:
            print(f"{event.device_time_total / 1e3:9.2f} {event.count:7d}  {event.key[:80]}")

    def note_profile(self, name: str) -> None:
        if self.profile is not None:
            self.record(f"host_us_{name}", self.profile.take())

    # ------------------------------------------------------------------------------------------- workloads

    def throughput(self) -> None:
        """256 requests, prompts and outputs of 100 to 1,024 tokens."""
        random.seed(0)
        prompts = [[random.randint(0, 10000) for _ in range(random.randint(100, 1024))] for _ in range(256)]
        lengths = [random.randint(100, 1024) for _ in range(256)]
        rates = [sum(lengths) / self.run(prompts, lengths) for _ in range(2)]
        self.record("throughput", max(rates))
        self.record("throughput_runs", [round(rate) for rate in rates])

    def single(self) -> None:
        """One stream, 128 tokens in, 512 out."""
        self.record("single", 512 / min(self.run(self.prompts(1, 128), [512]) for _ in range(3)))

    def ttft(self) -> None:
        times = [self.run(self.prompts(1, 1024), [1]) for _ in range(12)][2:]
        self.record("ttft_ms", 1e3 * statistics.median(times))

    def prefill(self) -> None:
        times = [self.run(self.prompts(256, 1024), [1] * 256) for _ in range(2)]
        self.record("prefill", 256 * 1024 / min(times))

    def decode(self) -> None:
        for streams in (8, 32, 64, 128, 256):
            prompts = self.prompts(streams, 128)
            first = min(self.run(prompts, [1] * streams) for _ in range(2))
            self.record(f"decode_{streams}", streams * 128 / (self.run(prompts, [129] * streams) - first))
            self.note_profile(f"decode_{streams}")


def environment() -> dict[str, str]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True)
    return {"gpu": gpu, "torch": torch.__version__, "commit": commit.stdout.strip()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--budget", type=int, default=8192, help="tokens of a step")
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--profile", action="store_true", help="host time of a step by part")
    parser.add_argument("--only", nargs="*", help="workloads; default: all")
    parser.add_argument("--commit", help="what is measured, where there is no repository")
    parser.add_argument("--out", type=Path, help="JSON file")
    args = parser.parse_args()
    out, args.out = args.out, str(args.out)
    bench = Bench(args)
    if args.commit:
        bench.results["environment"]["commit"] = args.commit
    workloads: dict[str, Callable[[], None]] = {
        "single": bench.single,
        "ttft": bench.ttft,
        "decode": bench.decode,
        "prefill": bench.prefill,
        "throughput": bench.throughput,
    }
    for length in (200, 128, 1024):  # what is compiled for a size of step is compiled here
        bench.run(bench.prompts(4, length), [8] * 4)
        bench.run(bench.prompts(1, length), [2])
    bench.note_profile("warm_up")
    for name in args.only or workloads:
        workloads[name]()
        bench.note_profile(name)
        if out:
            out.write_text(json.dumps(bench.results, indent=1) + "\n")
    if args.profile:
        bench.functions(bench.prompts(1, 16), 200)
        bench.functions(bench.prompts(64, 16), 64)
        bench.kernels(1, 16)
        bench.kernels(128, 850)
    late = bench.engine.engine_core.core.executor.collective_rpc("late_compilations")[0]  # type: ignore[attr-defined]
    bench.record("late_compilations", late)
    print(f"\n{'':<14}{'ours':>12}{'vLLM 0.26':>12}{'ratio':>8}{'limit':>10}{'of limit':>10}")
    for name, theirs in VLLM.items():
        if name in bench.results:
            ours, limit = bench.results[name], LIMITS.get(name)
            better = theirs / ours if name.endswith("_ms") else ours / theirs
            share = "" if limit is None else f"{(limit / ours if name.endswith('_ms') else ours / limit):.0%}"
            print(f"{name:<14}{ours:>12,.1f}{theirs:>12,.0f}{better:>8.2f}{limit or '':>10}{share:>10}")


if __name__ == "__main__":
    main()
