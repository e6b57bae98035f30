"""The learner's files: where they lie, and how to change them so that nothing is ever lost.

A file is written whole or not at all, read-modify-write happens under a lock, and before a learner's file is
replaced a dated copy goes to `.learnvllm/backups/`.
"""

from __future__ import annotations

import codecs
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from learnvllm.architecture import envs
from learnvllm.study.exercise import StudyError

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""


def study_home() -> Path:
    """Where progress and backups lie: LEARNVLLM_STUDY_HOME, or .learnvllm/ in the checkout."""
    chosen: Path | None = envs.get("LEARNVLLM_STUDY_HOME")
    return chosen or ROOT / ".learnvllm"


def journal_home() -> Path:
    """Where the journal lies: journal/ in the checkout, or in LEARNVLLM_STUDY_HOME where that is set."""
    chosen: Path | None = envs.get("LEARNVLLM_STUDY_HOME")
    return (chosen or ROOT) / "journal"


def shown(path: Path) -> str:
    """A path as a person wants to read it: relative to where they are, or to the checkout, if it is below."""
    real = Path(os.path.realpath(path))  # resolve() trips over a loop
    for base in (Path.cwd(), ROOT):
        with suppress(ValueError):
            return str(real.relative_to(base.resolve()))
    return str(path)


def now() -> datetime:
    """To the second: states are read by people."""
    return datetime.now(UTC).replace(microsecond=0)


def read_text(path: Path) -> str:
    """The text, with \\n at the end of lines and without a byte order mark.

    Raises:
        StudyError: the file cannot be read, is not UTF-8 or no file. FileNotFoundError is left as it is.
    """
    if path.exists() and not path.is_file():  # a pipe would let us wait for ever
        raise StudyError(f"{shown(path)} is no regular file: move it away.")
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise StudyError(f"{shown(path)}, line {line}: not UTF-8 text. Save it as UTF-8.") from None
    except OSError as error:
        raise StudyError(f"{shown(path)} cannot be read: {error.strerror}.") from None


def write_text(path: Path, text: str) -> None:
    """Replace the file's whole content in one step; whoever reads meanwhile sees the old or the new."""
    _write(path, text.encode())


def rewrite_text(path: Path, text: str) -> None:
    """The same for a file that is the learner's: its line ends and its byte order mark stay as they are."""
    old = path.read_bytes() if path.is_file() else b""
    mark = codecs.BOM_UTF8 if old.startswith(codecs.BOM_UTF8) else b""
    crlf = b"\r\n" in old
    _write(path, mark + text.encode().replace(b"\n", b"\r\n" if crlf else b"\n"))


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with open(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
            os.chmod(name, mode)
            os.replace(name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise StudyError(f"{shown(path)} cannot be written: {error.strerror}.") from None


def back_up(path: Path, label: str) -> Path:
    """Copy a file, whatever is in it, to `.learnvllm/backups/<label>/` under the time; returns the copy.

    What is no file (a folder, a pipe, a link to nothing) is moved there.
    """
    folder = study_home() / "backups" / label
    stamp = now().strftime("%Y-%m-%dT%H-%M-%S")
    copy = folder / f"{stamp}{path.suffix}"
    number = 1
    while os.path.lexists(copy):  # twice in one second: both are kept
        number += 1
        copy = folder / f"{stamp}-{number}{path.suffix}"
    try:
        if path.is_file():
            _write(copy, path.read_bytes())
        else:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.move(path, copy)
    except OSError as error:
        raise StudyError(f"{shown(path)} cannot be kept in {shown(folder)}: {error.strerror}.") from None
    return copy


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time between reading and writing `path`. The lock dies with its process."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_name(path.name + ".lock").open("a")
        _wait_for(file)
    except OSError as error:
        raise StudyError(f"{shown(path)} cannot be written: {error.strerror}.") from None
    with file:
        yield  # closing the file unlocks it


def _wait_for(file: IO[str]) -> None:
    if sys.platform == "win32":
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
