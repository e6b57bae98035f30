"""The engine for a server: every request is a coroutine that receives its own outputs.

One task takes what the engine process sends and spreads it over the requests' collectors.
Upstream namesake: vllm/v1/engine/async_llm.py (AsyncLLM).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.errors import EngineDeadError
from learnvllm.architecture.outputs import RequestOutput
from learnvllm.architecture.sampling_params import SamplingParams
from learnvllm.engine_core.input_processor import InputProcessor, PromptType
from learnvllm.engine_core.metrics.loggers import StatLoggerManager
from learnvllm.engine_core.metrics.stats import IterationStats
from learnvllm.engine_core.mp_client import AsyncMPClient
from learnvllm.engine_core.output_collector import RequestOutputCollector
from learnvllm.engine_core.output_processor import OutputProcessor
from learnvllm.engine_core.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

OUTPUTS_PER_TURN = 128
"""Outputs processed before other coroutines get a turn."""


class AsyncLLM:
    """Lives in one event loop: the one in which it is first used.

    Args:
        tokenizer: None: token ids in, token ids out.
        stat_loggers: None: no statistics are kept.
    """

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: Tokenizer | None,
        engine_core: AsyncMPClient,
        stat_loggers: StatLoggerManager | None = None,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.engine_core = engine_core
        self.input_processor = InputProcessor(config, tokenizer, engine_core.ready.kv_cache_tokens)
        self.output_processor = OutputProcessor(tokenizer, log_stats=stat_loggers is not None)
        self.stat_loggers = stat_loggers
        self._output_handler: asyncio.Task[None] | None = None

    # -------------------------------------------------------------------------------------------- requests

    async def generate(
        self,
        prompt: PromptType,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        arrival_time: float | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs of one request as they come, the last one with `finished` set.

        Leaving the loop early (break, cancellation, aclose) aborts the request and frees its blocks.

        Raises:
            ValidationError: it cannot be served as it is, or the id is in use.
            QueueFullError: too many wait; try again later.
            EngineDeadError: the engine is gone, before or while it ran.
        """
        # Not in the `try`: a refused request has left nothing to abort, and its id may be another's.
        collector = self.add_request(
            request_id,
            prompt,
            sampling_params,
            arrival_time=arrival_time,
            priority=priority,
            cache_salt=cache_salt,
        )
        finished = False
        try:
            while not finished:
                output = collector.get_nowait() or await collector.get()
                finished = output.finished
                yield output
        finally:
            if not finished:
                self.abort(request_id)

    def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams,
        *,
        arrival_time: float | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> RequestOutputCollector:
        """Send a request and return where its outputs will arrive. Raises as `generate` does."""
        self.check_health()
        self._start_output_handler()
        text, request = self.input_processor.process_inputs(
            request_id, prompt, params, arrival_time=arrival_time, priority=priority, cache_salt=cache_salt
        )
        collector = RequestOutputCollector(params.output_kind)
        children = self.output_processor.add_request(request, text, collector)
        try:
            for child in children:
                self.engine_core.add_request(child)
        except BaseException:  # all of it or nothing: what is tracked here must be known there
            self.engine_core.abort_requests(self.output_processor.forget(request_id))
            raise
        return collector

    def abort(self, request_ids: str | list[str]) -> None:
        """Forget requests. Whoever waits for one gets a last output with finish_reason "abort"."""
        ids = [request_ids] if isinstance(request_ids, str) else request_ids
        self.engine_core.abort_requests(self.output_processor.abort_requests(ids))
        if self.stat_loggers is not None:  # count them now: an idle engine sends nothing to count them with
            stats = IterationStats()
            self.output_processor.count_aborted(stats)
            self.stat_loggers.record(None, stats)

    # ------------------------------------------------------------------------------------- the output task

    def _start_output_handler(self) -> None:
        if self._output_handler is None:
            self._output_handler = asyncio.create_task(self._handle_outputs(), name="engine-output-handler")

    async def _handle_outputs(self) -> None:
        try:
            while True:
                await self._handle_one()
        except asyncio.CancelledError:
            self.output_processor.fail_all(EngineDeadError("The engine has been shut down."))
            raise
        except EngineDeadError as error:
            self.output_processor.fail_all(error)
        except Exception as error:  # a fault of ours; nobody may be left waiting
            logger.exception("Processing the engine's outputs failed.")
            failure = EngineDeadError(f"Processing outputs failed: {error}")
            self.output_processor.fail_all(failure)
            await asyncio.to_thread(self.engine_core.shutdown)  # waits for the process
            self.output_processor.fail_all(failure)  # whoever came before the engine was known to be gone

    async def _handle_one(self) -> None:
        outputs = await self.engine_core.get_output_async()
        stats = None if self.stat_loggers is None else IterationStats()
        for begin in range(0, len(outputs.outputs) or 1, OUTPUTS_PER_TURN):
            if begin:
                await asyncio.sleep(0)
            chunk = outputs.outputs[begin : begin + OUTPUTS_PER_TURN]
            processed = self.output_processor.process_outputs(chunk, outputs.timestamp, stats)
            self.engine_core.abort_requests(processed.reqs_to_abort)
        if self.stat_loggers is not None and stats is not None:
            self.stat_loggers.record(outputs.scheduler_stats, stats)

    # ----------------------------------------------------------------------------------------------- state

    @property
    def errored(self) -> bool:
        """The engine is gone; nothing can be served any more."""
        return self.engine_core.dead_error is not None

    @property
    def dead_error(self) -> EngineDeadError:
        return self.engine_core.dead_error or EngineDeadError("The engine is gone.")

    def check_health(self) -> None:
        """Raise EngineDeadError if the engine is gone."""
        self.engine_core.check_health()

    def num_unfinished_requests(self) -> int:
        return self.output_processor.num_unfinished_requests()

    def metrics_text(self) -> str:
        """The metrics in Prometheus' text format; empty when statistics are off."""
        return "" if self.stat_loggers is None else self.stat_loggers.prometheus_text()

    async def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; False while running requests hold blocks."""
        return bool(await self.engine_core.call_utility_async("reset_prefix_cache"))

    async def collective_rpc(
        self, method: str, args: tuple[Any, ...] = (), timeout: float | None = None
    ) -> Any:
        """Call a method of every worker; the results by rank."""
        return await self.engine_core.call_utility_async("collective_rpc", method, list(args), timeout)

    def shutdown(self) -> None:
        """Stop the engine process and wait for it; may be called from any thread.

        Nothing of the event loop is touched here: the output task learns of the end as of any death, and
        gives EngineDeadError to whoever still waits.
        """
        self.engine_core.shutdown()
