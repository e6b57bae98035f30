"""What notebooks show: tables as Markdown, the engine's steps as tables and plots, plots as SVG.

Importing it within a notebook sets matplotlib up: transparent SVG whose ink is one grey that reads on white
and on black. The site replaces that grey by the page's text colour.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from learnvllm.study import tables

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from learnvllm.architecture.tracing import ScheduledTokens, StepEvent

INK = "#7d7c7b"
"""Text, axes, ticks and grid. No series has this colour, so that it can be told from them in the SVG."""
COLORS = ("#3b82c4", "#d9691f", "#2f9e6e", "#b065c9", "#a8862a", "#d6557f", "#3a9aa8", "#8a7a5c")
"""Series, in order. Each has a contrast of at least 3 to 1 with both of the site's backgrounds."""


@dataclass(frozen=True)
class Markdown:
    """Markdown that Jupyter and the site render, and a terminal prints."""

    text: str

    def _repr_markdown_(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text


def table(
    rows: Iterable[Mapping[str, Any] | Sequence[Any]], headers: Sequence[str] | None = None
) -> Markdown:
    """A table. Rows are sequences, or dicts, whose keys are the headers unless headers choose among them.

    Columns of numbers are set to the right; a float has at most four significant digits.
    """
    given = list(rows)
    if headers is None:
        if not given or not isinstance(given[0], Mapping):
            raise ValueError("headers are missing: only rows that are dicts name their columns")
        headers = list(given[0])
    cells = [[row.get(h, "") for h in headers] if isinstance(row, Mapping) else list(row) for row in given]
    for row in cells:
        if len(row) != len(headers):
            raise ValueError(f"a row has {len(row)} cells for {len(headers)} headers: {row}")
    rules = ["---:" if _is_numeric([row[i] for row in cells]) else "---" for i in range(len(headers))]
    return Markdown("\n".join(_line(row) for row in (list(headers), rules, *cells)))


def step_table(events: Iterable[StepEvent], names: Mapping[str, str] | None = None) -> Markdown:
    """One row a step: what each request computed, who was put off, what memory was left.

    `B 16→24` reads: request B had 16 tokens computed, and has 24 after the step. A dot behind it means that
    the step sampled a token for it.

    Args:
        names: request id -> what to call it.
    """
    called = names or {}
    rows = [
        {
            "step": event.step,
            "tokens": sum(entry.num_tokens for entry in event.scheduled),
            "computed": ", ".join(_progress(entry, called) for entry in event.scheduled) or "nothing",
            "preempted": ", ".join(called.get(i, i) for i in event.preempted),
            "finished": ", ".join(called.get(i, i) for i in event.finished),
            "running": event.num_running,
            "waiting": event.num_waiting,
            "free blocks": f"{event.free_blocks} of {event.total_blocks}",
        }
        for event in events
    ]
    busy = [c for c in ("preempted", "finished", "waiting") if any(row[c] for row in rows)]
    columns = ["step", "tokens", "computed", *busy, "running", "free blocks"]
    return table(rows, columns)


def step_plot(
    events: Iterable[StepEvent], budget: int | None = None, names: Mapping[str, str] | None = None
) -> Figure:
    """Tokens of each step, stacked by request, below the budget's line. Shown as the last value of a cell."""
    steps = list(events)
    order = list(dict.fromkeys(entry.req_id for event in steps for entry in event.scheduled))
    fig, ax = figure()
    at = [event.step for event in steps]
    bottom = [0] * len(steps)
    for number, req_id in enumerate(order):
        heights = [sum(e.num_tokens for e in event.scheduled if e.req_id == req_id) for event in steps]
        label = (names or {}).get(req_id, req_id) if len(order) <= len(COLORS) else None
        ax.bar(at, heights, bottom=bottom, width=0.8, color=COLORS[number % len(COLORS)], label=label)
        bottom = [low + height for low, height in zip(bottom, heights)]
    if budget is not None:
        ax.axhline(budget, color=INK, linestyle="--", linewidth=1)
        ax.annotate(f"budget {budget}", (at[-1] if at else 0, budget), ha="right", va="bottom")
    ax.set_xlabel("step")
    ax.set_ylabel("tokens computed")
    if len(order) <= len(COLORS):
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return fig


def figure(width: float = 7.0, height: float = 3.0) -> tuple[Figure, Axes]:
    """A figure of the site's width with one pair of axes. A cell that ends in a plot shows it by itself."""
    from matplotlib import pyplot

    fig, ax = pyplot.subplots(figsize=(width, height), layout="constrained")
    return fig, ax


def use_style() -> None:
    """Sets matplotlib's defaults. Done by the import, within a notebook."""
    import matplotlib
    from cycler import cycler
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    set_matplotlib_formats("svg", metadata={"Date": None})
    inked = (
        "text.color",
        "axes.edgecolor",
        "axes.labelcolor",
        "axes.titlecolor",
        "xtick.color",
        "ytick.color",
    )
    style: dict[str, Any] = dict.fromkeys((*inked, "grid.color", "legend.labelcolor"), INK)
    style.update(
        {
            "axes.facecolor": "none",
            "axes.grid": True,
            "axes.grid.axis": "y",
            "axes.axisbelow": True,
            "axes.prop_cycle": cycler(color=COLORS),
            "axes.spines.right": False,
            "axes.spines.top": False,
            "figure.facecolor": "none",
            "font.size": 10.0,
            "grid.alpha": 0.3,
            "legend.frameon": False,
            "savefig.facecolor": "none",
            "svg.fonttype": "none",  # text stays text: to be searched, read out, and set in the page's font
            "svg.hashsalt": "learnvllm",  # the same ids every time
        }
    )
    parameters: Any = matplotlib.rcParams  # its type lists every name there is
    parameters.update(style)
    _show_once()


def _show_once() -> None:
    """A figure that a cell ends in is closed as it is shown: what is open then, the notebook shows again."""
    from IPython import get_ipython
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    shell = get_ipython()
    if shell is None:  # imported by a test, not by a notebook
        return
    formatter = shell.display_formatter.formatters["image/svg+xml"]
    draw = formatter.for_type(Figure)

    def draw_and_close(fig: Figure) -> Any:
        drawing = draw(fig)
        pyplot.close(fig)
        return drawing

    formatter.for_type(Figure, draw_and_close)


# ------------------------------------------------------------------------------------------------- cells


def _progress(entry: ScheduledTokens, names: Mapping[str, str]) -> str:
    after = entry.num_computed_before + entry.num_tokens
    text = f"{names.get(entry.req_id, entry.req_id)} {entry.num_computed_before}→{after}"
    hit = f" ({entry.num_cached_tokens} cached)" if entry.num_cached_tokens else ""
    return text + hit + (" ●" if entry.sampled else "")


def _is_numeric(column: Sequence[Any]) -> bool:
    return bool(column) and all(isinstance(v, int | float) and not isinstance(v, bool) for v in column)


def _line(cells: Sequence[Any]) -> str:
    return "| " + " | ".join(_text(cell) for cell in cells) + " |"


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    return tables.markdown(str(value))


if "ipykernel" in sys.modules:
    use_style()
