"""What each of three processes does in test_token_boundary.py; importing it imports next to nothing."""

from __future__ import annotations

import sys
from pathlib import Path

MESSAGES = [
    [{"role": "user", "content": "hello world 日本"}],
    [{"role": "system", "content": "the cache"}, {"role": "user", "content": "is on"}],
]


def render(directory: Path) -> tuple[list[list[int]], set[str]]:
    """Messages to token ids. Has a tokenizer and a template, no engine."""
    from learnvllm.engine_core.tokenizer import Tokenizer
    from learnvllm.serving.content import parse_messages
    from learnvllm.serving.renderer import Renderer

    renderer = Renderer(Tokenizer.from_directory(directory), max_model_len=256)
    prompts = [renderer.render_chat(parse_messages(messages)).token_ids for messages in MESSAGES]
    return prompts, set(sys.modules)


def generate(directory: Path, prompts: list[list[int]]) -> tuple[list[list[int]], set[str]]:
    """Token ids to token ids. Has an engine, no tokenizer."""
    from learnvllm.architecture.sampling_params import SamplingParams
    from learnvllm.engine_core.build import build_engine_core
    from tests.engine.engines import make_config, run_core

    core = build_engine_core(make_config(directory, max_model_len=256))
    outputs = run_core(core, prompts, SamplingParams(temperature=0.0, max_tokens=16))
    core.shutdown()
    return outputs, set(sys.modules)


def derender(directory: Path, outputs: list[list[int]]) -> tuple[list[str], set[str]]:
    """Token ids to text."""
    from learnvllm.engine_core.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_directory(directory)
    return [tokenizer.decode(output) for output in outputs], set(sys.modules)
