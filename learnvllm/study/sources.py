"""Our modules as files: where each lies, which others it imports, and one hash over all that a file needs.

A result that was computed from these stays true until the hash changes.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import learnvllm
from learnvllm.study.exercise import StudyError, read_bytes
from learnvllm.study.subject import describe

PACKAGE = Path(learnvllm.__file__).parent
_EVERYTHING = {"learnvllm.assembly", "learnvllm.cli"}
"""Modules that choose by name what they import: whoever needs them may need anything."""


def reference_path(module: str) -> Path:
    """The source of one of our modules, found without importing it. Raises StudyError when there is none."""
    path = _path(module)
    if path is None:
        raise StudyError(f"There is no module {module}, which an exercise names as the home of its targets.")
    return path


def reference_hash(files: Iterable[Path]) -> str:
    """Over every module of learnvllm that `files` import, directly or not.

    Raises:
        StudyError: one of them is not there, or no Python.
    """
    waiting = [name for file in files for name in _imports(file, _stamp(file))]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        path = _path(name)
        if name in seen or path is None:
            continue
        seen.add(name)
        if name in _EVERYTHING:
            seen.update(_all_modules())
            break
        waiting += _imports(path, _stamp(path))
    digest = hashlib.sha256()
    for name in sorted(seen):
        path = _path(name)
        digest.update(name.encode() + b"\0" + (read_bytes(path) if path else b"") + b"\0")
    return digest.hexdigest()


def _all_modules() -> list[str]:
    paths = PACKAGE.rglob("*.py")
    return [".".join(("learnvllm", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in paths]


def _path(module: str) -> Path | None:
    base = PACKAGE.joinpath(*module.split(".")[1:])
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _stamp(path: Path) -> tuple[int, int]:
    try:
        told = path.stat()
    except OSError as error:
        raise StudyError(f"{path} cannot be read: {error.strerror}.") from None
    return told.st_mtime_ns, told.st_size


@lru_cache(maxsize=1024)
def _imports(path: Path, stamp: tuple[int, int]) -> tuple[str, ...]:
    """Modules of ours in its imports, wherever they stand; `from learnvllm import LLM` counts, too."""
    found: set[str] = set()
    try:
        tree = ast.parse(read_bytes(path))
    except (SyntaxError, ValueError) as error:
        raise StudyError(f"{path}: {describe(error, path)}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            if node.module == "learnvllm":
                found |= {"learnvllm.assembly" for alias in node.names if alias.name in learnvllm.__all__}
    ours = {name for name in found if name.startswith("learnvllm.")}
    parents = {name.rpartition(".")[0] for name in ours}
    return tuple(sorted(ours | {name for name in parents if name != "learnvllm"}))
