"""The one file where the packages of all days meet: flags in, a running engine out.

Nothing here computes; it names the parts and puts them together. Imports of heavy parts are late, so that the
front end never loads torch. Upstream namesakes: vllm/engine/arg_utils.py (create_engine_config),
vllm/entrypoints/llm.py (LLM).
"""

from __future__ import annotations

import itertools
import reprlib
import weakref
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from learnvllm.architecture import envs
from learnvllm.architecture.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    ModelConfig,
    ObservabilityConfig,
    ParallelConfig,
    SchedulerConfig,
)
from learnvllm.architecture.errors import ConfigError, ValidationError
from learnvllm.architecture.model_arch import ModelArchitecture
from learnvllm.architecture.outputs import RequestOutput
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.architecture.text import to_path
from learnvllm.architecture.tracing import StepTracer
from learnvllm.engine_core.arg_utils import EngineArgs
from learnvllm.engine_core.build import build_engine_core
from learnvllm.engine_core.input_processor import TokensPrompt
from learnvllm.engine_core.metrics.loggers import StatLoggerManager
from learnvllm.engine_core.offline import OfflineInferenceMixin
from learnvllm.engine_core.tokenizer import Tokenizer

__all__ = [
    "LLM",
    "EngineArgs",
    "build_async_llm",
    "build_llm_engine",
    "build_tokenizer",
    "create_engine_config",
]

T = TypeVar("T")

if TYPE_CHECKING:
    from learnvllm.engine_core.async_llm import AsyncLLM
    from learnvllm.engine_core.llm_engine import LLMEngine
    from learnvllm.serving.content import ChatMessage

    Conversation = Sequence[dict[str, Any] | ChatMessage]


def create_engine_config(args: EngineArgs) -> EngineConfig:
    """Find the model, read what it is, and build the configuration tree.

    Raises:
        ModelLoadError: there is no such model, or it is not one we can run.
        ConfigError: flags contradict each other, or the model.
    """
    from learnvllm.model_layers.loading.resolve import resolve_model

    envs.warn_of_unknown_variables()
    _check_types(args)
    resolved = resolve_model(None if args.model is None else str(args.model))
    arch = ModelArchitecture.from_directory(resolved.path)
    return EngineConfig(
        model_config=_part(ModelConfig, args, model=resolved.name, path=resolved.path, arch=arch),
        cache_config=_part(CacheConfig, args),
        scheduler_config=_part(SchedulerConfig, args, policy=args.scheduling_policy),
        parallel_config=_part(ParallelConfig, args),
        device_config=_part(DeviceConfig, args),
        observability_config=ObservabilityConfig(not args.disable_log_stats, _trace_file(args)),
    )


def _check_types(args: EngineArgs) -> None:
    """Of those flags that are no field of the tree, which checks its own."""
    for name, kinds, what in (
        ("model", (str, Path, type(None)), "a name or a path"),
        ("trace_file", (str, Path, type(None)), "a path"),
        ("disable_log_stats", (bool,), "True or False"),
    ):
        value = getattr(args, name)
        if not isinstance(value, kinds):
            raise ConfigError(f"{name}={value!r}: must be {what}.", parameter=name, value=value)


def _trace_file(args: EngineArgs) -> Path | None:
    path = args.trace_file or envs.get("LEARNVLLM_TRACE_FILE")
    try:
        return None if path is None else to_path(str(path))
    except ValueError as error:
        raise ConfigError(f"trace_file={str(path)!r}: {error}.", parameter="trace_file", value=path) from None


def _part(part: type[T], args: EngineArgs, **given: Any) -> T:
    """A part of the tree, its fields taken from the flags of the same names. A flag that is None leaves the
    field to its default."""
    names = {f.name for f in fields(cast(Any, part))} & {f.name for f in fields(args)}
    flags = {name: value for name in names if (value := getattr(args, name)) is not None}
    return part(**{**flags, **given})


def build_tokenizer(config: EngineConfig) -> Tokenizer:
    return Tokenizer.from_directory(config.model_config.path)


