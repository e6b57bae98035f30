"""Runs notebooks: a jupytext percent file in, the notebook with its outputs out, or an error that says where.

Tests and the site use this one executor, so what a page shows is what the tests ran. Results are kept by a
hash of the notebook, the package's sources and constraints.txt: change any of them, and it runs again.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

from learnvllm.architecture import envs
from learnvllm.architecture.errors import LearnVLLMError
from learnvllm.study import notebook_kernel
from learnvllm.study.files import ROOT

logger = logging.getLogger("mkdocs.plugins.notebooks")  # shown by `mkdocs build`, which shows nobody else's

CELL_TIMEOUT_S = 240.0
"""Far more than a cell may take (a whole notebook: 60 s), for machines that do something else meanwhile."""
_NOT_IN_KEY = ("study/site/", "study/commands/")
"""Sources that make pages and commands; no notebook can show what they do."""
_KEPT = 2
"""Results kept of each notebook: two checkouts may share one cache."""


class NotebookError(LearnVLLMError):
    """A cell raised, took too long, or its kernel died."""


def read(path: Path) -> Any:
    """The notebook as written: cells without outputs."""
    notebook = jupytext.read(path, fmt="py:percent")
    notebook.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(notebook.cells):  # random ids would make every build differ
        cell.id = f"cell-{number}"
        cell.metadata = {key: value for key, value in cell.metadata.items() if key == "tags"}
    return notebook


def run(path: Path, cache_dir: Path | None = None, cell_timeout_s: float = CELL_TIMEOUT_S) -> Any:
    """The notebook with its outputs, from the cache where nothing has changed.

    Raises: NotebookError.
    """
    kept = _result_path(path, cache_dir)
    if kept.exists():
        return nbformat.read(kept, as_version=4)
    notebook = execute(path, cell_timeout_s)
    folder, name = kept.parent, _name(path)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", encoding="utf-8", delete=False) as part:
        nbformat.write(notebook, part)
    os.replace(part.name, kept)  # whole or not at all, whoever else runs it now
    others = sorted(folder.glob(f"{name}-*.ipynb"), key=lambda p: p.stat().st_mtime, reverse=True)
    for old in others[_KEPT:]:
        old.unlink(missing_ok=True)
    return notebook


def run_all(paths: Sequence[Path], cache_dir: Path | None = None, workers: int = 2) -> list[Any]:
    """`run` for many at once, saying which are run and have been.

    Raises: NotebookError: the first that failed, in the order of `paths`.
    """
    to_run = [path for path in paths if not _result_path(path, cache_dir).exists()]
    if to_run:
        others = f" (nothing has changed for the other {kept})" if (kept := len(paths) - len(to_run)) else ""
        logger.info("Notebooks to run: %d%s", len(to_run), others)
    finished = itertools.count(1)

    def run_one(path: Path) -> Any:
        if path not in to_run:
            return run(path, cache_dir)
        logger.info("Running notebook %s", _name(path))
        began = time.monotonic()
        notebook = run(path, cache_dir)
        seconds = time.monotonic() - began
        logger.info("%d of %d: notebook %s ran, %.0f s", next(finished), len(to_run), _name(path), seconds)
        return notebook

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(run_one, paths))


def _name(path: Path) -> str:
    return f"{path.parent.name}-{path.stem}"


def _result_path(path: Path, cache_dir: Path | None) -> Path:
    """Where the notebook's result is kept, or will be."""
    return (cache_dir or envs.home() / "notebooks") / f"{_name(path)}-{cache_key(path)}.ipynb"


