"""Figures of a benchmark: mean, median, 99th percentile, and a table of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

Row = tuple[str, float, str]
"""Name, value, unit."""


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of the values lie, between neighbours where it must."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def quantiles(name: str, values: Sequence[float], unit: str) -> list[Row]:
    """Mean, median and p99 of measurements; nothing where there are none."""
    if not values:
        return []
    return [
        (f"mean {name}", statistics.fmean(values), unit),
        (f"median {name}", statistics.median(values), unit),
        (f"p99 {name}", percentile(values, 0.99), unit),
    ]


def print_table(title: str, rows: Sequence[Row]) -> None:
    width = max(len(name) for name, _, _ in rows)
    print(title)
    for name, value, unit in rows:
        shown = f"{value:d}" if isinstance(value, int) else f"{value:,.2f}"
        print(f"  {name:<{width}}  {shown:>12} {unit}")
