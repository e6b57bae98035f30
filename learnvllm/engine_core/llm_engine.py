"""The engine for a caller who drives it: add requests, call `step` until none is unfinished.

Upstream namesake: vllm/v1/engine/llm_engine.py (LLMEngine).
"""

from __future__ import annotations

from typing import Any

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.outputs import RequestOutput
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.engine_core.core_client import SyncEngineCoreClient
from learnvllm.engine_core.input_processor import InputProcessor, PromptType
from learnvllm.engine_core.metrics.loggers import StatLoggerManager
from learnvllm.engine_core.metrics.stats import IterationStats
from learnvllm.engine_core.output_processor import OutputProcessor
from learnvllm.engine_core.tokenizer import Tokenizer


class LLMEngine:
    """Text in, text out, over any synchronous client of an engine core.

    Args:
        tokenizer: None: token ids in, token ids out.
        stat_loggers: None: no statistics are kept.
    """

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer | None,
        engine_core: SyncEngineCoreClient,
        stat_loggers: StatLoggerManager | None = None,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.engine_core = engine_core
        self.input_processor = InputProcessor(config, tokenizer, engine_core.ready.kv_cache_tokens)
        self.output_processor = OutputProcessor(tokenizer, log_stats=stat_loggers is not None)
        self.stat_loggers = stat_loggers

    def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams,
        *,
        arrival_time: float | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> None:
        """Queue a request.

        Raises:
            ValidationError: it cannot be served as it is, or the id is in use. Nothing is queued then.
            EngineDeadError: the engine is gone.
        """
        text, request = self.input_processor.process_inputs(
            request_id, prompt, params, arrival_time=arrival_time, priority=priority, cache_salt=cache_salt
        )
        children = self.output_processor.add_request(request, text)
        try:
            for child in children:
                self.engine_core.add_request(child)
        except BaseException:  # all of it or nothing: what is tracked here must be known there
            self.engine_core.abort_requests(self.output_processor.forget(request_id))
            raise

    def abort_request(self, request_ids: list[str]) -> None:
        """Forget requests; unknown or finished ids are passed over. Nothing more is returned for them."""
        self.engine_core.abort_requests(self.output_processor.abort_requests(request_ids))

    def step(self) -> list[RequestOutput]:
        """Wait for one step of the engine; returns what is new. A refused request comes with its `error` set.

        Raises:
            EngineDeadError: the engine is gone.
        """
        outputs = self.engine_core.get_output()
        stats = None if self.stat_loggers is None else IterationStats()
        processed = self.output_processor.process_outputs(outputs.outputs, outputs.timestamp, stats)
        self.engine_core.abort_requests(processed.reqs_to_abort)
        if self.stat_loggers is not None and stats is not None:
            self.stat_loggers.record(outputs.scheduler_stats, stats)
        return processed.request_outputs

    def has_unfinished_requests(self) -> bool:
        return self.output_processor.has_unfinished_requests()

    def get_num_unfinished_requests(self) -> int:
        return self.output_processor.num_unfinished_requests()

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; False while running requests hold blocks."""
        return bool(self.engine_core.call_utility("reset_prefix_cache"))

    def collective_rpc(self, method: str, args: tuple[Any, ...] = (), timeout: float | None = None) -> Any:
        """Call a method of every worker; the results by rank."""
        return self.engine_core.call_utility("collective_rpc", method, list(args), timeout)

    def shutdown(self) -> None:
        self.engine_core.shutdown()
