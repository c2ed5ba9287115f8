"""What a server answers: outputs with their probabilities, an error as one line with a status, and
its statistics as Prometheus reads them."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import Response
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from staticgraph import errors
from staticgraph.serving.checked_graphs import BadBody, first_line

if TYPE_CHECKING:
    from staticgraph.serving.server import Server
    from staticgraph.serving.statistics import ServerStats

# The number of consecutive failed batches after which the device is considered broken.
BROKEN_AFTER = 3
JSON = "application/json"
STATUS: dict[type[Exception], int] = {
    errors.GraphTooLarge: 413,
    errors.BadGraph: 422,
    errors.BatchFailed: 500,
    errors.MissingPackage: 501,
    errors.ServerBusy: 503,
    errors.ServerClosed: 503,
}

log: logging.Logger = logging.getLogger("staticgraph.serving")


def reply_of(future: Future[Any], task: str | None, classes: Sequence[str]) -> Response:
    """The reply for a future of a server that is done."""
    try:
        return reply(future.result(), task, classes)
    except Exception as error:
        return refusal(error)


def reply(outputs: Any, task: str | None, classes: Sequence[str] = ()) -> Response:
    """Outputs as JSON, with null for values that are not finite, with probabilities, and with the
    most likely class of each row, null for one with a NaN, if classes have names."""
    values: dict[str, Any] = {"outputs": outputs}
    if task in ("binary", "classes"):
        if (probabilities := _probabilities(outputs, task)) is not None:
            values["probabilities"] = probabilities
        if classes and getattr(outputs, "shape", ())[1:] == (len(classes),):
            places = zip(outputs.argmax(1).tolist(), outputs.isnan().any(1).tolist(), strict=True)
            values["classes"] = [None if has_nan else classes[k] for k, has_nan in places]
    lists = methodcaller("tolist")  # of a tensor or an array
    return Response(msgspec.json.encode(values, enc_hook=lists), media_type=JSON)


def _probabilities(outputs: Any, task: str) -> Any:
    """The probabilities of rows of logits, one row per graph or, in a list, per node or edge of
    each graph; for ``binary`` also of a number in place of a row. None for any other structure."""
    import torch  # the processes that read bodies do without

    if isinstance(outputs, list | tuple):
        parts = [_probabilities(each, task) for each in outputs]
        return None if any(part is None for part in parts) else parts
    tensor = isinstance(outputs, torch.Tensor) and outputs.dtype != torch.bool
    if not tensor or outputs.dim() < (1 if task == "binary" else 2):
        return None
    return outputs.double().sigmoid() if task == "binary" else outputs.double().softmax(-1)


def refusal(error: Exception) -> Response:
    """The reply for an error, with the status of its class; that of any other error is 500, and it
    is logged. The connection of a body that was not read to its end is closed."""
    headers: dict[str, str] = {}
    text = first_line(error) or type(error).__name__
    status = STATUS.get(type(error), 500)
    if isinstance(error, BadBody):
        status = error.status
        headers = {"Connection": "close"} if status in (408, 413) else {}
    elif isinstance(error, errors.ServerBusy):
        headers = {"Retry-After": str(max(1, math.ceil(error.retry_after_s)))}
    elif isinstance(error, errors.BatchFailed):  # logged once, for all requests of the batch
        text = "the model failed"
    elif status == 500:
        log.error("a request failed", exc_info=error)
        text = "the server failed"
    return Response(msgspec.json.encode({"detail": text}), status, headers, JSON)


def status_reply(server: Server, path: str) -> Response:
    """The reply for ``/health``, 503 after several consecutive failed batches, or ``/metrics``."""
    stats = server.stats()
    if path == "metrics":
        return Response(generate_latest(_Metrics(stats)), media_type=CONTENT_TYPE_PLAIN_0_0_4)
    broken = stats.failing >= BROKEN_AFTER
    body = msgspec.json.encode({"status": "failing" if broken else "ok"})
    return Response(body, 503 if broken else 200, media_type=JSON)


class _Metrics(Collector):
    """A server's statistics as Prometheus has them."""

    def __init__(self, stats: ServerStats) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """Yields every metric."""
        stats = self._stats
        ends = {end: getattr(stats, end) for end in ("answered", "failed", "refused", "cancelled")}
        yield _family(Counter, "requests", "Requests, by how they ended.", "end", ends)
        yield Counter("staticgraph_graphs", "Graphs that were answered.", stats.graphs)
        ran = dict(enumerate(stats.by_bucket))
        yield _family(Counter, "batches", "Batches that ran, by bucket.", "bucket", ran)
        yield Gauge("staticgraph_queue_graphs", "Graphs that wait.", stats.queue)
        full = dict(zip(("nodes", "edges", "graphs"), stats.filling, strict=True))
        yield _family(Gauge, "filling_ratio", "Real over physical rows.", "rows", full)
        for name, end, times in (
            ("wait_seconds", "until a batch began", stats.wait_s),
            ("latency_seconds", "to answer", stats.latency_s),
        ):
            about = f"Seconds from arrival {end}, of the last requests."
            seconds = dict(zip(("0.5", "0.9", "0.99"), times, strict=True))
            yield _family(Gauge, name, about, "quantile", seconds)


def _family(kind: Any, name: str, about: str, label: str, values: Mapping[Any, float]) -> Any:
    """A metric with one value for each value of a label."""
    family = kind(f"staticgraph_{name}", about, labels=[label])
    for each, value in values.items():
        family.add_metric([str(each)], value)
    return family
