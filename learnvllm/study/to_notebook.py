"""A day's notebooks as .ipynb files for Jupyter Lab, beside their sources and never in git.

What the learner changed in one stays: it is only made anew when asked for, and then backed up.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from learnvllm.study import files
from learnvllm.study.catalogue import Day, find_notebooks
from learnvllm.study.exercise import StudyError

MADE, KEPT, OLD = "made", "kept", "old"
SAID = {
    MADE: "made",
    KEPT: "yours, as you left it",
    OLD: "yours, as you left it; its source is newer: --fresh makes it anew and backs yours up",
}


@dataclass(frozen=True)
class Converted:
    """One notebook."""

    path: Path
    outcome: str


def convert_day(day: Day, *, fresh: bool = False) -> list[Converted]:
    """Make what is not there yet. Raises StudyError when the day has no notebooks."""
    found = find_notebooks(day)
    if not found:
        raise StudyError(f"Day {day.number} has no notebooks yet.")
    return [_convert(source, target_of(source), fresh) for source in found]


def target_of(source: Path) -> Path:
    """Beside the source; in LEARNVLLM_STUDY_HOME, where that is set."""
    home = files.study_home()
    if home == files.ROOT / ".learnvllm":
        return source.with_suffix(".ipynb")
    return home / "notebooks" / source.parent.name / f"{source.stem}.ipynb"


def _convert(source: Path, target: Path, fresh: bool) -> Converted:
    import nbformat

    from learnvllm.study import notebooks

    if target.exists():
        if not fresh:
            newer = source.stat().st_mtime > target.stat().st_mtime
            return Converted(target, OLD if newer else KEPT)
        files.back_up(target, f"{source.parent.name}.{source.stem}")
    files.write_text(target, nbformat.writes(notebooks.read(source)))
    return Converted(target, MADE)


def need_jupyter_lab() -> None:
    """Raises StudyError when Jupyter Lab, an extra of its own, is not installed."""
    if importlib.util.find_spec("jupyterlab") is None:
        raise StudyError(
            'Jupyter Lab is not installed: python -m pip install -c constraints.txt -e ".[lab]". '
            "The notebooks are made; any other Jupyter opens them, too."
        )
