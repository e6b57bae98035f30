"""The engine's figures under vLLM's metric names, for /metrics.

Every engine has a registry of its own, so two in one process do not add up in each other's counters.
Upstream namesake: vllm/v1/metrics/loggers.py (PrometheusStatLogger); the `vllm:` prefix is kept, so that
dashboards made for vLLM work.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics import MetricWrapperBase

from learnvllm.architecture.config import EngineConfig
from learnvllm.architecture.messages import FinishReason, SchedulerStats
from learnvllm.engine_core.metrics.loggers import StatLogger
from learnvllm.engine_core.metrics.stats import FinishedRequestStats, IterationStats
from learnvllm.engine_core.protocol import EngineReady

M = TypeVar("M", bound=MetricWrapperBase)

TTFT_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80
)  # fmt: skip
TOKEN_TIME_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40
)  # fmt: skip
REQUEST_TIME_BUCKETS = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
STEP_TOKEN_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)


class PrometheusStatLogger(StatLogger):
    """Counters end in `_total` on the wire, as Prometheus wants them."""

    def __init__(self, config: EngineConfig, ready: EngineReady) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": config.served_model_name, "engine": str(ready.engine_index)}
        lengths = one_two_five_buckets(config.max_model_len)

        self._running = self._gauge("num_requests_running", "Requests in the running batch.")
        self._waiting = self._gauge("num_requests_waiting", "Requests waiting to be scheduled.")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "Share of KV cache blocks in use; 1 is all.")
        self._queries = self._counter("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self._preemptions = self._counter("num_preemptions", "Preemptions of running requests.")
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens processed.")
        self._generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self._step_tokens = self._histogram(
            "iteration_tokens_total", "Tokens computed in a step.", STEP_TOKEN_BUCKETS
        )
        self._ttft = self._histogram("time_to_first_token_seconds", "Arrival to first token.", TTFT_BUCKETS)
        self._itl = self._histogram(
            "inter_token_latency_seconds", "Time between two tokens of a request.", TOKEN_TIME_BUCKETS
        )
        self._tpot = self._histogram(
            "request_time_per_output_token_seconds",
            "Mean time per token after the first, by request.",
            TOKEN_TIME_BUCKETS,
        )
        self._e2e = self._times("e2e_request_latency_seconds", "Arrival to last token.")
        self._queue_time = self._times("request_queue_time_seconds", "Queued to first scheduled.")
        self._prefill_time = self._times("request_prefill_time_seconds", "First scheduled to first token.")
        self._decode_time = self._times("request_decode_time_seconds", "First token to last token.")
        self._inference_time = self._times("request_inference_time_seconds", "First scheduled to last token.")
        self._request_prompt = self._histogram("request_prompt_tokens", "Prompt tokens by request.", lengths)
        self._request_generation = self._histogram(
            "request_generation_tokens", "Generated tokens by request.", lengths
        )
        success = Counter(
            "vllm:request_success",
            "Finished requests, by reason.",
            [*self._labels, "finished_reason"],
            registry=self.registry,
        )
        self._success = {
            reason: success.labels(**self._labels, finished_reason=str(reason)) for reason in FinishReason
        }
        self._publish_cache_config(config, ready)

    def record(self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats) -> None:
        if scheduler_stats is not None:
            self._running.set(scheduler_stats.num_running_reqs)
            self._waiting.set(scheduler_stats.num_waiting_reqs)
            self._kv_usage.set(scheduler_stats.kv_cache_usage)
            self._queries.inc(scheduler_stats.prefix_cache_queries)
            self._hits.inc(scheduler_stats.prefix_cache_hits)
            self._preemptions.inc(scheduler_stats.num_preemptions)
            if scheduler_stats.num_scheduled_tokens:
                self._step_tokens.observe(scheduler_stats.num_scheduled_tokens)
        self._prompt_tokens.inc(iteration_stats.num_prompt_tokens)
        self._generation_tokens.inc(iteration_stats.num_generation_tokens)
        _observe(self._ttft, iteration_stats.time_to_first_tokens)
        _observe(self._itl, iteration_stats.inter_token_latencies)
        for request in iteration_stats.finished_requests:
            self._record_finished(request)

    def _record_finished(self, request: FinishedRequestStats) -> None:
        self._success[request.finish_reason].inc()
        self._e2e.observe(request.e2e_latency)
        self._queue_time.observe(request.queued_time)
        self._prefill_time.observe(request.prefill_time)
        self._decode_time.observe(request.decode_time)
        self._inference_time.observe(request.inference_time)
        self._request_prompt.observe(request.num_prompt_tokens)
        self._request_generation.observe(request.num_generation_tokens)
        if request.num_generation_tokens > 1:
            self._tpot.observe(request.mean_time_per_output_token)

    def text(self) -> str:
        return generate_latest(self.registry).decode()

    # ------------------------------------------------------------------------------------------ making them

    def _gauge(self, name: str, help: str) -> Gauge:
        return self._labelled(Gauge(f"vllm:{name}", help, list(self._labels), registry=self.registry))

    def _counter(self, name: str, help: str) -> Counter:
        return self._labelled(Counter(f"vllm:{name}", help, list(self._labels), registry=self.registry))

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        return self._labelled(
            Histogram(f"vllm:{name}", help, list(self._labels), buckets=buckets, registry=self.registry)
        )

    def _times(self, name: str, help: str) -> Histogram:
        return self._histogram(name, help, REQUEST_TIME_BUCKETS)

    def _labelled(self, metric: M) -> M:
        return metric.labels(**self._labels)

    def _publish_cache_config(self, config: EngineConfig, ready: EngineReady) -> None:
        """A gauge that is always 1: its labels are the information."""
        info = {
            "block_size": str(ready.block_size),
            "num_gpu_blocks": str(ready.num_gpu_blocks),
            "enable_prefix_caching": str(config.cache_config.enable_prefix_caching),
            "gpu_memory_utilization": str(config.cache_config.gpu_memory_utilization),
            "engine": str(ready.engine_index),
        }
        Gauge(
            "vllm:cache_config_info", "The KV cache's configuration.", list(info), registry=self.registry
        ).labels(**info).set(1)


def one_two_five_buckets(maximum: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 ... up to `maximum`."""
    values = (digit * 10**power for power in range(len(str(maximum))) for digit in (1, 2, 5))
    return tuple(float(value) for value in values if value <= maximum)


def _observe(histogram: Histogram, values: Iterable[float]) -> None:
    for value in values:
        histogram.observe(value)
