"""The embedded model through the whole engine: 20 prompts of 5 to 900 tokens, 64 new tokens each, fp32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.assembly import LLM
from tests.engine.oracle import Oracle

pytestmark = pytest.mark.timeout(900)
LENGTHS = [5, 9, 15, 16, 17, 31, 33, 48, 64, 65, 100, 127, 129, 150, 200, 257, 300, 400, 512, 900]
NEW_TOKENS = 64
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(
        multiprocess=False,
        dtype="float32",
        max_model_len=1024,
        max_num_batched_tokens=256,
        max_num_seqs=len(LENGTHS),
        kv_cache_memory_bytes=512 << 20,
    ) as llm:
        yield llm


@pytest.fixture(scope="module")
def oracle(llm: LLM) -> Oracle:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(llm.config.model_config.path, dtype="float32")
    return Oracle(model.eval())


@pytest.fixture(scope="module")
def prompts(llm: LLM, repository: Path) -> list[list[int]]:
    """Pieces of a long English text, each from another place."""
    tokens = llm.get_tokenizer().encode((repository / "LICENSE").read_text(encoding="utf-8"))
    starts = [(i * 61) % (len(tokens) - length) for i, length in enumerate(LENGTHS)]
    return [tokens[start : start + length] for start, length in zip(starts, LENGTHS)]


def test_greedy_tokens_are_those_of_transformers(llm: LLM, oracle: Oracle, prompts: list[list[int]]) -> None:
    outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        oracle.check(prompt, output.outputs[0].token_ids, max_tokens=NEW_TOKENS)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_greedy_tokens_are_what_generate_gives(llm: LLM, oracle: Oracle, prompts: list[list[int]]) -> None:
    for prompt, output in zip(prompts, llm.generate(prompts, GREEDY, use_tqdm=False), strict=True):
        ours, theirs = output.outputs[0].token_ids, oracle.generate(prompt, NEW_TOKENS)
        if ours != theirs:  # only a tie may part them, and what follows must be greedy all the same
            with pytest.warns(match="tie at token"):
                Oracle(oracle.model).check(prompt, ours, max_tokens=NEW_TOKENS)


def test_a_chat_is_sensible(llm: LLM) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    output = llm.chat(messages, SamplingParams(temperature=0.0, max_tokens=32), use_tqdm=False)[0].outputs[0]
    assert "Paris" in output.text
    assert output.finish_reason == "stop"
    assert "<|im_end|>" not in output.text
