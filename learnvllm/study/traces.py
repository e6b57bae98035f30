"""Records docs/assets/traces/: what the visualisers on the site play. `python -m learnvllm.study.traces`.

Every file is a list of scenarios with the StepEvents of our own engine. Nothing in it depends on the machine
or the moment, so a test records everything again and compares.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from learnvllm.architecture.messages import EngineCoreRequest
from learnvllm.architecture.request import Request
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.architecture.tracing import EngineState, StepEvent
from learnvllm.scheduling.step_recorder import NAME_DIGITS
from learnvllm.study.files import ROOT
from learnvllm.study.trace_clock import Costs, Span
from learnvllm.study.trace_engine import Recorder, make_config, make_recorder
from learnvllm.study.trace_scenarios import BLOCKS, LOOP, SCHEDULER, RequestScript, Scenario

TRACES = ROOT / "docs" / "assets" / "traces"
STEPS_AT_MOST = 500

Json = dict[str, Any]


def record_all() -> dict[str, Json]:
    """File name (without its ending) -> content, of every trace that needs no model."""
    stories = {"scheduler": SCHEDULER, "blocks": BLOCKS, "loop": LOOP}
    return {
        kind: {"kind": kind, "scenarios": [record_scenario(scenario, kind) for scenario in scenarios]}
        for kind, scenarios in stories.items()
    }


def record_scenario(scenario: Scenario, kind: str) -> Json:
    """Run a story through the engine core."""
    costs, config = Costs(), make_config(**scenario.config)
    words = _number_words(scenario)
    scripts = {r.name: [words[word] for word in r.answer] for r in scenario.requests}
    recorder = make_recorder(config, scripts, costs)
    requests = {r.request_id: r for r in _make_requests(scenario, words, recorder)}
    (_run_with_front_end if scenario.with_front_end else _run)(scenario, recorder, requests)
    recorder.core.scheduler.shutdown()
    budget, cache = config.scheduler_config, config.cache_config
    result: Json = {
        "id": scenario.id,
        "title": scenario.title,
        "intro": scenario.intro,
        "config": {
            "token_budget": budget.max_num_batched_tokens,
            "prefill_tokens_per_decode": budget.prefill_tokens_per_decode,
            "max_num_seqs": budget.max_num_seqs,
            "policy": budget.policy,
            "async_scheduling": budget.async_scheduling,
            "block_size": cache.block_size,
            "num_blocks": cache.num_gpu_blocks_override,
        },
        "requests": [_describe_request(script, requests[script.name]) for script in scenario.requests],
        "events": [_to_json(event, kind) for event in recorder.events],
    }
    if kind == "blocks":
        result["contents"] = _describe_contents(scenario, list(requests.values()))
    if scenario.with_front_end:
        result["costs"] = asdict(costs)
        spans = sorted(recorder.clock.spans, key=lambda s: (s.start, s.end, s.lane))
        result["spans"] = [_describe_span(span) for span in spans]
    return result


# ---------------------------------------------------------------------------------------------- running


def _number_words(scenario: Scenario) -> dict[str, int]:
    """Word -> token id, in the order in which they are met. 0 ends an answer."""
    words: dict[str, int] = {}
    for request in scenario.requests:
        for word in request.prompt + request.answer:
            words.setdefault(word, len(words) + 1)
    return words


def _make_requests(scenario: Scenario, words: dict[str, int], recorder: Recorder) -> Iterator[Request]:
    for index, script in enumerate(scenario.requests):
        length = len(script.answer) + 8 if script.ends_itself else len(script.answer)
        yield recorder.core.preprocess_request(
            EngineCoreRequest(
                request_id=script.name,
                prompt_token_ids=[words[word] for word in script.prompt],
                sampling_params=SamplingParams(temperature=0.0, max_tokens=length),
                eos_token_ids=[0],
                arrival_time=float(index),
                priority=script.priority,
                cache_salt=script.cache_salt,
            )
        )


def _run(scenario: Scenario, recorder: Recorder, requests: dict[str, Request]) -> None:
    """Requests arrive before their turn of the loop."""
    core = recorder.core
    for turn in range(STEPS_AT_MOST):
        for script in scenario.requests:
            if script.arrives == turn:
                core.add_request(requests[script.name])
        core.step()
        if not core.has_work() and all(script.arrives <= turn for script in scenario.requests):
            return
    raise AssertionError(f"scenario {scenario.id} does not end")


def _run_with_front_end(scenario: Scenario, recorder: Recorder, requests: dict[str, Request]) -> None:
    """The busy loop of core_proc.py:EngineCoreProc.run: take in all that has come, step, give out."""
    core, clock, front = recorder.core, recorder.clock, recorder.front
    for script in scenario.requests:
        front.arrive(script.arrives, script.name)
    for _ in range(STEPS_AT_MOST):
        if not core.has_work():
            sent_at = front.next_sent()
            if sent_at is None:
                front.finish()
                return
            if sent_at > clock.now:
                clock.spend("core", "idle", sent_at - clock.now)
        for req_id in front.take_sent():
            clock.spend("core", "add", 0, requests=(req_id,))
            core.add_request(requests[req_id])
        step = recorder.events[-1].step if recorder.events else -1
        outputs, _ = core.step()
        if recorder.events and recorder.events[-1].step != step:
            front.give(recorder.events[-1].step, outputs)
    raise AssertionError(f"scenario {scenario.id} does not end")


# ------------------------------------------------------------------------------------------- describing


def _describe_span(span: Span) -> Json:
    """Without what says nothing: no step, no requests, no tokens."""
    described = {key: value for key, value in asdict(span).items() if value not in (None, ())}
    return described if span.tokens else {k: v for k, v in described.items() if k != "tokens"}


def _describe_request(script: RequestScript, request: Request) -> Json:
    described = {
        "id": script.name,
        "arrives": script.arrives,
        "num_prompt": len(script.prompt),
        "num_output": request.num_output_tokens,
        "num_preemptions": request.num_preemptions,
    }
    optional = {"priority": script.priority, "cache_salt": script.cache_salt}
    return described | {key: value for key, value in optional.items() if value}


def _describe_contents(scenario: Scenario, requests: list[Request]) -> Json:
    """Name of a block's content -> the name before it, and the words it holds."""
    spelled = {number: word for word, number in _number_words(scenario).items()}
    size = make_config(**scenario.config).cache_config.block_size
    contents: Json = {}
    for request in requests:
        parent = ""
        for index, block_hash in enumerate(request.block_hashes):
            name = block_hash.hex()[:NAME_DIGITS]
            tokens = request.all_token_ids[index * size : (index + 1) * size]
            contents[name] = {"parent": parent, "text": " ".join(spelled[token] for token in tokens)}
            parent = name
    return contents


