"""What notebooks show: tables that are Markdown, steps one can read, colours one can tell on any ground."""

from __future__ import annotations

import matplotlib
import pytest

from learnvllm.architecture.tracing import ScheduledTokens, StepEvent
from learnvllm.study import show

WHITE, SLATE = "#ffffff", "#1e2129"
"""The theme's two backgrounds."""


def luminance(color: str) -> float:
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_a_table_aligns_numbers_rounds_floats_and_escapes_what_would_break_it() -> None:
    table = show.table([(1, "a|b", 0.123456), (20, None, 123456.0)], ["n", "text", "x"])
    assert str(table).splitlines() == [
        "| n | text | x |",
        "| ---: | --- | ---: |",
        "| 1 | a\\|b | 0.1235 |",
        "| 20 |  | 123,456 |",
    ]
    assert table._repr_markdown_() == str(table)


def test_rows_that_are_dicts_name_the_columns() -> None:
    rows = [{"a": 1, "b": 2}, {"a": 3}]
    assert str(show.table(rows)).splitlines()[3] == "| 3 |  |"
    assert str(show.table(rows, ["b"])).splitlines()[2] == "| 2 |"


def test_a_row_of_another_length_and_missing_headers_are_refused() -> None:
    with pytest.raises(ValueError, match="2 cells for 1 headers"):
        show.table([(1, 2)], ["n"])
    with pytest.raises(ValueError, match="headers are missing"):
        show.table([(1, 2)])


def test_a_step_says_what_each_request_computed() -> None:
    entries = [
        ScheduledTokens("r1", 16, 0, 40, 40),
        ScheduledTokens("r2", 1, 9, 10, 8, num_cached_tokens=0, sampled=[7]),
    ]
    event = StepEvent(step=3, scheduled=entries, num_running=2, free_blocks=5, total_blocks=8)
    lines = str(show.step_table([event], {"r1": "A", "r2": "B"})).splitlines()
    assert lines[0] == "| step | tokens | computed | running | free blocks |"
    assert lines[2] == "| 3 | 17 | A 0→16, B 9→10 ● | 2 | 5 of 8 |"


def test_columns_that_say_nothing_are_left_out_and_others_are_there() -> None:
    event = StepEvent(step=1, preempted=["r1"], num_waiting=1, free_blocks=0, total_blocks=8)
    assert "preempted | waiting" in str(show.step_table([event])).splitlines()[0]


@pytest.mark.parametrize("color", [*show.COLORS, show.INK])
def test_colours_can_be_told_on_white_and_on_slate(color: str) -> None:
    assert contrast(color, WHITE) >= 3
    assert contrast(color, SLATE) >= 3


def test_steps_are_drawn_stacked_below_the_budget() -> None:
    matplotlib.use("agg")
    entries = [ScheduledTokens("r1", 16, 0, 40, 40), ScheduledTokens("r2", 4, 0, 4, 4)]
    fig = show.step_plot([StepEvent(step=1, scheduled=entries)], budget=32)
    bars = fig.axes[0].patches
    assert [(bar.get_y(), bar.get_height()) for bar in bars] == [(0, 16), (16, 4)]
