"""Runs in a process of its own: random tokens, stop strings and readers through an OutputProcessor.

Prints OK, or STOPPED and what --shadow said.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys

sys.path.insert(0, os.environ["LEARNVLLM_EXERCISES"])

from support.day02 import byte_fallback_tokenizer, byte_level_tokenizer

from learnvllm.architecture.messages import EngineCoreOutput, EngineCoreRequest, FinishReason
from learnvllm.architecture.sampling_params import RequestOutputKind, SamplingParams
from learnvllm.engine_core.output_collector import RequestOutputCollector
from learnvllm.engine_core.output_processor import OutputProcessor
from learnvllm.engine_core.tokenizer import Tokenizer
from learnvllm.study.shadow_engine import ShadowDivergence

STOPS: list[list[str]] = [[], ["a"], ["ab", "b c"], ["日"]]


async def one_request(tokenizer: Tokenizer, rng: random.Random) -> None:
    kind = rng.choice(list(RequestOutputKind))
    params = SamplingParams(
        max_tokens=30,
        output_kind=kind,
        stop=rng.choice(STOPS),
        stream_interval=rng.choice([1, 3]),
        include_stop_str_in_output=rng.random() < 0.3,
        min_tokens=rng.choice([0, 4]),
        skip_special_tokens=rng.random() < 0.5,
    )
    processor = OutputProcessor(tokenizer)
    queue = RequestOutputCollector(kind) if rng.random() < 0.7 else None
    prompt = tokenizer.encode(rng.choice(["hello", "a日", " "]), add_special_tokens=False)
    prompt = prompt[: rng.randrange(1, len(prompt) + 1)]
    processor.add_request(EngineCoreRequest("r", prompt, params, []), "hello", queue=queue)
    reader = None
    if queue is not None and rng.random() < 0.6:
        reader = asyncio.create_task(read_all(queue))
    text = "a" + "".join(rng.choice(["a", "b", " c", "日", "🎉", "x"]) for _ in range(20))
    tokens = tokenizer.encode(text, add_special_tokens=False)
    tokens = tokens[: rng.randrange(1, len(tokens))]  # perhaps within a character
    for _ in range(rng.choice([0, 0, 3])):  # any token anywhere: bytes that are no text, special ones
        tokens.insert(rng.randrange(len(tokens)), rng.randrange(tokenizer.backend.get_vocab_size()))
    while tokens:
        count = rng.choice([1, 1, 2])
        chunk, tokens = tokens[:count], tokens[count:]
        reason = None if tokens else rng.choice([FinishReason.LENGTH, FinishReason.STOP])
        processed = processor.process_outputs([EngineCoreOutput("r", chunk, finish_reason=reason)])
        if rng.random() < 0.5:
            await asyncio.sleep(0)
        if queue is not None and reader is None and rng.random() < 0.3:
            queue.get_nowait()
        if processed.reqs_to_abort:
            break
    if reader is not None:
        await reader


async def read_all(queue: RequestOutputCollector) -> None:
    while not (await queue.get()).finished:
        pass


async def main() -> None:
    rng = random.Random(0)
    for tokenizer in (byte_level_tokenizer(), byte_fallback_tokenizer()):
        for _ in range(40):
            await asyncio.wait_for(one_request(tokenizer, rng), 20)


if __name__ == "__main__":
    try:
        asyncio.run(main())
        print("OK")
    except ShadowDivergence as error:
        print("STOPPED", error)
