"""The module under grading: the learner's exercise.py, or whichever file LEARNVLLM_SUBJECT names.

A grader begins with `subject = load_subject(__file__)`; so one grader judges the learner's file, the
reference and every mutant, and each runs under the same module name.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from learnvllm.architecture import envs
from learnvllm.study.exercise import module_name
from learnvllm.study.failures import text_of

SOURCE_LIMIT = 1_000_000
"""Bytes. A syntax tree takes hundreds of times as much memory, and nobody writes so long a file."""


class SourceError(Exception):
    """A file is no Python that we can read. The message says why, with the line where there is one."""


class SubjectError(Exception):
    """The file under grading cannot be imported. The message says why and where, in a learner's words."""


def load_subject(test_file: str) -> ModuleType:
    """Import the file that the grader `test_file` is to judge.

    Raises:
        SubjectError: it is not there, or importing it fails, or it leaves the process.
    """
    folder = Path(test_file).resolve().parent
    path: Path = envs.get("LEARNVLLM_SUBJECT") or folder / "exercise.py"
    name = module_name(folder)
    if not path.is_file():
        raise SubjectError(f"{path} is not there. `learnvllm reset {folder.name}` brings the starter back.")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up by name
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # SystemExit would end the run without a word about why
        del sys.modules[name]
        if isinstance(error, KeyboardInterrupt):
            raise
        raise SubjectError(f"{path.name} cannot be imported: {describe(error, path)}") from None
    return module


def parse_source(path: Path) -> ast.Module:
    """The syntax tree of a file that a learner may have written.

    Raises:
        SourceError: there is none to be had, for whatever reason.
    """
    try:
        if (size := path.stat().st_size) > SOURCE_LIMIT:
            raise SourceError(f"it has {size:,} bytes; up to {SOURCE_LIMIT:,} are read")
        return ast.parse(path.read_bytes(), str(path))
    except OSError as error:
        raise SourceError(f"it cannot be read: {error.strerror}") from None
    except SyntaxError as error:
        raise SourceError(describe(error, path)) from None
    except (RecursionError, MemoryError):  # a formula of a thousand brackets
        raise SourceError("it is nested too deeply") from None
    except ValueError as error:
        raise SourceError(f"it is no Python source: {error}") from None


def describe(error: BaseException, path: Path) -> str:
    """What an exception says, with the line of `path` where it came from."""
    if isinstance(error, SyntaxError):
        line = f"line {error.lineno}: " if error.lineno else ""
        text = f": {error.text.strip()}" if error.text and error.text.strip() else ""
        return f"{line}{error.msg}{text}"
    if isinstance(error, SystemExit):
        said = f"it calls sys.exit({'' if error.code is None else repr(error.code)})"
    else:
        said = f"{type(error).__name__}: {text_of(error)}".removesuffix(": ")
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path
    ]
    return f"{said} (line {lines[-1]})" if lines else said
