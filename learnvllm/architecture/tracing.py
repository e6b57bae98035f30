"""One event per engine step: what was scheduled, which blocks moved, how long each phase took.

Trace files, tests and the study material read this stream; metrics do not (they read SchedulerStats and
IterationStats). It is off by default and free when off: who produces it holds `tracer: StepTracer | None`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from learnvllm.architecture.errors import ConfigError


class ScheduledTokens(msgspec.Struct, omit_defaults=True):
    """One request's share of a step."""

    req_id: str
    num_tokens: int
    """Tokens computed in this step."""
    num_computed_before: int
    num_known: int
    """Prompt and output tokens known when the step was scheduled."""
    num_prompt: int
    block_ids: list[list[int]] = []
    """Blocks taken in this step, per cache group."""
    num_cached_tokens: int = 0
    """Prefix-cache hit, in the step that admits the request."""
    sampled: list[int] = []
    """Tokens this step produced for it."""


class EngineState(msgspec.Struct, omit_defaults=True):
    """Who stands where at one moment, and every block of the pool. For small pools: it costs O(blocks)."""

    running: list[str] = []
    waiting: list[str] = []
    """Next to be admitted first."""
    ref_counts: list[int] = []
    """By block id."""
    names: list[str] = []
    """By block id: the first digits of the content's hash; empty where the content cannot be found."""
    free_queue: list[int] = []
    """Next to be handed out first."""
    tables: dict[str, list[list[int]]] = {}
    """Request id -> its block table, per cache group."""


class StepEvent(msgspec.Struct, omit_defaults=True):
    """One step of the engine. Times are time.monotonic() seconds."""

    step: int
    start: float = 0.0
    scheduled: list[ScheduledTokens] = []
    preempted: list[str] = []
    finished: list[str] = []
    num_running: int = 0
    num_waiting: int = 0
    free_blocks: int = 0
    total_blocks: int = 0
    blocks_freed: list[int] = []
    blocks_evicted: list[int] = []
    """Cached blocks whose content was given up in this step."""
    phases: dict[str, float] = {}
    """Phase name (schedule, execute, forward, update) -> seconds. execute lasts from the end of schedule to
    the beginning of update: under async scheduling it includes waiting for the step before."""
    planned: EngineState | None = None
    """When the step had been scheduled. Only for a tracer that wants states."""
    taken_in: EngineState | None = None
    """When its output had been taken in; under async scheduling the next step was planned before that."""


class StepTracer(Protocol):
    """Receives every StepEvent once it is complete."""

    def record(self, event: StepEvent) -> None: ...


class RecordingTracer:
    """Keeps the last `limit` events in memory; what notebooks and tests use.

    Args:
        states: each event also tells the whole state before and after (`planned`, `taken_in`).
    """

    def __init__(self, limit: int = 100_000, *, states: bool = False) -> None:
        self.events: deque[StepEvent] = deque(maxlen=limit)
        self.states = states

    def record(self, event: StepEvent) -> None:
        self.events.append(event)


def to_chrome_trace(events: Iterable[StepEvent]) -> dict[str, Any]:
    """Convert events to the Chrome trace format, which Perfetto (ui.perfetto.dev) opens.

    Every row has `pid` 1; `ts` and `dur` are microseconds from the first event's start. `ph` is X for a slice
    (`_slice`), C for a counter at its step's begin, M for the name of a track (`_thread_name`):

    | ph | track (tid)       | name                          | args                                    |
    |----|-------------------|-------------------------------|-----------------------------------------|
    | X  | 0, 1, ...         | step N                        | tokens (sum), preempted, finished       |
    | X  | that of its step  | the phase                     | {}                                      |
    | X  | one for a request | prefill or decode             | step, tokens, computed_before, cached   |
    | C  | none              | free blocks, running, waiting | {name: value}                           |
    | M  | every track       | thread_name                   | {"name": "engine steps" / "request ID"} |

    Steps have as many tracks as are in flight at once; requests follow, in the order of appearance. A phase
    begins where the one before ends, but forward begins with execute. A request's slice is its step, less
    what its slice before still covers.
    """
    events = list(events)
    if not events:
        return {"traceEvents": []}
    origin = events[0].start
    lanes = _lanes(events)
    rows = [_thread_name(lane, "engine steps") for lane in range(max(lanes) + 1)]
    tracks: dict[str, _RequestTrack] = {}
    for event, lane in zip(events, lanes):
        rows.extend(_step_rows(event, origin, lane))
        rows.extend(_request_rows(event, origin, tracks, first_track=max(lanes) + 1))
    rows.extend(_thread_name(t.number, f"request {req_id}") for req_id, t in tracks.items())
    return {"traceEvents": rows, "displayTimeUnit": "ms"}


