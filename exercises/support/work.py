"""How much work a call is, in lines of the learner's file: a figure that other load does not change."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_executed(file: str | None, action: Callable[[], object]) -> int:
    """Lines of `file` that are executed while `action` runs; each turn of a loop counts."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename != file:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count