def cache_key(path: Path) -> str:
    """What the outputs depend on, as a hash."""
    digest = hashlib.sha256(sources_hash(ROOT).encode())
    digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def sources_hash(root: Path) -> str:
    """Of the package's sources, the pinned versions, the interpreter."""
    package = root / "learnvllm"
    digest = hashlib.sha256(f"{sys.version} {platform.machine()}".encode())
    files = [p for p in package.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
    for file in (*sorted(files), root / "constraints.txt"):
        name = file.relative_to(root).as_posix()
        if file.exists() and not name.removeprefix("learnvllm/").startswith(_NOT_IN_KEY):
            digest.update(name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


# --------------------------------------------------------------------------------------------- execution


class _ThisInterpreter(AsyncKernelManager):
    """Starts kernels with the Python that runs this, whichever kernels Jupyter knows of."""

    @property
    def kernel_spec(self) -> KernelSpec:
        module = f"__import__('{notebook_kernel.__name__}', fromlist=['*'])"  # leaves no name behind
        return KernelSpec(
            argv=[
                *(sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"),
                "--HistoryManager.enabled=False",
                f"--InteractiveShellApp.exec_lines={module}.seed_at_first_cell(get_ipython())",
            ],
            display_name="Python 3",
            language="python",
        )


def execute(path: Path, cell_timeout_s: float = CELL_TIMEOUT_S) -> Any:
    """Run every cell in a fresh process, the first that raises being the end of it.

    Raises: NotebookError: with the cell, its line and the traceback.
    """
    notebook = read(path)
    client = NotebookClient(
        notebook,
        timeout=cell_timeout_s,
        kernel_manager_class=_ThisInterpreter,
        resources={"metadata": {"path": str(path.parent)}},
        allow_errors=False,
        record_timing=False,
    )
    with tempfile.TemporaryDirectory(prefix="learnvllm-notebook-") as folder:
        log = Path(folder) / "kernel.log"
        with log.open("wb") as stderr:
            try:
                client.execute(env=_environment(folder), stderr=stderr)
            except CellExecutionError as error:
                raise NotebookError(_describe_failure(path, notebook, _traceback(notebook, error))) from None
            except CellTimeoutError:
                said = f"did not finish within {cell_timeout_s:g} s"
                raise NotebookError(_describe_failure(path, notebook, said)) from None
            except DeadKernelError:
                said = "ended its process.\n" + log.read_text("utf-8", "replace")[-2000:]
                raise NotebookError(_describe_failure(path, notebook, said)) from None
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            _scrub(output)
    return notebook


def _environment(folder: str) -> dict[str, str]:
    """The reference engine, offline, the same every time."""
    environ = {name: value for name, value in os.environ.items() if name != "LEARNVLLM_OVERLAY"}
    environ |= {"PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1", "IPYTHONDIR": folder}
    environ.setdefault("LEARNVLLM_LOG_LEVEL", "WARNING")
    environ.pop("MPLBACKEND", None)  # the kernel draws inline
    return environ


def _traceback(notebook: Any, error: CellExecutionError) -> str:
    """IPython's, without nbclient's frame around it."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", ()):
                return "\n".join(output.traceback)
    return f"{error.ename}: {error.evalue}"


def _describe_failure(path: Path, notebook: Any, what: str) -> str:
    """Names the cell that stopped: the last that has begun."""
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    cell = [code[0], *(c for c in code if c.execution_count)][-1]
    text = path.read_text("utf-8")
    at = text.find(cell.source)
    line = f", line {text.count(chr(10), 0, at) + 1}" if at >= 0 else ""
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    return f"{name}: cell {notebook.cells.index(cell) + 1}{line}:\n\n{cell.source}\n\n{plain_text(what)}"


# ----------------------------------------------------------------------------------------------- outputs

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")


def plain_text(text: str) -> str:
    """What a terminal shows in the end: no colours, lines that were written over once; no addresses."""
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in _ANSI.sub("", text).split("\n"))
    scrubbed = _ADDRESS.sub("0x…", "\n".join(lines))
    return scrubbed.replace(f"{ROOT}{os.sep}", "").replace(str(Path.home()), "~")


def _scrub(output: Any) -> None:
    if output.output_type == "stream":
        output.text = plain_text(output.text)
    for kind, data in output.get("data", {}).items():
        if kind.startswith("text/"):
            output.data[kind] = plain_text(data)
