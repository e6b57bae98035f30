"""Text never enters the engine: render, generate and derender run in three processes that share token ids.

ARC-04. The one in the middle has a model directory without a tokenizer in it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

MESSAGES = [{"role": "user", "content": "hello paged world"}]
PARAMS = {"max_tokens": 16, "temperature": 0.0}

RENDER = """
import json, sys
from pathlib import Path
from learnvllm.engine_core.tokenizer import Tokenizer
from learnvllm.serving.content import parse_messages
from learnvllm.serving.renderer import Renderer

given = json.load(sys.stdin)
renderer = Renderer(Tokenizer.from_directory(Path(given["model"])), max_model_len=512)
print(json.dumps(renderer.render_chat(parse_messages(given["messages"])).token_ids))
assert "torch" not in sys.modules  # a renderer scales without an engine's weight
"""

GENERATE = """
import json, sys
from learnvllm.architecture.messages import EngineCoreRequest
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.assembly import create_engine_config
from learnvllm.engine_core.arg_utils import EngineArgs
from learnvllm.engine_core.build import build_engine_core
from learnvllm.engine_core.core_client import InprocClient

given = json.load(sys.stdin)
args = EngineArgs(model=given["model"], dtype="float32", max_model_len=512, num_gpu_blocks_override=64)
client = InprocClient(build_engine_core(create_engine_config(args)))
client.add_request(EngineCoreRequest("r", given["token_ids"], SamplingParams(**given["params"])))
token_ids, finished = [], None
while finished is None:
    for output in client.get_output().outputs:
        token_ids += output.new_token_ids
        finished = output.finish_reason
client.shutdown()
print(json.dumps({"token_ids": token_ids, "finish_reason": str(finished)}))
"""

DERENDER = """
import json, sys
from pathlib import Path
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.engine_core.detokenizer import IncrementalDetokenizer
from learnvllm.engine_core.tokenizer import Tokenizer

given = json.load(sys.stdin)
tokenizer = Tokenizer.from_directory(Path(given["model"]))
detokenizer = IncrementalDetokenizer(tokenizer, given["prompt"], SamplingParams(**given["params"]))
detokenizer.update(given["token_ids"], stop_terminated=given["finish_reason"] == "stop")
detokenizer.finish()
print(json.dumps(detokenizer.next_text(finished=True, delta=False)))
assert "torch" not in sys.modules
"""


def in_a_process(program: str, **given: Any) -> Any:
    result = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(given), capture_output=True, text=True, timeout=280
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_render_generate_and_derender_share_token_ids_only(tiny_model: Path, tmp_path: Path) -> None:
    without_tokenizer = tmp_path / "model"
    shutil.copytree(tiny_model, without_tokenizer, ignore=shutil.ignore_patterns("*token*"))
    assert not (without_tokenizer / "tokenizer.json").exists()

    prompt = in_a_process(RENDER, model=str(tiny_model), messages=MESSAGES)
    generated = in_a_process(GENERATE, model=str(without_tokenizer), token_ids=prompt, params=PARAMS)
    text = in_a_process(DERENDER, model=str(tiny_model), prompt=prompt, params=PARAMS, **generated)

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    assert prompt == tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    oracle = model.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)[0, len(prompt) :]
    assert generated["token_ids"] == oracle.tolist()
    assert text == tokenizer.decode(oracle, skip_special_tokens=True)
