"""`learnvllm generate`: continue prompts and print what comes, text as it comes or one JSON object a line.

All prompts run at once; with several, an answer is printed when those before it are. The engine is driven
step by step, as in any program that has its own loop.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from learnvllm.architecture.errors import ValidationError
from learnvllm.architecture.outputs import CompletionOutput, RequestOutput
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.architecture.text import is_utf8, to_path
from learnvllm.engine_core.llm_engine import LLMEngine
from learnvllm.serving.content import ChatMessage, shorten
from learnvllm.serving.parsing import parse_request
from learnvllm.serving.protocol import GenerationRequest
from learnvllm.serving.renderer import RenderedPrompt, Renderer


def read_prompts(arguments: list[str], file: str | None) -> list[str]:
    """From the command line, a file (one a line), or else all of stdin as one prompt.

    Raises:
        ValidationError: there is none, or the file cannot be read.
    """
    if arguments and file:
        raise ValidationError("Give prompts or --file, not both.", parameter="file", value=file)
    if file is not None:
        try:
            lines = to_path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise ValidationError(f"--file {file} cannot be read: {error}.", parameter="file") from None
        prompts = [line for line in lines if line.strip()]
    elif arguments:
        prompts = arguments
    else:
        if sys.stdin is not None and sys.stdin.isatty():
            print("Type a prompt, end with Ctrl-D:", file=sys.stderr)
        prompts = [_read_stdin()]
    if not all(map(is_utf8, prompts)):
        raise ValidationError("A prompt is not valid UTF-8.", parameter="prompt")
    if not prompts or not all(prompts):
        raise ValidationError("There is no prompt. Give one as an argument, in --file, or on stdin.")
    return prompts


def _read_stdin() -> str:
    try:
        return "" if sys.stdin is None else sys.stdin.read()
    except (OSError, ValueError) as error:
        raise ValidationError(f"The prompt on stdin cannot be read: {error}.", parameter="prompt") from None


def make_params(
    values: dict[str, Any], *, max_tokens: int, logprobs: int | None, stream: bool
) -> SamplingParams:
    """Check the sampling fields, before an engine is started for them.

    Raises:
        ValidationError: a value is out of range.
    """
    return parse_request(GenerationRequest, {"stream": stream, **values}).sampling_params(
        max_tokens, logprobs
    )


def run(engine: LLMEngine, prompts: list[str], params: SamplingParams, *, chat: bool, as_json: bool) -> int:
    """Run all prompts and print their answers.

    Args:
        chat: put each prompt into the chat template.
    Raises:
        ValidationError: a prompt cannot be served; nothing runs then.
    """
    assert engine.tokenizer is not None
    renderer = Renderer(engine.tokenizer, engine.config.max_model_len)
    rendered = [_render(renderer, prompt, chat) for prompt in prompts]
    for prompt in rendered:
        renderer.output_limit(prompt, params.max_tokens, "prompt")
    ids = {f"generate-{uuid.uuid4()}": i for i in range(len(prompts))}  # the noise of unseeded sampling
    for request_id, index in ids.items():
        engine.add_request(request_id, rendered[index].token_ids, params)
    printer = _JsonPrinter(prompts) if as_json else _TextPrinter(prompts, n=params.n)
    failed: dict[str, None] = {}
    try:
        for output in _outputs(engine):
            printer.add(ids[output.request_id], output)
            if output.failed:
                failed[output.request_id] = None
    finally:
        engine.abort_request(list(ids))
        if isinstance(printer, _TextPrinter):
            printer.end()
    for request_id in failed:
        what = shorten(prompts[ids[request_id]], 60)
        print(f"learnvllm generate: the engine failed on {what}; its log says why.", file=sys.stderr)
    return 1 if failed else 0


def _render(renderer: Renderer, prompt: str, chat: bool) -> RenderedPrompt:
    if chat:
        return renderer.render_chat([ChatMessage("user", prompt)])
    return renderer.encode(prompt, add_special_tokens=True)


def _outputs(engine: LLMEngine) -> Iterator[RequestOutput]:
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.error is not None:
                raise output.error
            yield output


class _JsonPrinter:
    """One line per prompt, when it is finished."""

    def __init__(self, prompts: list[str]) -> None:
        self.prompts = prompts

    def add(self, index: int, output: RequestOutput) -> None:
        line = {
            "index": index,
            "prompt": self.prompts[index],
            "num_prompt_tokens": len(output.prompt_token_ids),
            "num_cached_tokens": output.num_cached_tokens,
            "outputs": [_completion_as_dict(completion) for completion in output.outputs],
        }
        print(json.dumps(line, ensure_ascii=False), flush=True)


def _completion_as_dict(completion: CompletionOutput) -> dict[str, Any]:
    values = asdict(completion)
    return {name: value for name, value in values.items() if value is not None or name == "stop_reason"}


@dataclass
class _Answer:
    """What has come of one completion."""

    text: str = ""
    printed: int = 0
    """Characters of `text`."""
    titled: bool = False
    """Its turn has come, though there may be no text yet."""
    finished: bool = False


@dataclass
class _TextPrinter:
    """Prints answers in order; the one whose turn it is, as it grows."""

    prompts: list[str]
    n: int
    answers: dict[tuple[int, int], _Answer] = field(default_factory=dict)
    """By (prompt, index of the completion)."""
    turn: tuple[int, int] = (0, 0)

    def add(self, index: int, output: RequestOutput) -> None:
        for completion in output.outputs:
            answer = self.answers.setdefault((index, completion.index), _Answer())
            answer.text += completion.text
            answer.finished = completion.finished
        self._print()

    def _print(self) -> None:
        while (answer := self.answers.get(self.turn)) is not None:
            if not answer.titled and (len(self.prompts) > 1 or self.n > 1):
                print(f"\n--- {self._title()}")
            answer.titled = True
            print(answer.text[answer.printed :], end="", flush=True)
            answer.printed = len(answer.text)
            if not answer.finished:
                return
            print(flush=True)
            prompt, number = self.turn
            self.turn = (prompt, number + 1) if number + 1 < self.n else (prompt + 1, 0)

    def _title(self) -> str:
        prompt, number = self.turn
        return shorten(self.prompts[prompt], 60) + (f" ({number + 1})" if number else "")

    def end(self) -> None:
        """A line of its own for whatever comes next, where an answer was cut off."""
        answer = self.answers.get(self.turn)
        if answer is not None and answer.titled:
            print(flush=True)
