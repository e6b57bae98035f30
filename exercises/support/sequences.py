"""Two sequences too long for a message: shown from where they begin to differ, or they look the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SHOWN = 6


def difference(expected: Sequence[Any], got: Sequence[Any]) -> str:
    """Where the two part, and how each goes on from there."""
    pairs = enumerate(zip(expected, got))
    first = next((i for i, (a, b) in pairs if a != b), min(len(expected), len(got)))
    begin = f"the first {first} agree, then" if first else "from the start"
    return f"{begin} {_from(expected, first)} is expected, and {_from(got, first)} came"


def _from(sequence: Sequence[Any], first: int) -> str:
    shown = ", ".join(map(str, sequence[first : first + SHOWN]))
    return f"[{shown}{', …' if len(sequence) > first + SHOWN else ''}]"
