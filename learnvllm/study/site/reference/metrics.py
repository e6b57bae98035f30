"""What /metrics offers, from the registry that serves it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from prometheus_client import Metric

from learnvllm.architecture.config import CacheConfig, EngineConfig
from learnvllm.engine_core.metrics.prometheus import PrometheusStatLogger
from learnvllm.engine_core.protocol import EngineReady
from learnvllm.study.tables import table, text

KINDS = {
    "gauge": ("Gauges", "The state at this moment."),
    "counter": ("Counters", "They only grow; a rate is a difference over time."),
    "histogram": ("Histograms", "Each is a family: `_bucket{le=…}`, `_sum` and `_count`."),
}


def page() -> str:
    """One table a kind of metric."""
    families = collect()
    parts = [
        "# Metrics\n",
        "`GET /metrics` of `learnvllm serve`, in Prometheus' text format, under vLLM's names, so that "
        "dashboards made for vLLM work. Made in `learnvllm/engine_core/metrics/prometheus.py` (upstream "
        "namesake: `vllm/v1/metrics/loggers.py`). The labels `model_name` and `engine` are on all but "
        "`vllm:cache_config_info`.\n",
    ]
    for kind, (title, note) in KINDS.items():
        columns = ["Metric", "Meaning", *(["Upper bounds of its buckets"] if kind == "histogram" else [])]
        rows = [row(family) for family in families if family.type == kind]
        parts.append(f"## {title}\n\n{note}\n\n{table(columns, rows)}\n")
    return "\n".join(parts)


def collect() -> list[Metric]:
    """The families of an engine's registry. It asks for little of a configuration, and no model."""
    config = SimpleNamespace(served_model_name="model", max_model_len=8192, cache_config=CacheConfig())
    ready = EngineReady("", 1, 16, 16, config.max_model_len)
    return list(PrometheusStatLogger(cast(EngineConfig, config), ready).registry.collect())


def row(family: Metric) -> list[str]:
    name = family.name + ("_total" if family.type == "counter" else "")
    bounds = [buckets(family)] if family.type == "histogram" else []
    return [f"`{name}`", text(family.documentation), *bounds]


def buckets(family: Metric) -> str:
    samples: list[Any] = [s for s in family.samples if s.name.endswith("_bucket")]
    bounds = dict.fromkeys(sample.labels["le"] for sample in samples)
    return ", ".join(f"{float(bound):g}" for bound in bounds if bound != "+Inf")
