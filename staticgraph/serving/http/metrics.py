"""A server's statistics in the text format of Prometheus (0.0.4)."""

from __future__ import annotations

import math
from collections.abc import Mapping

from staticgraph.serving.engine.statistics import Percentiles, ServerStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "staticgraph_"


def prometheus(stats: ServerStats) -> str:
    """Formats the statistics as counters and gauges, each with its help and type."""
    lines: list[str] = []

    def add(name: str, kind: str, about: str, samples: Mapping[str, float]) -> None:
        """Adds one metric: its help, its type, and one line per sample."""
        lines.append(f"# HELP {PREFIX}{name} {about}")
        lines.append(f"# TYPE {PREFIX}{name} {kind}")
        lines.extend(f"{PREFIX}{name}{k} {_number(v)}" for k, v in samples.items())

    ends = ("answered", "failed", "refused", "cancelled")
    requests = {f'{{end="{end}"}}': getattr(stats, end) for end in ends}
    add("requests_total", "counter", "Requests, by how they ended.", requests)
    add("graphs_total", "counter", "Graphs that were answered.", {"": stats.graphs})
    buckets = {f'{{bucket="{b}"}}': n for b, n in enumerate(stats.by_bucket)}
    add("batches_total", "counter", "Batches that ran, by bucket.", buckets)
    add("queue_graphs", "gauge", "Graphs that wait.", {"": stats.queue})
    filling = dict(zip(("nodes", "edges", "graphs"), stats.filling, strict=True))
    shares = {f'{{rows="{what}"}}': share for what, share in filling.items()}
    add("filling_ratio", "gauge", "Real rows over physical rows.", shares)
    about = "Seconds from arrival until a batch began, of the last requests."
    add("wait_seconds", "gauge", about, _quantiles(stats.wait_s))
    about = "Seconds from arrival to answer, of the last requests."
    add("latency_seconds", "gauge", about, _quantiles(stats.latency_s))
    return "\n".join(lines) + "\n"


def _quantiles(of: Percentiles) -> dict[str, float]:
    return {
        '{quantile="0.5"}': of.p50,
        '{quantile="0.9"}': of.p90,
        '{quantile="0.99"}': of.p99,
    }


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else repr(value)
