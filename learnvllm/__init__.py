"""learnvllm: how vLLM works, taught by a small vLLM that serves a real model on a CPU.

Importing this package loads nothing else: each topic is imported on first use, so that `learnvllm --help` and
the torch-free parts (architecture, scheduling, the block pool) start in milliseconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from learnvllm.architecture.outputs import RequestOutput as RequestOutput
    from learnvllm.architecture.sampling_params import SamplingParams as SamplingParams
    from learnvllm.assembly import LLM as LLM

__version__ = "0.1.0"

_HOME_OF = {
    "LLM": "learnvllm.assembly",
    "RequestOutput": "learnvllm.architecture.outputs",
    "SamplingParams": "learnvllm.architecture.sampling_params",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its home when first asked for (PEP 562)."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'learnvllm' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)
