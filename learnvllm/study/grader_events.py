"""Reads the record that the grader's pytest plugin writes, also when it breaks off anywhere."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Result:
    """One run of a test with one set of parameters."""

    outcome: str
    message: str
    output: str
    seconds: float


@dataclass
class Events:
    """What is known of a run."""

    collected: dict[str, float] = field(default_factory=dict)
    """Test functions in the order of the file, and what each is worth."""
    cases: dict[str, int] = field(default_factory=dict)
    """How many parametrizations each has."""
    started: list[str] = field(default_factory=list)
    results: dict[str, list[Result]] = field(default_factory=dict)
    collect_errors: list[str] = field(default_factory=list)
    internal_errors: list[str] = field(default_factory=list)
    exited: tuple[str, str] | None = None
    """The test in which sys.exit was called, and how."""
    running: str | None = None
    """The test that had begun and not ended when the record broke off."""
    interrupted_by: str | None = None
    """The exception that ended the whole run, not only a test."""
    finished: bool = False

    @property
    def running_test(self) -> str | None:
        """The running one's function."""
        return self.running.partition("[")[0] if self.running else None


def read_events(path: Path) -> Events:
    """The record in `path`, as far as it goes; a last line without its end does not count."""
    events = Events()
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return events
    for line in lines:
        _take(events, json.loads(line))
    return events


def last_line(stack: Path, subject: Path) -> str | None:
    """Where `subject` was when the record of a stack (faulthandler's) was written: "line 12, in popleft"."""
    try:
        frames = stack.read_text("utf-8", errors="replace")
    except FileNotFoundError:
        return None
    for name, line, function in re.findall(r'File "(.*)", line (\d+) in (\S+)', frames):
        if Path(name) == subject:  # the most recent call comes first
            return f"line {line} of {subject.name}, in {function}"
    return None


def _take(events: Events, told: dict[str, Any]) -> None:
    match told["event"]:
        case "collect_error":
            events.collect_errors.append(told["message"])
        case "internal_error":
            events.internal_errors.append(told["message"])
        case "collected":
            for test in told["tests"]:
                events.collected[test["test"]] = test["points"]
                events.cases[test["test"]] = events.cases.get(test["test"], 0) + 1
        case "start":
            events.started.append(told["name"])
            events.running = told["name"]
        case "report":
            _take_report(events, told)
        case "interrupted":
            events.interrupted_by = told["by"]
        case "ended":
            events.running = None
        case "finished":
            events.finished = True


def _take_report(events: Events, told: dict[str, Any]) -> None:
    kind = told.get("kind", told["outcome"])
    if kind == "exited" and events.exited is None:
        events.exited = (told["name"], told["message"])
    outcome = {"exited": "failed", "skipped": "not_run"}.get(kind, kind)
    message = told.get("message", "")
    result = Result(outcome, message, told.get("output", ""), told["seconds"])
    events.results.setdefault(told["name"].partition("[")[0], []).append(result)
