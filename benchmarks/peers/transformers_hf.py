"""Hugging Face transformers' `generate` on the shared workloads: `python transformers_hf.py --model DIR`.

Static batches: a batch starts together and ends together. Prints one line of JSON.
"""

import os
import sys
import time

import workloads


def main() -> None:
    parser = workloads.arguments(__doc__.splitlines()[0], "Hugging Face directory")
    parser.add_argument("--dtype", default="float32", help="of weights and activations")
    parser.add_argument("--max-batch", type=int, default=32, help="most requests in one static batch")
    parser.add_argument(
        "--preload", action="store_true", help="preload tcmalloc (and Intel's OpenMP if installed)"
    )
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(args.threads)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    preloaded = workloads.preload() if args.preload else []
    out = workloads.only_json_on_stdout()

    import torch
    import transformers

    torch.set_num_threads(args.threads)
    start = time.perf_counter()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        args.model, dtype=getattr(torch, args.dtype), attn_implementation="sdpa"
    ).eval()
    model.generation_config.eos_token_id = None  # else a row that ends early is padded, not computed
    model.generation_config.pad_token_id = 0
    init_s = time.perf_counter() - start

    @torch.inference_mode()
    def generate(prompts: workloads.Prompts, max_tokens: int) -> int:
        produced = 0
        for i in range(0, len(prompts), args.max_batch):
            ids = torch.tensor(
                prompts[i : i + args.max_batch]
            )  # [batch, prompt_len]: all prompts have one length
            output = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                use_cache=True,
            )
            produced += (output.shape[1] - ids.shape[1]) * len(ids)
        return produced

    results = workloads.measure(generate, args.workloads, args.repeats, args.seed)
    workloads.print_json(
        out,
        {
            "engine": "transformers",
            "version": transformers.__version__,
            "torch": torch.__version__,
            "dtype": args.dtype,
            "threads": torch.get_num_threads(),
            "max_batch": args.max_batch,
            "preloaded": preloaded,
            "init_s": round(init_s, 1),
            "workloads": results,
        },
    )


if __name__ == "__main__":
    sys.exit(main())
