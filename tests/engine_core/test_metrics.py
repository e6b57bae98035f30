"""Metrics: vLLM's names, figures that add up, nothing shared between engines, nothing kept when off."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from learnvllm.architecture.messages import FinishReason, SchedulerStats
from learnvllm.engine_core.metrics.loggers import LoggingStatLogger, StatLoggerManager
from learnvllm.engine_core.metrics.prometheus import PrometheusStatLogger, one_two_five_buckets
from learnvllm.engine_core.metrics.stats import IterationStats, RequestStateStats
from learnvllm.engine_core.protocol import EngineReady
from tests.engine_core.parts import make_config

READY = EngineReady("hash", 64, 4, 128)

FAMILIES = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "kv_cache_usage_perc": "gauge",
    "cache_config_info": "gauge",
    "prefix_cache_queries": "counter",
    "prefix_cache_hits": "counter",
    "prompt_tokens": "counter",
    "generation_tokens": "counter",
    "num_preemptions": "counter",
    "request_success": "counter",
    "iteration_tokens_total": "histogram",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "request_time_per_output_token_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "request_prefill_time_seconds": "histogram",
    "request_decode_time_seconds": "histogram",
    "request_inference_time_seconds": "histogram",
    "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram",
}


def step() -> tuple[SchedulerStats, IterationStats]:
    iteration = IterationStats(
        timestamp=110.0,
        num_prompt_tokens=30,
        num_generation_tokens=4,
        time_to_first_tokens=[0.03, 0.3],
        inter_token_latencies=[0.02] * 3,
    )
    stats = RequestStateStats(100.0, 1.0, 2.0, 3.0, 7.0, num_generation_tokens=5)
    iteration.finish_request(FinishReason.LENGTH, 20, stats)
    return SchedulerStats(2, 1, 0.25, 40, 16, 1, 34), iteration


def samples(text: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            reason = sample.labels.get("finished_reason")
            if sample.name.endswith("_bucket"):
                continue
            found[sample.name + (f":{reason}" if reason else "")] = sample.value
    return found


def test_eng_03_every_family_has_vllms_name_and_type() -> None:
    text = PrometheusStatLogger(make_config(), READY).text()
    types = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    for name, kind in FAMILIES.items():
        wire_name = f"vllm:{name}_total" if kind == "counter" else f"vllm:{name}"
        assert types.get(wire_name) == kind, name


def test_figures_arrive_under_their_names() -> None:
    logger = PrometheusStatLogger(make_config(), READY)
    for _ in range(2):
        logger.record(*step())
    found = samples(logger.text())
    expected = {
        "vllm:num_requests_running": 2,
        "vllm:num_requests_waiting": 1,
        "vllm:kv_cache_usage_perc": 0.25,
        "vllm:prefix_cache_queries_total": 80,
        "vllm:prefix_cache_hits_total": 32,
        "vllm:num_preemptions_total": 2,
        "vllm:prompt_tokens_total": 60,
        "vllm:generation_tokens_total": 8,
        "vllm:iteration_tokens_total_sum": 68,
        "vllm:time_to_first_token_seconds_count": 4,
        "vllm:inter_token_latency_seconds_count": 6,
        "vllm:e2e_request_latency_seconds_sum": 20,
        "vllm:request_queue_time_seconds_sum": 2,
        "vllm:request_prefill_time_seconds_sum": 2,
        "vllm:request_decode_time_seconds_sum": 8,
        "vllm:request_inference_time_seconds_sum": 10,
        "vllm:request_time_per_output_token_seconds_sum": 2,
        "vllm:request_prompt_tokens_sum": 40,
        "vllm:request_generation_tokens_sum": 10,
        "vllm:request_success_total:length": 2,
        "vllm:request_success_total:stop": 0,
        "vllm:request_success_total:abort": 0,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)


def test_two_engines_do_not_share_counters() -> None:
    first, second = (PrometheusStatLogger(make_config(), READY) for _ in range(2))
    first.record(*step())
    assert samples(second.text())["vllm:prompt_tokens_total"] == 0


def test_statistics_that_are_off_cost_nothing() -> None:
    assert StatLoggerManager.create(make_config(log_stats=False), READY) is None


def test_the_manager_tells_everybody() -> None:
    lines: list[str] = []
    clock = iter([0.0, 10.0])
    prometheus = PrometheusStatLogger(make_config(), READY)
    manager = StatLoggerManager([LoggingStatLogger(10, lambda: next(clock), lines.append)], prometheus)
    manager.record(*step())
    manager.record(*step())
    assert len(lines) == 1
    assert samples(manager.prometheus_text())["vllm:generation_tokens_total"] == 8


def test_the_log_line_comes_every_interval_and_only_while_something_happens() -> None:
    lines: list[str] = []
    times = iter([100.0, 104.0, 110.0, 500.0, 505.0, 511.0])
    logger = LoggingStatLogger(10, lambda: next(times), lines.append)
    for _ in range(6):
        logger.record(*step())
    assert len(lines) == 2
    assert "Avg prompt throughput: 9.0 tokens/s, Avg generation throughput: 1.2 tokens/s" in lines[0]
    assert "Running: 2 reqs, Waiting: 1 reqs, KV cache usage: 25.0%, Prefix cache hit rate: 40.0%" in lines[0]


def test_a_pause_is_not_part_of_a_throughput() -> None:
    lines: list[str] = []
    times = iter([0.0, 5.0, 3600.0, 3605.0, 3610.0, 9000.0])
    logger = LoggingStatLogger(10, lambda: next(times), lines.append)
    for _ in range(6):
        logger.record(*step())
    assert len(lines) == 2  # 0 to 5 s, told when work goes on; 3600 to 3610 s
    assert "Avg generation throughput: 1.6 tokens/s" in lines[0]  # 2 steps in 5 s
    assert "Avg generation throughput: 1.2 tokens/s" in lines[1]  # 3 steps in 10 s


def test_buckets_of_one_two_five() -> None:
    assert one_two_five_buckets(128) == (1, 2, 5, 10, 20, 50, 100)
