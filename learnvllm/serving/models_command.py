"""`learnvllm models`: which models are on this machine, fetching one, finding its directory."""

from __future__ import annotations

from pathlib import Path

from learnvllm.architecture.errors import ModelLoadError
from learnvllm.model_layers import embedded
from learnvllm.model_layers.loading.resolve import model_path, pull_model, resolve_model


def list_models() -> int:
    """Known models, and whether they are here."""
    for model in embedded.known_models():
        state = str(model.path) if model.is_ready() else f"not here; `learnvllm models pull {model.name}`"
        default = "  (the default)" if model is embedded.EMBEDDED else ""
        print(f"{model.name}{default}\n  {model.description}\n  {model.licence}\n  {state}")
    print(
        "\n--model also takes a .gguf file, or a directory with config.json, tokenizer.json, *.safetensors."
    )
    return 0


def pull(name: str | None) -> int:
    """Fetch and convert a model; when it is here, check its files and make anew what is damaged."""
    resolved = pull_model(name)
    print(f"{resolved.name} is at {resolved.path}")
    return 0


def show_path(name: str | None) -> int:
    """Only the directory, for scripts. Fetches nothing.

    Raises:
        ModelLoadError: the model is not on this machine.
    """
    print(_find_here(name))
    return 0


def _find_here(name: str | None) -> Path:
    known = embedded.find(name)
    if known is not None and known.is_ready():
        return known.path
    if known is None and name is not None:
        if model_path(name).exists():  # a .gguf file may still be converted; nothing is downloaded
            return resolve_model(name).path
        try:
            from huggingface_hub import snapshot_download

            return Path(snapshot_download(name, local_files_only=True))
        except Exception:  # many kinds: no such name, no such model, an empty cache
            pass
    shown, pull = name or embedded.EMBEDDED.name, "" if name is None else f" {name}"
    raise ModelLoadError(
        f"{shown} is not on this machine. Fetch it with `learnvllm models pull{pull}`.",
        parameter="model",
        value=shown,
    )