def _to_json(event: StepEvent, kind: str) -> Json:
    """Without the machine's times, and of the states only what the picture shows."""
    planned, taken_in = event.planned, event.taken_in
    if kind != "blocks":
        taken_in = None
        queues = EngineState(planned.running, planned.waiting) if planned else None
        planned = queues if kind == "scheduler" else None
    event = msgspec.structs.replace(event, start=0.0, phases={}, planned=planned, taken_in=taken_in)
    plain: Json = msgspec.to_builtins(event)
    plain.pop("start", None)
    return plain


# ---------------------------------------------------------------------------------------------- writing


def to_text(trace: Json) -> str:
    """JSON with a line for each event, span and moment: short, and changes can be read."""
    scenarios = []
    for scenario in trace["scenarios"]:
        parts = []
        for key, value in scenario.items():
            if isinstance(value, list):
                rows = ",\n".join(f"  {_dumps(row)}" for row in value)
                parts.append(f" {_dumps(key)}: [\n{rows}]")
            else:
                parts.append(f" {_dumps(key)}: {_dumps(value)}")
        scenarios.append("{\n" + ",\n".join(parts) + "}")
    return f'{{"kind": {_dumps(trace["kind"])}, "scenarios": [\n' + ",\n".join(scenarios) + "]}\n"


def to_script(name: str, text: str) -> str:
    """The same for a page opened from the disk, where a browser refuses to fetch JSON but runs scripts."""
    return f"((globalThis.learnvllm ??= {{}}).traces ??= {{}})[{_dumps(name)}] =\n{text.rstrip()};\n"


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def write(folder: Path, traces: dict[str, Json]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, trace in traces.items():
        text = to_text(trace)
        for path, content in ((f"{name}.json", text), (f"{name}.json.js", to_script(f"{name}.json", text))):
            (folder / path).write_text(content, encoding="utf-8", newline="\n")
            written.append(folder / path)
    return written


def main() -> None:
    from learnvllm.study.trace_request import record_request_life

    for path in write(TRACES, {**record_all(), "request": record_request_life()}):
        print(path.relative_to(ROOT), path.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
