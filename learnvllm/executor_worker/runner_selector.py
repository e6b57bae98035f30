"""Which of the two model runners an engine gets, and why: rules over one table of features.

The simple runner rebuilds a step's inputs on the host and is easy to follow; the device-resident one sends
deltas and never waits. Both give the same tokens. The table below is all there is to know about what they
can: the choice, the error of a forced choice and the tests are made of it. Upstream:
VllmConfig.use_v2_model_runner and _get_v2_model_runner_unsupported_features in vllm/config/vllm.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from learnvllm.architecture import envs
from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.errors import ConfigError
from learnvllm.architecture.platforms import Platform, current_platform
from learnvllm.executor_worker.device.rows import MAX_WORDS, arena_words

RunnerName = Literal["simple", "device"]


class Support(Enum):
    YES = "yes"
    WAITS = "yes, but a step with it waits for the device"
    NO = "no"


@dataclass(frozen=True)
class Feature:
    """One line of the table."""

    name: str
    simple: Support
    device: Support
    asked: Callable[[EngineConfig, Platform], bool] | None = None
    """Whether a configuration asks for it. None: requests do, so it may not be NO for either runner."""

    def support(self, runner: RunnerName) -> Support:
        return self.simple if runner == "simple" else self.device


def _rows_are_huge(config: EngineConfig, platform: Platform) -> bool:
    sizes = [config.cache_config.block_size] * len(set(config.model_config.arch.layer_types))
    max_seqs = config.scheduler_config.max_num_seqs
    return arena_words(sizes, max_seqs, config.max_model_len + 1) > MAX_WORDS


YES, WAITS, NO = Support
FEATURES = (
    Feature("greedy, temperature and seed", YES, YES),
    Feature("top_k, top_p and min_p", YES, YES),
    Feature("repetition, frequency and presence penalties", YES, WAITS),
    Feature("logit_bias, min_tokens and bad_words", YES, WAITS),
    Feature("logprobs and prompt_logprobs", YES, WAITS),
    Feature("rows of more than 2**31 words (max_num_seqs times max_model_len)", YES, NO, _rows_are_huge),
    Feature("a worker in a process of its own", YES, WAITS, lambda config, _: _backend(config) == "mp"),
    Feature(
        "CUDA graphs",
        NO,
        YES,
        lambda config, platform: platform.supports("cuda_graphs") and not config.model_config.enforce_eager,
    ),
)


def _backend(config: EngineConfig) -> str:
    return config.parallel_config.distributed_executor_backend


@dataclass(frozen=True)
class RunnerChoice:
    """The runner, and what led to it, in the order in which it was asked."""

    name: RunnerName
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.name} ({'; '.join(self.reasons)})"


def select_runner(config: EngineConfig, platform: Platform | None = None) -> RunnerChoice:
    """LEARNVLLM_MODEL_RUNNER, or else the platform's runner, or else the one that can do what is asked.

    Raises:
        ConfigError: the runner that was asked for cannot do something without which the engine cannot run.
    """
    platform = platform or current_platform(config.device_config.device)
    asked = [f for f in FEATURES if f.asked is not None and f.asked(config, platform)]
    forced: RunnerName | None = envs.get("LEARNVLLM_MODEL_RUNNER")
    name: RunnerName = forced or platform.default_runner
    why = "LEARNVLLM_MODEL_RUNNER" if forced else f"what pays on {platform.device_type}"
    missing = [f.name for f in asked if f.support(name) is NO]
    reasons = [why]
    if missing and name == "device":
        if forced:
            raise ConfigError(
                f"LEARNVLLM_MODEL_RUNNER={forced!r} cannot do: {'; '.join(missing)}. Leave it unset.",
                parameter="LEARNVLLM_MODEL_RUNNER",
                value=forced,
            )
        name, reasons = "simple", [why + ", but not with " + "; ".join(missing)]
    elif missing:
        reasons.append("without " + "; ".join(missing))
    reasons += [f"{f.name}: {f.support(name).value}" for f in asked if f.support(name) is WAITS]
    return RunnerChoice(name, tuple(reasons))
