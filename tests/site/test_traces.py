"""The recordings that the site plays are what our engine does today, to the last byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from learnvllm.study.traces import TRACES, record_all, to_script, to_text, write

KINDS = ("scheduler", "blocks", "loop", "request")
AGAIN = "Run `python -m learnvllm.study.traces` and look at the figures: what they show has changed."


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, Any]]:
    return record_all()


@pytest.mark.parametrize("kind", KINDS[:3])
def test_recording_again_gives_the_committed_file(kind: str, recorded: dict[str, Any]) -> None:
    assert (TRACES / f"{kind}.json").read_text("utf-8") == to_text(recorded[kind]), AGAIN


def test_the_life_of_a_request_in_the_embedded_model_is_the_committed_one() -> None:
    from learnvllm.study.trace_request import record_request_life

    assert (TRACES / "request.json").read_text("utf-8") == to_text(record_request_life()), AGAIN


@pytest.mark.parametrize("kind", KINDS)
def test_the_script_for_pages_from_the_disk_says_the_same(kind: str) -> None:
    text = (TRACES / f"{kind}.json").read_text("utf-8")
    json.loads(text)
    assert (TRACES / f"{kind}.json.js").read_text("utf-8") == to_script(f"{kind}.json", text)


def test_nothing_of_the_machine_or_the_moment_is_recorded(recorded: dict[str, Any]) -> None:
    for trace in recorded.values():
        for scenario in trace["scenarios"]:
            for event in scenario["events"]:
                assert not {"start", "phases"} & set(event)


def test_every_scenario_ends_and_its_requests_are_served(recorded: dict[str, Any]) -> None:
    for trace in recorded.values():
        for scenario in trace["scenarios"]:
            ended = [name for event in scenario["events"] for name in event.get("finished", ())]
            assert sorted(ended) == sorted(request["id"] for request in scenario["requests"])


def test_stories_show_what_they_are_about(recorded: dict[str, Any]) -> None:
    scenarios = {s["id"]: s for trace in recorded.values() for s in trace["scenarios"]}
    assert any(event.get("preempted") for event in scenarios["preemption"]["events"])
    assert any(event.get("blocks_evicted") for event in scenarios["eviction"]["events"])
    hits = [s.get("num_cached_tokens", 0) for e in scenarios["prefix"]["events"] for s in e["scheduled"]]
    assert sum(hit > 0 for hit in hits) == 3
    chunks = [s for e in scenarios["chunked"]["events"] for s in e["scheduled"] if s["req_id"] == "long"]
    assert sum(chunk["num_tokens"] > 1 for chunk in chunks) == 3
    assert any(span["name"] == "wait" for span in scenarios["sync"]["spans"])


def test_writing_leaves_both_forms_of_each_trace(tmp_path: Path) -> None:
    trace = {"kind": "x", "scenarios": [{"id": "a", "rows": [{"text": "ü"}, 2]}]}
    write(tmp_path / "new", {"x": trace})
    assert json.loads((tmp_path / "new" / "x.json").read_text("utf-8")) == trace
    assert (tmp_path / "new" / "x.json.js").read_text("utf-8").endswith("}]};\n")
