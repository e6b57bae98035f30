"""Step events: kept up to a limit, and turned into what chrome://tracing and Perfetto open."""

import copy
import itertools
import json
from pathlib import Path

import msgspec
import pytest

from learnvllm.architecture.tracing import (
    RecordingTracer,
    ScheduledTokens,
    StepEvent,
    merge_decodes,
    to_chrome_trace,
    write_chrome_trace,
)

PHASES = {"schedule": 0.001, "execute": 0.010, "forward": 0.008, "update": 0.002}
EVENTS = [
    StepEvent(
        step=0,
        start=100.0,
        scheduled=[ScheduledTokens("a", 8, 0, 8, 8, [[1, 2]], sampled=[5]), ScheduledTokens("b", 4, 0, 9, 9)],
        num_running=2,
        num_waiting=1,
        free_blocks=5,
        total_blocks=8,
        phases=PHASES,
    ),
    StepEvent(
        step=1,
        start=100.5,
        scheduled=[ScheduledTokens("a", 1, 8, 9, 8, sampled=[6])],
        preempted=["b"],
        finished=["a"],
        free_blocks=8,
        total_blocks=8,
        phases=PHASES,
    ),
]


def slices(track: int) -> list[dict]:
    return [row for row in to_chrome_trace(EVENTS)["traceEvents"] if row["ph"] == "X" and row["tid"] == track]


def test_steps_stand_on_one_track_with_their_phases_inside() -> None:
    rows = slices(0)
    steps = [row for row in rows if row["name"].startswith("step")]
    assert [(row["name"], row["ts"]) for row in steps] == [("step 0", 0.0), ("step 1", 500000.0)]
    assert [row["dur"] for row in steps] == pytest.approx([13000.0, 13000.0])  # Python 3.12 sums otherwise
    assert steps[0]["args"]["tokens"] == 12
    assert steps[1]["args"] == {"tokens": 1, "preempted": ["b"], "finished": ["a"]}
    for step in steps:
        inside = [
            row for row in rows if step["ts"] <= row["ts"] < step["ts"] + step["dur"] and row is not step
        ]
        assert [row["name"] for row in inside] == ["schedule", "execute", "forward", "update"]
        for row in inside:
            assert row["ts"] + row["dur"] <= step["ts"] + step["dur"] + 1e-6


def test_forward_lies_inside_execute() -> None:
    by_name = {row["name"]: row for row in slices(0)[:5]}
    execute, forward = by_name["execute"], by_name["forward"]
    assert execute["ts"] <= forward["ts"]
    assert forward["ts"] + forward["dur"] <= execute["ts"] + execute["dur"] + 1e-6


def test_every_request_has_a_track_that_tells_prefill_from_decode() -> None:
    rows = to_chrome_trace(EVENTS)["traceEvents"]
    names = {row["tid"]: row["args"]["name"] for row in rows if row["ph"] == "M"}
    assert names == {0: "engine steps", 1: "request a", 2: "request b"}
    assert [row["name"] for row in slices(1)] == ["prefill", "decode"]
    assert [row["name"] for row in slices(2)] == ["prefill"]


def test_counters_show_blocks_and_queues() -> None:
    rows = to_chrome_trace(EVENTS)["traceEvents"]
    free = [row["args"]["free blocks"] for row in rows if row["ph"] == "C" and row["name"] == "free blocks"]
    assert free == [5, 8]


def test_no_events_make_an_empty_trace() -> None:
    assert to_chrome_trace([]) == {"traceEvents": []}


def test_the_file_is_json_with_every_field_perfetto_needs(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_chrome_trace(EVENTS, path)
    rows = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    for row in rows:
        assert {"ph", "pid", "name"} <= set(row)
        if row["ph"] == "X":
            assert {"ts", "dur", "tid"} <= set(row)


def test_the_recorder_keeps_the_newest_events() -> None:
    tracer = RecordingTracer(limit=100)
    for step in range(250):
        tracer.record(StepEvent(step=step))
    assert [event.step for event in tracer.events] == list(range(150, 250))


def test_events_can_be_stored_as_json_lines() -> None:
    for event in EVENTS:
        assert msgspec.json.decode(msgspec.json.encode(event), type=StepEvent) == event


def test_steps_that_overlap_in_time_stand_on_tracks_of_their_own() -> None:
    """One step ahead, execute includes waiting for the step before."""
    share = [ScheduledTokens("a", 1, 8, 9, 8)]
    events = [
        StepEvent(
            step=n, start=100 + 0.010 * n, scheduled=share, phases={"schedule": 0.001, "execute": 0.017}
        )
        for n in range(6)
    ]
    rows = [row for row in to_chrome_trace(events)["traceEvents"] if row["ph"] == "X"]
    steps = [row for row in rows if row["name"].startswith("step")]
    assert [row["tid"] for row in steps] == [0, 1, 0, 1, 0, 1]
    requests = [row for row in rows if row["name"] == "decode"]
    assert {row["tid"] for row in requests} == {2}
    for track in (steps[::2], steps[1::2], requests):
        for before, after in itertools.pairwise(track):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6


def decodes(trace: dict) -> list[tuple]:
    rows = [row for row in trace["traceEvents"] if row["name"] == "decode"]
    return [(row["tid"], row["ts"], row["dur"], row["args"]["tokens"], row["args"]["steps"]) for row in rows]


def test_decodes_in_a_row_become_one_slice_and_a_missed_step_a_gap() -> None:
    events = [
        StepEvent(
            step=n,
            start=n * 0.02,
            scheduled=[ScheduledTokens(name, 1, 8 + n, 9 + n, 8) for name in "ab" if (name, n) != ("b", 2)],
            phases={"execute": 0.01},
        )
        for n in range(5)
    ]
    trace = to_chrome_trace(events)
    before = copy.deepcopy(trace)
    merged = merge_decodes(trace)
    assert trace == before
    assert decodes(merged) == [
        (1, 0.0, 90000.0, 5, 5),
        (2, 0.0, 30000.0, 2, 2),
        (2, 60000.0, 30000.0, 2, 2),
    ]

    def others(rows: list[dict]) -> list[dict]:
        return [row for row in rows if row["name"] != "decode"]

    assert others(merged["traceEvents"]) == others(trace["traceEvents"])


def test_the_file_has_one_slice_a_run_of_decodes(tmp_path: Path) -> None:
    events = [
        StepEvent(step=n, start=float(n), scheduled=[ScheduledTokens("a", 1, 8 + n, 9 + n, 8)])
        for n in range(100)
    ]
    write_chrome_trace(events, tmp_path / "t.json")
    assert len(decodes(json.loads((tmp_path / "t.json").read_text("utf-8")))) == 1
    assert len(decodes(merge_decodes({"traceEvents": []}))) == 0
