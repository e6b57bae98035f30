"""ARC-04: text never enters the engine. Render, generate and derender run in three processes of their own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.assembly import LLM
from tests.engine.three_processes import MESSAGES, derender, generate, render


def in_a_process(function: Callable[..., Any], *args: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, args)


def test_arc_04_render_generate_and_derender_need_not_share_a_process(tiny_model) -> None:
    directory = tiny_model("llama").directory
    prompts, rendering = in_a_process(render, directory)
    outputs, generating = in_a_process(generate, directory, prompts)
    texts, derendering = in_a_process(derender, directory, outputs)

    assert not {"torch", "learnvllm.engine_core.core"} & rendering
    assert "torch" not in derendering
    assert "torch" in generating
    assert not {"tokenizers", "jinja2", "learnvllm.engine_core.tokenizer"} & generating

    with LLM(
        str(directory), multiprocess=False, dtype="float32", num_gpu_blocks_override=64, num_threads=1
    ) as llm:
        expected = llm.chat(MESSAGES, SamplingParams(temperature=0.0, max_tokens=16), use_tqdm=False)
    assert texts == [output.outputs[0].text for output in expected]
