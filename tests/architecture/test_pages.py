"""The numbers on Day 1's pages are those of the code: every table is computed again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from learnvllm.architecture.messages import (
    EngineCoreOutput,
    FinishReason,
)
from learnvllm.architecture.request import Request
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.architecture.tracing import RecordingTracer, merge_decodes, to_chrome_trace
from learnvllm.scheduling.simulator import Arrival, Simulation
from learnvllm.scheduling.toy import make_prompt, toy_config
from tests.wire_sizes import NAME, message_sizes

PAGES = Path(__file__).resolve().parents[2] / "docs/topics/architecture"
CONCEPTS = (PAGES / "concepts.md").read_text("utf-8")


def rows(name: str) -> list[list[str]]:
    """The cells of the table below `<!-- numbers: name -->`, without its head."""
    lines = CONCEPTS.split(f"<!-- numbers: {name} -->\n")[1].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_bytes() -> None:
    sizes = message_sizes()
    assert [cells[1] for cells in rows("bytes")] == [f"{number:,}" for number in sizes]
    assert 16 * len(NAME + "00") > sizes[1] / 2  # "more than half of these bytes are ids"


def test_the_traces() -> None:
    for requests, *numbers in rows("traces"):
        tracer = RecordingTracer()
        sim = Simulation(toy_config(max_num_batched_tokens=256), tracer=tracer)
        sim.run(Arrival(f"r{i}", 0.0, make_prompt(20 + 3 * i, i), 200) for i in range(int(requests)))
        events = list(tracer.events)
        for number, event in enumerate(events):
            event.start = 50.0 + number * 0.0125
            event.phases = {"schedule": 0.001, "execute": 0.007, "forward": 0.005, "update": 0.002}
        plain = to_chrome_trace(events)
        merged = merge_decodes(plain)
        decodes = [sum(row["name"] == "decode" for row in t["traceEvents"]) for t in (plain, merged)]
        sizes = [f"{len(json.dumps(trace)) / 1000:,.0f} kB" for trace in (plain, merged)]
        assert numbers == [str(len(events)), *(f"{count:,}" for count in decodes), *sizes]
        if requests == "16":
            exercises = " ".join((PAGES / "exercises.md").read_text("utf-8").split())
            assert f"{sizes[1]} instead of {sizes[0].split()[0]}" in exercises


def test_the_two_counters() -> None:
    request = Request("a", list(range(19)), SamplingParams(max_tokens=9))
    seen = []
    for computed, token in ((0, None), (16, None), (19, 7), (20, 8), (0, None)):
        request.num_computed_tokens = computed
        request.append_output_token_ids([] if token is None else [token])
        seen.append([request.num_tokens, request.num_computed_tokens, request.num_uncomputed_tokens])
    picture = CONCEPTS.split("num_tokens   num_computed   num_uncomputed_tokens\n")[1].split("```")[0]
    shown = [[int(n) for n in line[30:].split()[:3]] for line in picture.splitlines()]
    assert shown == seen


def test_a_message_to_try(capsys: pytest.CaptureFixture[str]) -> None:
    code = CONCEPTS.split("## Try it")[1].split("```python\n")[1].split("```")[0]
    exec(code, {})
    assert f"It prints `{capsys.readouterr().out.strip()}`" in CONCEPTS
    message = EngineCoreOutput("cmpl-1", [4711], finish_reason=FinishReason.LENGTH)
    values = [getattr(message, name) for name in message.__struct_fields__[2:]]
    assert len(msgspec.msgpack.encode(message)) == 19
    assert sum(value in (None, 0) for value in values) == 6


@pytest.mark.parametrize("page", ["index", "concepts", "walkthrough", "upstream", "exercises", "quiz"])
def test_the_chinese_page_shows_the_same(page: str) -> None:
    """The same code, directives, anchors, symbols and figures; only the words differ."""
    english, chinese = (
        re.sub(r"(?s)\A---.*?---\n|<!-- numbers: \w+ -->\n", "", (PAGES / f"{page}{end}").read_text("utf-8"))
        for end in (".md", ".zh.md")
    )
    for what in (
        r'(?m)^--8<-- "(.+)"$',
        r"(?m)^<!-- \w+ -->$",
        r"data-[a-z]+=\"[^\"]+\"",
        r"(?s)```(?:python|bash)\n.*?```",
        r"\{#[\w-]+\}",
        r"(?m)^#+ ",
        r"\| *([\d,.]+(?: kB)?) *(?=\|)",
    ):
        assert re.findall(what, chinese) == re.findall(what, english), what
    for what in (r"`[\w/.]+\.py(?::[\w.]+)?`", r"#\d{3,}", r"\]\(([^)#]+)"):
        assert set(re.findall(what, chinese)) == set(re.findall(what, english)), what
