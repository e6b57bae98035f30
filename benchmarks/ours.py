"""Our engine on the workloads that the peers run: `python benchmarks/ours.py --dtype auto`.

One line of JSON, same definitions as benchmarks/peers. The engine core runs in this process, as the peers'
do, unless --multiprocessing puts it in its own.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "peers"))
import workloads


def main() -> None:
    parser = workloads.arguments(__doc__.splitlines()[0], "directory, .gguf file, or 'embedded'")
    parser.set_defaults(model="embedded")
    for action in parser._actions:
        if action.dest == "model":
            action.required = False
    parser.add_argument("--dtype", default="auto", help="auto: fp16-packed weights; float32: exact")
    parser.add_argument("--multiprocessing", action="store_true", help="engine core in its own process")
    parser.add_argument("--async-scheduling", choices=["on", "off"], help="default: the platform's choice")
    parser.add_argument("--max-num-batched-tokens", type=int, help="token budget of a step")
    parser.add_argument("--prefill-tokens-per-decode", type=int, help="default: the platform's choice")
    args = parser.parse_args()
    os.environ["LEARNVLLM_NUM_THREADS"] = str(args.threads)
    os.environ["LEARNVLLM_ENABLE_MULTIPROCESSING"] = "1" if args.multiprocessing else "0"
    out = workloads.only_json_on_stdout()

    start = time.perf_counter()
    from learnvllm import LLM, SamplingParams, __version__

    flags = {}
    if args.async_scheduling:
        flags["async_scheduling"] = args.async_scheduling == "on"
    if args.max_num_batched_tokens:
        flags["max_num_batched_tokens"] = args.max_num_batched_tokens
    if args.prefill_tokens_per_decode is not None:
        flags["prefill_tokens_per_decode"] = args.prefill_tokens_per_decode
    llm = LLM(
        model=None if args.model == "embedded" else args.model,
        dtype=args.dtype,
        max_model_len=2048,
        enable_prefix_caching=False,
        **flags,
    )
    init_s = time.perf_counter() - start

    def generate(prompts: workloads.Prompts, max_tokens: int) -> int:
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, detokenize=False)
        outputs = llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return sum(len(o.outputs[0].token_ids) for o in outputs)

    results = workloads.measure(generate, args.workloads, args.repeats, args.seed)
    report = {
        "engine": "learnvllm",
        "version": __version__,
        "dtype": args.dtype,
        "threads": args.threads,
        "multiprocessing": args.multiprocessing,
        "init_s": round(init_s, 2),
        "workloads": results,
    }
    workloads.print_json(out, report)


if __name__ == "__main__":
    sys.exit(main())
