"""The engine's time, drawn (module, 50 minutes, 18 points).

The engine keeps one record a step, its StepEvent. You write the function that turns a list of them into the
trace format which Perfetto and chrome://tracing open: the steps and their phases, a track for each request,
counters of blocks and queues. It is the picture that you will look at whenever something is slow, so nothing
in it may overlap, and no time may be counted twice.

Not asked: Writing the file, and merging decodes (the next exercise). _RequestTrack is a small record that you
may use or leave: where a request's last slice ends, and the number of its track.

Read: docs/topics/architecture/concepts.md
Check: learnvllm check architecture.chrome_trace
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from learnvllm.architecture.tracing import StepEvent, _RequestTrack


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
    # TODO: {'traceEvents': rows, 'displayTimeUnit': 'ms'} with the rows of the table above, for every event;
    # no events: {'traceEvents': []}.
    raise NotImplementedError("TODO: to_chrome_trace")


def _duration(event: StepEvent) -> float:
    # TODO: Seconds that the step lasts: its phases together; but forward is a part of execute.
    raise NotImplementedError("TODO: _duration")


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
