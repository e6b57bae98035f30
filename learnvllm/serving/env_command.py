"""`learnvllm env`: what to paste into a bug report, and every variable we read, with its meaning."""

from __future__ import annotations

import json
import os
import platform
from importlib import metadata

from learnvllm import __version__
from learnvllm.architecture import envs
from learnvllm.architecture.errors import ConfigError

_PACKAGES = (
    "torch", "numpy", "numba", "msgspec", "pyzmq", "pydantic", "tokenizers", "safetensors", "gguf", "jinja2",
    "fastapi", "uvicorn", "uvloop", "httptools", "rich", "prompt_toolkit", "transformers", "openai",
)  # fmt: skip
_SECRET = {"LEARNVLLM_API_KEY"}


def show_environment(*, as_json: bool) -> int:
    facts = {
        "learnvllm": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": _memory(),
        "home": str(envs.home()),
        "device": _device(),
    }
    packages = {name: _version_of(name) for name in _PACKAGES}
    if as_json:
        values = {name: _shown(name) for name in envs.REGISTRY if name in os.environ}
        print(json.dumps({"facts": facts, "packages": packages, "environment": values}, indent=2))
        return 0
    width = max(map(len, (*facts, *packages)))
    for name, value in {**facts, **packages}.items():
        print(f"{name:<{width}}  {value}")
    print("\nEnvironment variables:")
    for variable in envs.REGISTRY.values():
        state = f"= {_shown(variable.name)}" if variable.name in os.environ else _default(variable.default)
        print(f"\n  {variable.name}  {state}\n    {variable.help}")
    for name in envs.unknown_variables():
        print(f"\n  {name}  is set, but there is no such variable")
    return 0


def _shown(name: str) -> str:
    return "(set, not shown)" if name in _SECRET else os.environ[name]


def _default(value: object) -> str:
    return "(not set)" if value is None else f"(not set; default {value})"


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _device() -> str:
    """What --device auto computes on, and with which model runner."""
    from learnvllm.architecture.platforms import current_platform

    platform = current_platform()
    try:
        runner = envs.get("LEARNVLLM_MODEL_RUNNER") or platform.default_runner
    except ConfigError as error:  # what is set wrong is to be shown here, of all places
        runner = f"({error})"
    return f"{platform.device_type}, {platform.total_memory() / 2**30:.0f} GiB, model runner: {runner}"


def _memory() -> str:
    import psutil

    memory = psutil.virtual_memory()
    return f"{memory.total / 2**30:.1f} GiB, {memory.available / 2**30:.1f} GiB free"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