def build_llm_engine(
    config: EngineConfig, *, multiprocess: bool | None = None, tracer: StepTracer | None = None
) -> LLMEngine:
    """The engine a caller drives step by step.

    Args:
        multiprocess: the core in a process of its own. None: LEARNVLLM_ENABLE_MULTIPROCESSING.
        tracer: receives a StepEvent per step. It lives in this process, so the core must too.

    Raises:
        ConfigError: a tracer, and the core in another process.
    """
    from learnvllm.engine_core.core_client import InprocClient, SyncEngineCoreClient
    from learnvllm.engine_core.llm_engine import LLMEngine
    from learnvllm.engine_core.mp_client import SyncMPClient

    if multiprocess is None:
        multiprocess = envs.get("LEARNVLLM_ENABLE_MULTIPROCESSING")
    if multiprocess and tracer is not None:
        raise ConfigError(
            "tracer: the engine core runs in another process and cannot call it. Pass multiprocess=False, or "
            "use trace_file.",
            parameter="tracer",
        )
    tokenizer = build_tokenizer(config)
    client: SyncEngineCoreClient = (
        SyncMPClient(build_engine_core, config)
        if multiprocess
        else InprocClient(build_engine_core(config, tracer))
    )
    return LLMEngine(config, tokenizer, client, StatLoggerManager.create(config, client.ready))


def build_async_llm(config: EngineConfig) -> AsyncLLM:
    """The engine for a server: its core in a process of its own."""
    from learnvllm.engine_core.async_llm import AsyncLLM
    from learnvllm.engine_core.mp_client import AsyncMPClient

    tokenizer = build_tokenizer(config)
    client = AsyncMPClient(build_engine_core, config)
    return AsyncLLM(config, tokenizer, client, StatLoggerManager.create(config, client.ready))


class LLM(OfflineInferenceMixin):
    """A model for Python programs: `LLM().generate("Hello")`.

    Args:
        model: as EngineArgs.model.
        multiprocess, tracer: as in `build_llm_engine`.
        engine_args: any other field of EngineArgs. Two defaults are those of a program that wants everything
            done soon and watches nothing: disable_log_stats=True and prefill_tokens_per_decode=0.

    Raises:
        ConfigError, ModelLoadError: this engine cannot be had; says what to change.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        multiprocess: bool | None = None,
        tracer: StepTracer | None = None,
        **engine_args: Any,
    ) -> None:
        defaults = {"disable_log_stats": True, "prefill_tokens_per_decode": 0}
        args = EngineArgs.from_kwargs({"model": model, **defaults, **engine_args})
        config = create_engine_config(args)
        self.llm_engine = build_llm_engine(config, multiprocess=multiprocess, tracer=tracer)
        self._request_counter = itertools.count()
        self._finalizer = weakref.finalize(self, self.llm_engine.shutdown)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
    ) -> list[RequestOutput]:
        """Answer conversations, lists of {"role": ..., "content": ...}, through the model's chat template.

        Args:
            messages: one conversation or a sequence of them.
            chat_template: Jinja source to use instead of the model's own.
            add_generation_prompt: end the prompt where the assistant's answer begins.

        Returns, Raises: as `generate`.
        """
        from learnvllm.serving.content import parse_messages
        from learnvllm.serving.renderer import ChatParams, Renderer

        if not isinstance(messages, list | tuple):
            raise ValidationError(
                'messages must be a list of {"role": ..., "content": ...}, or a list of such lists, not '
                f"{reprlib.repr(messages)} ({type(messages).__name__}).",
                parameter="messages",
            )
        one = not messages or not isinstance(messages[0], list | tuple)
        conversations = cast("Sequence[Conversation]", [messages] if one else messages)
        renderer = Renderer(self.get_tokenizer(), self.config.max_model_len, chat_template)
        params = ChatParams(add_generation_prompt=add_generation_prompt)
        parsed = [parse_messages(list(c) if isinstance(c, tuple) else c) for c in conversations]
        rendered = [renderer.render_chat(conversation, params) for conversation in parsed]
        prompts = [TokensPrompt(prompt_token_ids=prompt.token_ids) for prompt in rendered]
        return self.generate(prompts, sampling_params, use_tqdm=use_tqdm)

    @property
    def config(self) -> EngineConfig:
        return self.llm_engine.config

    def memory_report(self) -> dict[str, int]:
        """Bytes the engine holds: `weight_bytes` and `kv_cache_bytes` (the pool, touched or not)."""
        report: dict[str, int] = self.llm_engine.collective_rpc("memory_report")[0]
        return report

    def get_tokenizer(self) -> Tokenizer:
        assert self.llm_engine.tokenizer is not None
        return self.llm_engine.tokenizer

    def shutdown(self) -> None:
        """Stop the engine. Also happens when the object is dropped, at the end of a `with` and at exit."""
        self._finalizer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
