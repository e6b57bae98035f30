"""Every environment variable the project reads, declared once: name, default, parser, one line of help.

`learnvllm env`, the reference page and the tests read this registry; a variable's value is had through `get`.
Upstream namesake: vllm/envs.py (environment_variables).
"""

from __future__ import annotations

import difflib
import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from learnvllm.architecture.errors import ConfigError
from learnvllm.architecture.text import to_path

logger = logging.getLogger(__name__)

_PREFIX = "LEARNVLLM_"
MAX_THREADS = 1024
"""More compute threads than any machine has cores. Far beyond it the system has no memory for their stacks,
and the OpenMP runtime ends the process."""


@dataclass(frozen=True)
class EnvVar:
    """One variable. `parse` turns its text into a value and raises ValueError on nonsense."""

    name: str
    default: Any
    parse: Callable[[str], Any]
    help: str


def _parse_bool(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off", ""):
        return False
    raise ValueError("use 1 or 0")


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"use one of {', '.join(choices)}")
        return text

    return parse


def _positive_float(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError("use a number above 0, and not inf")
    return value


def _positive_int(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise ValueError("use a whole number above 0")
    return value


def _path(text: str) -> Path | None:
    """Empty is as good as unset."""
    return to_path(text) if text else None


def _num_threads(text: str) -> int:
    value = _positive_int(text)
    if value > MAX_THREADS:
        raise ValueError(f"use at most {MAX_THREADS}")
    return value


def _default_home() -> Path:
    from platformdirs import user_cache_dir  # late: only needed where a cache path is asked for

    return Path(user_cache_dir("learnvllm"))


REGISTRY: dict[str, EnvVar] = {
    var.name: var
    for var in (
        EnvVar(
            "LEARNVLLM_HOME",
            None,
            _path,
            "Cache directory for models and compiled kernels (default: the platform's user cache).",
        ),
        EnvVar(
            "LEARNVLLM_API_KEY", None, str, "API key required on every route but /health; same as --api-key."
        ),
        EnvVar(
            "LEARNVLLM_ENGINE_READY_TIMEOUT_S",
            600.0,
            _positive_float,
            "Seconds a client waits for the engine process to report ready.",
        ),
        EnvVar(
            "LEARNVLLM_ENABLE_MULTIPROCESSING",
            True,
            _parse_bool,
            "Run the engine core in its own process for LLM(...); 0 keeps it in-process.",
        ),
        EnvVar(
            "LEARNVLLM_CPU_KERNELS",
            "numba",
            _one_of("numba", "torch"),
            "CPU operators: compiled numba kernels or their readable torch twins.",
        ),
        EnvVar(
            "LEARNVLLM_MODEL_RUNNER",
            None,
            _one_of("simple", "device"),
            "Model runner: simple rebuilds a step's inputs on the host, device keeps them on the GPU.",
        ),
        EnvVar(
            "LEARNVLLM_GPU_KERNELS",
            "triton",
            _one_of("triton", "torch"),
            "GPU operators: Triton kernels or their readable torch twins.",
        ),
        EnvVar(
            "LEARNVLLM_NUM_THREADS",
            None,
            _num_threads,
            "Compute threads on a CPU (default: the number of physical cores).",
        ),
        EnvVar(
            "LEARNVLLM_KV_CACHE_SPACE_GIB",
            None,
            _positive_float,
            "KV cache size on a CPU in GiB (default: sized for max_num_seqs x max_model_len, within memory).",
        ),
        EnvVar(
            "LEARNVLLM_LOG_LEVEL",
            "INFO",
            _one_of("DEBUG", "INFO", "WARNING", "ERROR"),
            "Log level of every process.",
        ),
        EnvVar(
            "LEARNVLLM_TRACE_FILE",
            None,
            _path,
            "Write one StepEvent per engine step to this file as a Chrome/Perfetto trace.",
        ),
        EnvVar("LEARNVLLM_EXERCISES", None, _path, "The exercises/ folder (default: the checkout's)."),
        EnvVar(
            "LEARNVLLM_STUDY_HOME",
            None,
            _path,
            "Progress, backups and journal (default: .learnvllm/ and journal/ in the checkout).",
        ),
        EnvVar(
            "LEARNVLLM_OVERLAY",
            None,
            str,
            "Exercises whose code runs in place of the reference's: passed, all, or ids. Same as --mine.",
        ),
        EnvVar(
            "LEARNVLLM_SHADOW",
            False,
            _parse_bool,
            "With LEARNVLLM_OVERLAY: run the reference beside it, stop where they differ. Same as --shadow.",
        ),
        EnvVar(
            "LEARNVLLM_SUBJECT",
            None,
            _path,
            "Python file that an exercise's grader judges (default: the exercise.py beside it).",
        ),
    )
}


def get(name: str, environ: Mapping[str, str] | None = None) -> Any:
    """Return the parsed value of a declared variable, or its default when unset.

    Raises:
        KeyError: the variable is not declared in REGISTRY.
        ConfigError: its text does not parse.
    """
    var = REGISTRY[name]
    text = (os.environ if environ is None else environ).get(name)
    if text is None:
        return var.default
    try:
        text.encode()
        return var.parse(text)
    except UnicodeEncodeError:
        raise ConfigError(f"{name}={text!a} is not valid: use UTF-8.", parameter=name, value=text) from None
    except ValueError as error:
        raise ConfigError(f"{name}={text!r} is not valid: {error}.", parameter=name, value=text) from None


def home() -> Path:
    """The cache directory: LEARNVLLM_HOME, or the platform's user cache."""
    return get("LEARNVLLM_HOME") or _default_home()


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """LEARNVLLM_* variables that are set but not declared: probably typing mistakes."""
    names = os.environ if environ is None else environ
    return sorted(n for n in names if n.startswith(_PREFIX) and n not in REGISTRY)


@cache
def warn_of_unknown_variables() -> None:
    """Log each of them, once in a process, with the name that was probably meant."""
    for name in unknown_variables():
        words = [known.removeprefix(_PREFIX) for known in REGISTRY]
        close = difflib.get_close_matches(name.removeprefix(_PREFIX), words, n=1)
        hint = f" Did you mean {_PREFIX}{close[0]}?" if close else " `learnvllm env` lists those there are."
        logger.warning("%s is set, but there is no such variable.%s", name, hint)
