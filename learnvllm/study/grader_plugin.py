"""A pytest plugin for graders: failures in a learner's words, and a record of the run, event by event.

The record is written while the run goes on, so that whoever waits for it knows which test was running when
the process hung, was ended or ended itself. exercises/conftest.py brings the plugin; grading.py asks for the
record with --grader-events.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

from learnvllm.study.bounded_text import Bounded
from learnvllm.study.failures import explain

KEPT_OUTPUT = 4000
"""Characters of what a test prints that are kept, at either end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--grader-events", metavar="FILE", default=None, help="Write JSON lines there.")
    parser.addoption("--grader-stack-after", metavar="S", type=float, default=0, help="Then write the stack.")


def pytest_configure(config: pytest.Config) -> None:
    # A task that failed unseen logs a traceback when it is collected, which may be within `ast.parse`, of
    # which pytest makes use on failures. Python 3.11 cannot parse the source for the traceback then ("AST
    # constructor recursion depth mismatch"), and the grader broke down.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    path = config.getoption("--grader-events", default=None)
    if path:
        config.pluginmanager.register(
            _Recorder(Path(path), config.getoption("--grader-stack-after")), "learnvllm-grader-recorder"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What is not written yet takes one line, not a traceback; sys.exit in a test is named."""
    report = yield
    if call.excinfo is not None and report.failed:
        failure = explain(call.excinfo.value, _subject_path(item))
        report.user_properties.append(("learnvllm", vars(failure)))
        if failure.kind != "failed":
            report.longrepr = failure.message
    return report


def _points_of(item: pytest.Item) -> float:
    """What a test is worth: its @pytest.mark.points."""
    marker = item.get_closest_marker("points")
    return marker.args[0] if marker is not None and marker.args else 0


def _subject_path(item: pytest.Item) -> Path:
    subject = getattr(getattr(item, "module", None), "subject", None)
    return Path(getattr(subject, "__file__", None) or item.path.with_name("exercise.py"))


class _Recorder:
    """Writes the events and keeps what tests print, within bounds."""

    def __init__(self, path: Path, stack_after: float) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._pid = os.getpid()
        self._screen = (sys.stdout, sys.stderr)
        self._printed = Bounded(KEPT_OUTPUT)
        if stack_after:  # seconds, then say where the code under grading is: it may be ended soon after
            self._stack = path.with_suffix(".stack").open("w", encoding="utf-8")
            faulthandler.dump_traceback_later(stack_after, file=self._stack)

    def _write(self, event: str, **fields: Any) -> None:
        if os.getpid() == self._pid:  # not in a process that a learner's code forked
            self._file.write(json.dumps({"event": event, **fields}) + "\n")
            self._file.flush()

    def pytest_sessionstart(self) -> None:
        sys.stdout = sys.stderr = self._printed

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self._write("collect_error", message=crash.message if crash else str(report.longrepr))

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._printed.take()  # what importing prints belongs to no test
        tests = [
            {"test": _name(item.nodeid).partition("[")[0], "points": _points_of(item)}
            for item in session.items
        ]
        self._write("collected", tests=tests)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._write("start", name=_name(nodeid))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._write("ended", name=_name(nodeid))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            failure: Any = dict(report.user_properties).get("learnvllm") or {}
            if report.skipped and isinstance(report.longrepr, tuple):  # (file, line, "Skipped: why")
                why = report.longrepr[2].removeprefix("Skipped").removeprefix(": ")
                failure = {
                    "kind": "skipped",
                    "message": f"it was skipped: {why}" if why else "it was skipped",
                }
            self._write(
                "report",
                name=_name(report.nodeid),
                outcome=report.outcome,
                seconds=round(report.duration, 3),
                output=self._printed.take(),
                **failure,
            )

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self._write("interrupted", by=excinfo.typename)

    def pytest_internalerror(self, excrepr: object) -> None:
        self._write("internal_error", message=str(excrepr)[-KEPT_OUTPUT:])

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._write("finished", exit=int(exitstatus))

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Threads and processes that a learner's code left running shall not outlive the grader."""
        sys.stdout, sys.stderr = self._screen
        if os.getpid() == self._pid:
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    child.kill()
            self._file.close()
            sys.stdout.flush()
            os._exit(0)


def _name(nodeid: str) -> str:
    """A test's name, with its parameters in brackets and without its file."""
    return nodeid.split("::", 1)[-1]
