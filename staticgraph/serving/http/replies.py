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
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from staticgraph.errors import (
    BadGraph,
    BatchFailed,
    GraphTooLarge,
    MissingPackage,
    ServerBusy,
    ServerClosed,
)
from staticgraph.serving.bodies.checked_graphs import BadBody, first_line

if TYPE_CHECKING:
    from torch import Tensor

    from staticgraph.serving.engine.server import Server

# The number of consecutive failed batches after which the device is considered broken.
BROKEN_AFTER = 3

log: logging.Logger = logging.getLogger("staticgraph.serving")


JSON = "application/json"


def reply_of(future: Future[Any], task: str | None, classes: Sequence[str] = ()) -> Response:
    """The reply for a future of a server that is done."""
    try:
        return reply(future.result(), task, classes)
    except Exception as error:
        return refusal(error)


def reply(outputs: Any, task: str | None, classes: Sequence[str] = ()) -> Response:
    """Outputs as JSON, with null for values that are not finite, with probabilities, and with the
    most likely class of each row if classes have names."""
    values: dict[str, Any] = {"outputs": outputs}
    if task in ("binary", "classes"):
        probabilities = _probabilities(outputs, task)
        if probabilities is not None:
            values["probabilities"] = probabilities
        if classes and getattr(outputs, "shape", ())[1:] == (len(classes),):
            values["classes"] = _likeliest(outputs, classes)
    lists = methodcaller("tolist")  # of a tensor or an array
    return Response(msgspec.json.encode(values, enc_hook=lists), media_type=JSON)


def _probabilities(outputs: Any, task: str) -> Any:
    """The probabilities of rows of logits, one row per graph or, in a list, per node or edge of
    each graph; for ``binary`` also of a number in place of a row. None for any other structure."""
    import torch  # the processes that read bodies do without

    if isinstance(outputs, list | tuple):
        parts = [_probabilities(each, task) for each in outputs]
        return None if any(part is None for part in parts) else parts
    if not isinstance(outputs, torch.Tensor) or outputs.dtype == torch.bool:
        return None
    if outputs.dim() < (1 if task == "binary" else 2):
        return None
    return outputs.double().sigmoid() if task == "binary" else outputs.double().softmax(-1)


def _likeliest(outputs: Tensor, classes: Sequence[str]) -> list[str | None]:
    """The class name of each row's largest number; None for a row with a NaN."""
    unknown = outputs.isnan().any(dim=1).tolist()
    places: list[int] = outputs.argmax(dim=1).tolist()
    return [None if none else classes[n] for none, n in zip(unknown, places, strict=True)]


def refusal(error: Exception) -> Response:
    """The reply for an error.

    The status is 400 for an unreadable body, 408 for a slow one, 413 for one that is too large, 415
    for an unknown type, 422 for graphs that the model cannot take, 501 for a missing package, 503
    for a busy or closed server, and 500 (logged) if the model or the server failed. The connection
    of a body that was not read to its end is closed.
    """
    headers: dict[str, str] = {}
    text = first_line(error) or type(error).__name__
    match error:
        case BadBody():
            status = error.status
            if status in (408, 413):
                headers["Connection"] = "close"
        case GraphTooLarge():
            status = 413
        case BadGraph():
            status = 422
        case ServerBusy():
            status = 503
            headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
        case ServerClosed():
            status = 503
        case MissingPackage():
            status = 501
        case BatchFailed():  # the server logged it, once for all requests of the batch
            status, text = 500, "the model failed"
        case _:
            log.error("a request failed", exc_info=error)
            status, text = 500, "the server failed"
    return Response(msgspec.json.encode({"detail": text}), status, headers, JSON)


def status_reply(server: Server, path: str) -> Response:
    """The reply for ``/health``, 503 after several consecutive failed batches, or ``/metrics``."""
    if path == "metrics":
        registry = CollectorRegistry()
        registry.register(ServerCollector(server))
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_PLAIN_0_0_4)
    broken = server.stats().failing >= BROKEN_AFTER
    body = msgspec.json.encode({"status": "failing" if broken else "ok"})
    return Response(body, 503 if broken else 200, media_type=JSON)


class ServerCollector(Collector):
    """The statistics of a server as metrics.

    Args:
        server: the server.
    """

    def __init__(self, server: Server) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """Yields every metric with its present values."""
        stats = self._server.stats()
        ends = {end: getattr(stats, end) for end in ("answered", "failed", "refused", "cancelled")}
        yield _family(CounterMetricFamily, "requests", "Requests, by how they ended.", "end", ends)
        yield CounterMetricFamily("staticgraph_graphs", "Graphs that were answered.", stats.graphs)
        ran = dict(enumerate(stats.by_bucket))
        yield _family(CounterMetricFamily, "batches", "Batches that ran, by bucket.", "bucket", ran)
        yield GaugeMetricFamily("staticgraph_queue_graphs", "Graphs that wait.", stats.queue)
        full = dict(zip(("nodes", "edges", "graphs"), stats.filling, strict=True))
        yield _family(GaugeMetricFamily, "filling_ratio", "Real over physical rows.", "rows", full)
        for name, end, times in (
            ("wait_seconds", "until a batch began", stats.wait_s),
            ("latency_seconds", "to answer", stats.latency_s),
        ):
            about = f"Seconds from arrival {end}, of the last requests."
            seconds = {"0.5": times.p50, "0.9": times.p90, "0.99": times.p99}
            yield _family(GaugeMetricFamily, name, about, "quantile", seconds)


def _family(kind: Any, name: str, about: str, label: str, values: Mapping[Any, float]) -> Any:
    """A metric with one value for each value of a label."""
    family = kind(f"staticgraph_{name}", about, labels=[label])
    for each, value in values.items():
        family.add_metric([str(each)], value)
    return family
