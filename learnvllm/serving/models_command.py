"""`learnvllm models`: which models are on this machine, fetching one, finding its directory."""

from __future__ import annotations

from learnvllm.model_layers import embedded
from learnvllm.model_layers.loading.resolve import resolve_model


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
    """Fetch and convert a model; at once when it is here."""
    resolved = resolve_model(name)
    print(f"{resolved.name} is at {resolved.path}")
    return 0


def show_path(name: str | None) -> int:
    """Only the directory, for scripts."""
    print(resolve_model(name).path)
    return 0
