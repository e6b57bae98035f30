"""How far the default, weights in half precision, agrees with float32: `python benchmarks/agreement.py`.

float32 answers 20 prompts greedily. The default then (1) answers them itself and (2) is given float32's
answers and says at every position which token it would have chosen, and how likely it holds float32's.
"""

from __future__ import annotations

from statistics import mean, quantiles

from learnvllm import LLM, SamplingParams

PROMPTS = [
    *(
        "The capital of France is",
        "Once upon a time",
        "Water boils at",
        "def fibonacci(n):",
        "1, 2, 3, 5, 8,",
    ),
    *("Dear Sir or Madam,", "The three laws of motion are", "To bake bread you need", "SELECT name FROM"),
    *("The history of computing begins with", "A haiku about rain:", "Q: What is gravity?\nA:", "In 1969"),
    *("The difference between a list and a tuple is", "My favourite animal is", "# Introduction\n\n"),
    *("Once the model is loaded,", "Paris, London,", "The sum of 12 and 30 is", "Chapter 1. It was a dark"),
]
NEW_TOKENS = 64


def main() -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=0)
    with LLM(dtype="float32", max_model_len=512) as exact:
        theirs = exact.generate(PROMPTS, greedy, use_tqdm=False)
    with LLM(max_model_len=512) as default:
        ours = default.generate(PROMPTS, greedy, use_tqdm=False)
        known = [{"prompt_token_ids": [*r.prompt_token_ids, *r.outputs[0].token_ids]} for r in theirs]
        score = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        scored = default.generate(known, score, use_tqdm=False)
    same = sum(a.outputs[0].token_ids == b.outputs[0].token_ids for a, b in zip(ours, theirs))
    agreed, apart = [], []
    for exact_answer, row in zip(theirs, scored):
        for token, known_logprobs, entry in zip(
            exact_answer.outputs[0].token_ids,
            exact_answer.outputs[0].logprobs,
            row.prompt_logprobs[len(exact_answer.prompt_token_ids) :],
        ):
            agreed.append(entry[token].rank == 1)
            apart.append(abs(entry[token].logprob - known_logprobs[token].logprob))
    far = quantiles(apart, n=100)[98]
    print(f"answers of {NEW_TOKENS} tokens that are the same, token for token: {same} of {len(PROMPTS)}")
    print(
        f"given float32's text, its token is the default's first choice: {mean(agreed):.2%} of {len(agreed)}"
    )
    print(f"its log-probability: {mean(apart):.4f} apart on average, {far:.4f} for 99 in 100")


if __name__ == "__main__":
    main()