def merge_decodes(trace: dict[str, Any]) -> dict[str, Any]:
    """The same trace with a single slice where a request decodes in one step right after the other.

    A run ends where the request is missing from a step, so a gap in its track is a pause. The slice of a run
    lasts from the beginning of its first decode to the end of its last; of its `args`, `tokens` is the sum,
    `steps` how many decodes it stands for, and the rest is that of the first. All other rows stay, in order.
    """
    rows: list[dict[str, Any]] = []
    runs: dict[int, dict[str, Any]] = {}
    for row in trace["traceEvents"]:
        if row["name"] != "decode":
            rows.append(row)
            continue
        run = runs.get(row["tid"])
        if run is None or row["args"]["step"] != run["args"]["step"] + run["args"]["steps"]:
            run = runs[row["tid"]] = {**row, "args": {**row["args"], "steps": 1}}
            rows.append(run)
            continue
        run["dur"] = row["ts"] + row["dur"] - run["ts"]
        run["args"]["tokens"] += row["args"]["tokens"]
        run["args"]["steps"] += 1
    return {**trace, "traceEvents": rows}


def check_trace_file(path: Path) -> None:
    """Find out now, not after hours of work, whether a trace can be written there. What is there is kept.

    Raises:
        ConfigError: it cannot.
    """
    try:
        is_new = not path.exists()
        path.open("a").close()
        if is_new:
            path.unlink()
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"trace_file={str(path)!r}: the file cannot be written ({reason}). Give a file in "
            "a directory that exists and that you may write to.",
            parameter="trace_file",
            value=str(path),
        ) from None


def write_chrome_trace(events: Iterable[StepEvent], path: Path) -> None:
    """With runs of decodes merged, so that a viewer can open hours of steps with dozens of requests each."""
    path.write_text(json.dumps(merge_decodes(to_chrome_trace(events))), encoding="utf-8")


def _lanes(events: list[StepEvent]) -> list[int]:
    """The track of each step: the first that is free when it begins. Slices of one track must not overlap."""
    free_at: list[float] = []
    lanes = []
    for event in events:
        lane = next((i for i, end in enumerate(free_at) if end <= event.start), len(free_at))
        free_at[lane : lane + 1] = [event.start + _duration(event)]
        lanes.append(lane)
    return lanes


@dataclass
class _RequestTrack:
    number: int
    end: float = 0.0
    """Where its last slice ends, in seconds."""


def _duration(event: StepEvent) -> float:
    return sum(s for phase, s in event.phases.items() if phase != "forward")  # forward is inside execute


def _thread_name(track: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": 1, "tid": track, "name": "thread_name", "args": {"name": name}}


def _slice(name: str, track: int, start: float, seconds: float, args: dict[str, Any]) -> dict[str, Any]:
    return {
        "ph": "X",
        "pid": 1,
        "tid": track,
        "name": name,
        "ts": start * 1e6,
        "dur": seconds * 1e6,
        "args": args,
    }


def _step_rows(event: StepEvent, origin: float, track: int) -> list[dict[str, Any]]:
    begin = event.start - origin
    tokens = sum(s.num_tokens for s in event.scheduled)
    args = {"tokens": tokens, "preempted": event.preempted, "finished": event.finished}
    rows = [_slice(f"step {event.step}", track, begin, _duration(event), args)]
    previous = at = begin
    for phase, seconds in event.phases.items():
        if phase == "forward":  # the beginning of execute, which came just before it
            rows.append(_slice(phase, track, previous, seconds, {}))
            continue
        rows.append(_slice(phase, track, at, seconds, {}))
        previous, at = at, at + seconds
    for name, value in (
        ("free blocks", event.free_blocks),
        ("running", event.num_running),
        ("waiting", event.num_waiting),
    ):
        rows.append({"ph": "C", "pid": 1, "name": name, "ts": begin * 1e6, "args": {name: value}})
    return rows


def _request_rows(
    event: StepEvent, origin: float, tracks: dict[str, _RequestTrack], first_track: int
) -> list[dict[str, Any]]:
    rows = []
    for s in event.scheduled:
        track = tracks.setdefault(s.req_id, _RequestTrack(first_track + len(tracks)))
        # Of two steps in flight the second is drawn from where the first one ends.
        begin = max(event.start - origin, track.end)
        track.end = max(begin, event.start - origin + _duration(event))
        kind = "decode" if s.num_computed_before >= s.num_prompt else "prefill"
        args = {
            "step": event.step,
            "tokens": s.num_tokens,
            "computed_before": s.num_computed_before,
            "cached": s.num_cached_tokens,
        }
        rows.append(_slice(kind, track.number, begin, track.end - begin, args))
    return rows
