"""One request, from text to text, through the real parts and the embedded model: what Day 1 plays.

The front end's, the core's and the worker's parts are called one after another, in the order in which
`LLMEngine.step` reaches them, and between the calls it is written down what the request looks like there:
within a call it is half changed, and a recorder in there would have to be part of the engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from learnvllm.architecture.messages import EngineCoreOutputs, EngineCoreRequest
from learnvllm.architecture.request import Request
from learnvllm.architecture.sampling_params import RequestOutputKind, SamplingParams
from learnvllm.architecture.step import ModelRunnerOutput, SchedulerOutput
from learnvllm.assembly import build_tokenizer, create_engine_config
from learnvllm.engine_core.arg_utils import EngineArgs
from learnvllm.engine_core.build import build_engine_core
from learnvllm.engine_core.core import EngineCore
from learnvllm.engine_core.input_processor import InputProcessor
from learnvllm.engine_core.output_processor import OutputProcessor
from learnvllm.engine_core.serial import MsgpackEncoder
from learnvllm.engine_core.tokenizer import Tokenizer

Json = dict[str, Any]
PROMPT = "The capital of France is Paris. The capital of Italy is Rome. The capital of Japan is"
LIMITS: Json = {
    "max_model_len": 128,
    "block_size": 8,
    "num_gpu_blocks_override": 17,
    "max_num_batched_tokens": 16,
}
ARRIVAL = 1_700_000_000.0

SCENARIOS: tuple[tuple[str, str, str, Json], ...] = (
    (
        "length",
        "max_tokens ends it",
        "A prompt of more tokens than one step may compute, answered with five tokens by the embedded model.",
        {"max_tokens": 5},
    ),
    (
        "stop",
        "A stop string ends it",
        "The same prompt with a stop string of a full stop and two line breaks: three tokens. The front end "
        "holds back what could become it, finds it, and tells the core to stop.",
        {"max_tokens": 12, "stop": [".\n\n"]},
    ),
)


def record_request_life() -> Json:
    """Both scenarios. Loads the embedded model in float32: seconds.

    Raises:
        ModelLoadError: the embedded model is not there (`learnvllm models pull`).
    """
    args = EngineArgs.from_kwargs(
        {
            "dtype": "float32",
            "disable_log_stats": True,
            "async_scheduling": False,
            "max_num_seqs": 4,
            **LIMITS,
        }
    )
    config = create_engine_config(args)
    core = build_engine_core(config)
    try:
        tokenizer = build_tokenizer(config)
        fit = core.ready_message().kv_cache_tokens
        scenarios: list[Json] = []
        for name, title, intro, params in SCENARIOS:
            front = OutputProcessor(tokenizer)
            life = _Life(core, InputProcessor(config, tokenizer, fit), front, tokenizer)
            life.run(PROMPT, params)
            core.reset_prefix_cache()
            limits = {key: value for key, value in LIMITS.items() if key != "num_gpu_blocks_override"}
            scenarios.append(
                {
                    "id": name,
                    "title": title,
                    "intro": intro,
                    "config": {"model": config.served_model_name, **limits},
                    "params": params,
                    "prompt": PROMPT,
                    "tokens": life.tokens,
                    "moments": life.moments,
                }
            )
    finally:
        core.shutdown()
    return {"kind": "request", "scenarios": scenarios}


@dataclass
class _Life:
    """A request on its way, and what was written down of it."""

    core: EngineCore
    door: InputProcessor
    front: OutputProcessor
    tokenizer: Tokenizer
    moments: list[Json] = field(default_factory=list)
    tokens: list[Json] = field(default_factory=list)
    """All tokens in the end: id and text."""
    shown: str = ""
    held: str = ""
    request: Request | None = None
    first_step: int | None = None

    def run(self, prompt: str, params: Json) -> None:
        message = self._enter(prompt, params)
        self.request = self.core.preprocess_request(message)
        self.core.add_request(self.request)
        self._note("core", "queue", blocks_named=len(self.request.block_hashes))
        while self.core.scheduler.has_requests():
            self._step()
        self.tokens = [
            {"id": token, "text": self.tokenizer.decode([token], skip_special_tokens=False)}
            for token in self.request.all_token_ids
        ]

    def _enter(self, prompt: str, params: Json) -> EngineCoreRequest:
        self._note("client", "arrive")
        sampling = SamplingParams(temperature=0.0, output_kind=RequestOutputKind.DELTA, **params)
        text, message = self.door.process_inputs("cmpl-1", prompt, sampling, arrival_time=ARRIVAL)
        self._note("front", "tokenize", num_prompt=len(message.prompt_token_ids))
        self.front.add_request(message, text)
        self._note("front", "send", bytes=_size(message))
        return message

    def _step(self) -> None:
        scheduler, executor = self.core.scheduler, self.core.executor
        output = scheduler.schedule()
        if not output.total_num_scheduled_tokens:  # only to tell the worker whom to forget
            executor.execute_model(output)
            self._note("worker", "forget", requests=sorted(output.finished_req_ids))
            return
        if self.first_step is None:
            self.first_step = output.step_id
        step = output.step_id - self.first_step
        self._note("core", "schedule", step=step, **_describe(output))
        result = executor.execute_model(output)
        assert isinstance(result, ModelRunnerOutput)
        sampled = result.sampled_token_ids[0]
        self._note("worker", "forward", step=step, sampled=sampled, **_describe(output))
        outputs = scheduler.update_from_output(output, result).get(0) or EngineCoreOutputs()
        self._note(
            "core",
            "update",
            step=step,
            sampled=sampled,
            finished=bool(outputs.outputs and outputs.outputs[0].finished),
            bytes=_size(outputs) if outputs.outputs else 0,
        )
        if outputs.outputs:
            self._give_out(outputs, step)

    def _give_out(self, outputs: EngineCoreOutputs, step: int) -> None:
        state = self.front.request_states["cmpl-1"]
        before = self.shown
        processed = self.front.process_outputs(outputs.outputs)
        reason = None
        for delta in processed.request_outputs:
            self.shown += delta.outputs[0].text
            reason = delta.outputs[0].finish_reason
        self.held = "" if reason else state.detokenizer.text[len(self.shown) :]
        about: Json = {} if reason is None else {"finish_reason": str(reason)}
        self._note("front", "detokenize", step=step, new_text=self.shown[len(before) :], **about)
        if processed.reqs_to_abort:
            self.core.abort_requests(processed.reqs_to_abort)
            self._note("core", "abort", step=step)

    def _note(self, place: str, what: str, **about: Any) -> None:
        moment: Json = {"place": place, "what": what, **about, "shown": self.shown, "held": self.held}
        request = self.request
        if request is not None:
            tables = self.core.scheduler.kv_cache_manager.get_block_ids(request.request_id)  # type: ignore[attr-defined]
            moment |= {
                "status": request.status.name,
                "num_tokens": request.num_tokens,
                "num_computed": request.num_computed_tokens,
                "blocks": tables[0],
            }
        self.moments.append(moment)


def _describe(output: SchedulerOutput) -> Json:
    """What the worker gets for the one request of the step."""
    cached = output.scheduled_cached_reqs
    if output.scheduled_new_reqs:
        new = output.scheduled_new_reqs[0]
        start, blocks = new.num_computed_tokens, new.block_ids[0]
    else:
        ids = cached.new_block_ids[0]
        start, blocks = cached.num_computed_tokens[0], [] if ids is None else ids[0]
    count = output.total_num_scheduled_tokens
    return {"is_new": bool(output.scheduled_new_reqs), "start": start, "count": count, "new_blocks": blocks}


def _size(message: Any) -> int:
    return sum(memoryview(frame).nbytes for frame in MsgpackEncoder().encode(message))
