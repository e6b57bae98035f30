"""What `--model` may be: nothing (the embedded model), a known name, a directory, a .gguf file, a hub id.

Every one of them becomes a directory with config, tokenizer and safetensors. Imports no torch.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from learnvllm.architecture import envs
from learnvllm.architecture.errors import ModelLoadError
from learnvllm.architecture.text import to_path
from learnvllm.model_layers.loading import cache


@dataclass(frozen=True)
class ResolvedModel:
    """A model on this machine's disk."""

    name: str
    """What clients call it unless served_model_name says otherwise."""
    path: Path
    """Directory with config.json, tokenizer.json and *.safetensors."""


def resolve_model(model: str | None, progress: bool = True) -> ResolvedModel:
    """Find the model, fetching or converting it the first time.

    Raises:
        ModelLoadError: there is no such model, or it cannot be fetched, read or converted.
    """
    from learnvllm.model_layers import embedded

    known = embedded.find(model)
    if known is not None:
        return ResolvedModel(known.served_name, embedded.ensure_model(known, progress))
    assert model is not None  # None is the embedded model's name
    if not model.strip():  # as a path it would be the current directory
        raise ModelLoadError(
            "The model's name is empty. Leave it out for the embedded one.", parameter="model", value=model
        )
    path = model_path(model)
    if path.is_dir():
        return ResolvedModel(path.resolve().name, path.resolve())
    if path.suffix.lower() == ".gguf":
        return ResolvedModel(path.stem, converted_gguf(path, progress))
    if path.is_file():
        raise ModelLoadError(
            f"{path} is a file but not a .gguf file. Give a .gguf file, or a directory with config.json, "
            "tokenizer.json and *.safetensors.",
            parameter="model",
            value=model,
        )
    return _from_hub(model)


def model_path(model: str) -> Path:
    """The path `model` is, if it is one.

    Raises:
        ModelLoadError: it begins with ~ and there is no such home.
    """
    try:
        return to_path(model)
    except ValueError as error:
        raise ModelLoadError(
            f"The model {model!r} cannot be looked for: {error}.", parameter="model", value=model
        ) from None


def pull_model(model: str | None, progress: bool = True) -> ResolvedModel:
    """As `resolve_model`, and what was converted earlier is checked to the last byte and made anew if bad.

    Raises:
        ModelLoadError: as `resolve_model`.
    """
    resolved = resolve_model(model, progress)
    is_ours = resolved.path.parent == envs.home() / "models" and not (model and Path(model).is_dir())
    if is_ours and cache.verify(resolved.path):
        shutil.rmtree(resolved.path)
        resolved = resolve_model(model, progress)
    return resolved


def converted_gguf(source: Path, progress: bool = True) -> Path:
    """The directory a GGUF file was converted into. Found again by its path, size and time of change.

    Raises:
        ModelLoadError: it does not exist or cannot be converted.
    """
    from learnvllm.model_layers.loading.gguf_convert import convert_gguf, converted_bytes

    if not source.is_file():
        raise ModelLoadError(f"{source} does not exist.", parameter="model", value=str(source))
    stat = source.stat()
    key = hashlib.sha256(f"{source.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:16]
    target = envs.home() / "models" / f"{source.stem}-{key}-v{cache.FORMAT_VERSION}"
    if cache.read_manifest(target) is not None:
        return target
    return cache.build_directory(
        target,
        source=str(source.resolve()),
        source_record=cache.record_of(source),
        fill=lambda directory: convert_gguf(source, directory, progress),
        needed_bytes=converted_bytes(source),
    )


def _from_hub(model: str) -> ResolvedModel:
    """A hub id like Qwen/Qwen3-0.6B, through huggingface_hub (it comes with tokenizers)."""
    if not _looks_like_hub_id(model):
        raise ModelLoadError(
            f"There is no directory or .gguf file {model!r}, and it is not a known model. "
            "`learnvllm models list` shows those that come with learnvllm.",
            parameter="model",
            value=model,
        )
    try:
        from huggingface_hub import snapshot_download

        patterns = ["*.json", "*.safetensors", "*.jinja"]
        return ResolvedModel(model, Path(snapshot_download(model, allow_patterns=patterns)))
    except Exception as error:  # the library raises many kinds, from several packages
        first_line = (str(error).splitlines() or [""])[0]
        raise ModelLoadError(
            f"{model!r} is no directory here and cannot be fetched from the Hugging Face hub "
            f"({type(error).__name__}: {first_line}). Download it elsewhere and give its directory.",
            parameter="model",
            value=model,
        ) from None


def _looks_like_hub_id(model: str) -> bool:
    owner, slash, name = model.partition("/")
    plain = all(c.isalnum() or c in "-_." for c in owner + name)
    return bool(owner and slash and name) and plain and not model.startswith(".")
