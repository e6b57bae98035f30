"""What the graders of Day 1 share: a configuration of a small model, recorded steps, words for failures."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from learnvllm.architecture.config import ModelConfig
from learnvllm.architecture.tracing import RecordingTracer, ScheduledTokens, StepEvent
from learnvllm.scheduling.async_scheduler import AsyncScheduler
from learnvllm.scheduling.simulator import Arrival, Simulation
from learnvllm.scheduling.toy import make_prompt, toy_config
from support import failure

CONCEPTS = "docs/topics/architecture/concepts.md"
lesson = partial(failure.lesson, CONCEPTS)


def model_config(max_model_len: int = 1000) -> ModelConfig:
    """A model whose own limit is 1000 tokens."""
    arch = toy_config(max_model_len=1000).model_config.arch
    return ModelConfig(model="small", path=Path("small"), arch=arch, max_model_len=max_model_len)


# ---------------------------------------------------------------------------------------------- step events


def share(name: str, tokens: int, before: int, prompt: int, cached: int = 0) -> ScheduledTokens:
    """A request's share of a step; it decodes when its prompt is computed."""
    return ScheduledTokens(
        name, tokens, before, max(prompt, before + tokens), prompt, num_cached_tokens=cached
    )


def event(step: int, start: float, *shares: ScheduledTokens, **more: Any) -> StepEvent:
    """A step of 10 ms: 1 to schedule, 7 to execute (5 of them forward), 2 to update."""
    phases = {"schedule": 0.001, "execute": 0.007, "forward": 0.005, "update": 0.002}
    return StepEvent(step=step, start=start, scheduled=list(shares), **{"phases": phases, **more})


def record(arrivals: list[Arrival], *, steps_ahead: int = 0, **config: Any) -> list[StepEvent]:
    """The steps of a simulated engine, with the times of its clock; each lasts 10 ms."""
    tracer = RecordingTracer()
    more = {"make_scheduler": AsyncScheduler} if steps_ahead else {}
    sim = Simulation(toy_config(**config), tracer=tracer, steps_ahead=steps_ahead, **more)
    sim.run(arrivals)
    events = list(tracer.events)
    for number, recorded in enumerate(events):
        recorded.start = 50.0 + number * 0.0125
        recorded.phases = event(0, 0.0).phases
    return events


def crowd(count: int, max_tokens: int = 40) -> list[Arrival]:
    return [Arrival(f"r{i}", 0.0, make_prompt(20 + 3 * i, i), max_tokens) for i in range(count)]


@st.composite
def histories(draw: st.DrawFn) -> list[StepEvent]:
    """Steps of a few requests, each with some of them; sometimes one begins before another ends."""
    computed: dict[str, int] = {}
    prompts = {name: draw(st.integers(1, 6)) for name in "abc"}
    events, start = [], draw(st.sampled_from([0.0, 1234.5]))
    for step in range(draw(st.integers(1, 7))):
        shares = []
        for name in draw(st.sets(st.sampled_from("abc"))):
            before = computed.get(name, 0)
            tokens = draw(st.integers(1, 4)) if before < prompts[name] else 1
            tokens = min(tokens, prompts[name] - before) if before < prompts[name] else 1
            shares.append(share(name, tokens, before, prompts[name]))
            computed[name] = before + tokens
        events.append(event(step, start, *sorted(shares, key=lambda s: s.req_id)))
        start += draw(st.sampled_from([0.004, 0.010, 0.015]))
    return events
