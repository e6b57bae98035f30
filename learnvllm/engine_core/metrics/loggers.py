"""Who receives the figures of each step: a periodic log line, and Prometheus.

Upstream namesake: vllm/v1/metrics/loggers.py (StatLoggerManager, LoggingStatLogger).
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.messages import SchedulerStats
from learnvllm.engine_core.metrics.stats import IterationStats
from learnvllm.engine_core.protocol import EngineReady

if TYPE_CHECKING:
    from learnvllm.engine_core.metrics.prometheus import PrometheusStatLogger

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 10.0


class StatLogger(ABC):
    """Receives every step's figures."""

    @abstractmethod
    def record(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats) -> None: ...


class LoggingStatLogger(StatLogger):
    """One line every `interval` seconds in which something happened. A longer pause ends the interval early.

    Args:
        clock: seconds, monotonic.
        emit: takes the line.
    """

    def __init__(
        self,
        interval: float = LOG_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
        emit: Callable[[str], None] = logger.info,
    ) -> None:
        self._interval, self._clock, self._emit = interval, clock, emit
        self._stats = SchedulerStats()
        self._reset()

    def _reset(self) -> None:
        self._since: float | None = None
        self._last = 0.0
        self._prompt_tokens = self._generation_tokens = 0
        self._queries = self._hits = self._preemptions = 0

    def record(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats) -> None:
        now = self._clock()
        if self._since is not None and now - self._last > self._interval:
            self._close(self._last)  # idle since then: nothing of that time belongs into a throughput
        if self._since is None:  # the interval begins with the first step after a pause
            self._since = now
        self._last = now
        self._prompt_tokens += iteration_stats.num_prompt_tokens
        self._generation_tokens += iteration_stats.num_generation_tokens
        if scheduler_stats is not None:
            self._stats = scheduler_stats
            self._queries += scheduler_stats.prefix_cache_queries
            self._hits += scheduler_stats.prefix_cache_hits
            self._preemptions += scheduler_stats.num_preemptions
        if now - self._since >= self._interval:
            self._close(now)

    def _close(self, end: float) -> None:
        assert self._since is not None
        if end > self._since:  # a single step has no duration to divide by
            self._emit(self._line(end - self._since))
        self._reset()

    def _line(self, seconds: float) -> str:
        hit_rate = 100 * self._hits / self._queries if self._queries else 0.0
        return (
            f"Avg prompt throughput: {self._prompt_tokens / seconds:.1f} tokens/s, "
            f"Avg generation throughput: {self._generation_tokens / seconds:.1f} tokens/s, "
            f"Running: {self._stats.num_running_reqs} reqs, Waiting: {self._stats.num_waiting_reqs} reqs, "
            f"KV cache usage: {100 * self._stats.kv_cache_usage:.1f}%, "
            f"Prefix cache hit rate: {hit_rate:.1f}%, Preemptions: {self._preemptions}"
        )


class StatLoggerManager:
    """Fans each step's figures out to all loggers."""

    def __init__(self, loggers: list[StatLogger], prometheus: PrometheusStatLogger | None = None) -> None:
        self._loggers = loggers if prometheus is None else [*loggers, prometheus]
        self._prometheus = prometheus

    @classmethod
    def create(cls, config: EngineConfig, ready: EngineReady) -> StatLoggerManager | None:
        """The usual two, or None where the configuration wants no statistics."""
        if not config.observability_config.log_stats:
            return None
        from learnvllm.engine_core.metrics.prometheus import PrometheusStatLogger

        return cls([LoggingStatLogger()], PrometheusStatLogger(config, ready))

    def record(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats) -> None:
        for stat_logger in self._loggers:
            stat_logger.record(scheduler_stats, iteration_stats)

    def prometheus_text(self) -> str:
        return "" if self._prometheus is None else self._prometheus.text()
