"""Directories in the cache that are either whole or absent: built aside, checksummed, renamed into place.

A manifest in each says what it was made from and the size and SHA-256 of every file. Opening a directory
checks version and sizes only, in well under a millisecond; `verify` reads everything.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from learnvllm.architecture.errors import ModelLoadError

MANIFEST = "manifest.json"
FORMAT_VERSION = 1
"""Raised when the conversion changes what it writes: older directories are then made anew."""
_STALE_AFTER_S = 3600.0
_TOUCH_EVERY_S = 60.0


@dataclass(frozen=True)
class FileRecord:
    """What a file must be."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What is in a cached directory and where it came from."""

    version: int
    source: str
    source_record: FileRecord
    files: dict[str, FileRecord]


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def record_of(path: Path) -> FileRecord:
    return FileRecord(path.stat().st_size, sha256_of(path))


def read_manifest(directory: Path) -> Manifest | None:
    """The manifest, if the directory is of this version and every file has its full size. Else None."""
    try:
        data = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        manifest = Manifest(
            version=int(data["version"]),
            source=str(data["source"]),
            source_record=FileRecord(**data["source_record"]),
            files={name: FileRecord(**record) for name, record in data["files"].items()},
        )
        whole = all((directory / n).stat().st_size == r.size for n, r in manifest.files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest if whole and manifest.version == FORMAT_VERSION else None


def verify(directory: Path) -> list[str]:
    """Names of files whose content is not what the manifest says; reads everything. [] means sound."""
    manifest = read_manifest(directory)
    if manifest is None:
        return [MANIFEST]
    return [n for n, r in manifest.files.items() if sha256_of(directory / n) != r.sha256]


def build_directory(
    target: Path, source: str, source_record: FileRecord, fill: Callable[[Path], None], needed_bytes: int
) -> Path:
    """Return `target`, filled by `fill(empty directory)` unless it is there and whole already.

    Safe to call from several processes at once: each builds its own copy, the first to finish wins. Whatever
    stops `fill` (an error, Ctrl-C), nothing half-made remains.

    Raises:
        ModelLoadError: the disk is full or not writable; and whatever `fill` raises.
    """
    if read_manifest(target) is not None:
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_stale(target.parent)
        _check_space(target.parent, needed_bytes)
        work = Path(tempfile.mkdtemp(prefix=f".tmp-{target.name}-", dir=target.parent))
    except OSError as error:
        raise _disk_error(target, error) from None
    try:
        with kept_fresh(work):
            fill(work)
        files = {p.name: record_of(p) for p in sorted(work.iterdir())}
        manifest = Manifest(FORMAT_VERSION, source, source_record, files)
        (work / MANIFEST).write_text(json.dumps(asdict(manifest), indent=2) + "\n", encoding="utf-8")
        work.chmod(0o755)  # mkdtemp's are for this user only
        _move_into_place(work, target)
    except OSError as error:
        raise _disk_error(target, error) from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _move_into_place(work: Path, target: Path) -> None:
    """Rename; where something is there already, keep it if it is whole, replace it if it is not."""
    for _ in range(10):
        try:
            os.rename(work, target)  # fails on a directory that is there and not empty
            return
        except OSError:
            if not target.exists():
                raise
        if read_manifest(target) is not None:
            return  # another process was faster
        broken = Path(tempfile.mkdtemp(prefix=f".tmp-{target.name}-", dir=target.parent))
        try:
            os.rename(target, broken / "broken")
        except FileNotFoundError:
            pass  # another process moved it away
        finally:
            shutil.rmtree(broken, ignore_errors=True)
    raise OSError(f"{target} keeps being replaced by something else")


@contextmanager
def kept_fresh(folder: Path) -> Iterator[None]:
    """Touch the folder every minute, so that however long its filling takes, `remove_stale` lets it be."""
    done = threading.Event()

    def touch() -> None:
        while not done.wait(_TOUCH_EVERY_S):
            with suppress(OSError):
                os.utime(folder)

    thread = threading.Thread(target=touch, name=f"touching {folder.name}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def remove_stale(parent: Path) -> None:
    """What processes killed in the middle left behind, an hour ago or more."""
    for leftover in parent.glob(".tmp-*"):
        try:
            if time.time() - leftover.stat().st_mtime > _STALE_AFTER_S:
                shutil.rmtree(leftover, ignore_errors=True)
        except OSError:
            pass  # somebody else removed it


def _check_space(parent: Path, needed_bytes: int) -> None:
    free = shutil.disk_usage(parent).free
    if free < needed_bytes:
        raise OSError(f"{needed_bytes / 1e6:.0f} MB are needed and {free / 1e6:.0f} MB are free")


def _disk_error(target: Path, error: OSError) -> ModelLoadError:
    return ModelLoadError(
        f"The model cannot be written to {target}: {error}. Make room, or point LEARNVLLM_HOME to "
        "another disk.",
        parameter="LEARNVLLM_HOME",
        value=str(target),
    )
