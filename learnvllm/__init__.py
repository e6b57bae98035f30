"""learnvllm: how vLLM works, taught by a small vLLM that serves a real model on a CPU.

Importing this package loads nothing else: `learnvllm.LLM` and the other names below are imported on first
use, so that `learnvllm --help` and the torch-free parts (architecture, scheduling, the block pool) start
at once.
Upstream namesake: vllm/__init__.py, which is lazy too.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "LLM": "learnvllm.assembly",
    "SamplingParams": "learnvllm.architecture.sampling_params",
    "RequestOutput": "learnvllm.architecture.outputs",
    "CompletionOutput": "learnvllm.architecture.outputs",
}

if TYPE_CHECKING:
    from learnvllm.architecture.outputs import CompletionOutput, RequestOutput
    from learnvllm.architecture.sampling_params import SamplingParams
    from learnvllm.assembly import LLM

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams", "__version__"]


def __getattr__(name: str) -> Any:
    """Import a public name from its home when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'learnvllm' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


if "LEARNVLLM_OVERLAY" in os.environ:  # a learner's code is to run, in this process and in all it starts
    from learnvllm.study.overlay import install_from_environment

    install_from_environment()
