"""A failure as a learner can use it: the rule that is broken, the case, both values, where to read.

Each day's module binds its page: `lesson = partial(failure.lesson, CONCEPTS)`.
"""

from __future__ import annotations

from typing import Any


def lesson(page: str, rule: str, *, expected: Any, got: Any, read: str, case: Any = "") -> str:
    """The message.

    Args:
        page: the day's concepts.
        read: the section there, by its anchor.
    """
    lines = [rule, f"  case:     {case}" if case else "", f"  expected: {expected}", f"  got:      {got}"]
    return "\n".join([*filter(None, lines), f"  read:     {page}#{read}"])
