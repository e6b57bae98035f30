"""A client that leaves and comes back under the same name gets what it would get alone.

Reused request ids × n × stop strings × aborts, steps in flight or not: what was meant for the one who left
must not reach the one who came.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from learnvllm.architecture.sampling_params import RequestOutputKind, SamplingParams
from learnvllm.assembly import build_async_llm
from learnvllm.engine_core.async_llm import AsyncLLM
from tests.engine.engines import make_config

NAMES = ["a", "a#1", "b", "b#3", "a_0"]
VISITS = 12
Answer = dict[int, tuple[str, str]]
"""Of each completion: its text and why it ended."""


def wants(**more: Any) -> SamplingParams:
    kind = RequestOutputKind.DELTA
    return SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, output_kind=kind, **more)


WISHES = [wants(), wants(n=3), wants(n=2, stop=["a", "th"]), wants(stop=["e", " "])]
PROMPTS = [list(range(5, 25)), list(range(40, 46))]


async def ask(
    llm: AsyncLLM, name: str, prompt: list[int], params: SamplingParams, leave_after: int | None = None
) -> Answer:
    """leave_after: outputs after which the client leaves; None: it stays to the end."""
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    num_outputs = 0
    async with aclosing(llm.generate(prompt, params, name)) as outputs:
        async for output in outputs:
            for part in output.outputs:
                texts[part.index] = texts.get(part.index, "") + part.text
                if part.finish_reason is not None:
                    reasons[part.index] = str(part.finish_reason)
            num_outputs += 1
            if num_outputs == leave_after:
                break
    return {index: (text, reasons.get(index, "")) for index, text in texts.items()}


async def visit(llm: AsyncLLM, name: str, alone: dict[tuple[int, int], Answer]) -> int:
    """One client's visits. Returns how many it stayed through."""
    rng = random.Random(name)
    stayed = 0
    for _ in range(VISITS):
        which = rng.randrange(len(PROMPTS)), rng.randrange(len(WISHES))
        prompt, params = PROMPTS[which[0]], WISHES[which[1]]
        if rng.random() < 0.5:
            await ask(llm, name, prompt, params, leave_after=rng.randint(1, 6))
        else:
            assert await ask(llm, name, prompt, params) == alone[which]
            stayed += 1
    return stayed


@pytest.mark.parametrize("async_scheduling", [False, True], ids=["sync", "async"])
async def test_whoever_comes_back_gets_what_he_gets_alone(
    tiny_model: Callable[[str], Any], async_scheduling: bool
) -> None:
    config = make_config(tiny_model("llama").directory, async_scheduling=async_scheduling, max_num_seqs=4)
    llm = build_async_llm(config)
    try:
        alone = {
            (i, j): await ask(llm, f"alone-{i}-{j}", prompt, params)
            for i, prompt in enumerate(PROMPTS)
            for j, params in enumerate(WISHES)
        }
        assert len({reason for answer in alone.values() for _, reason in answer.values()}) == 2
        stayed = await asyncio.gather(*(visit(llm, name, alone) for name in NAMES))
        assert sum(stayed) > len(NAMES)
        assert llm.num_unfinished_requests() == 0
    finally:
        llm.shutdown()
