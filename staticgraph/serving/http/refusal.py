"""An error -> one line and a status."""

from __future__ import annotations

import json
import logging
import math
from typing import NamedTuple

from staticgraph.errors import (
    BadGraph,
    BatchFailed,
    GraphTooLarge,
    MissingPackage,
    ServerBusy,
    ServerClosed,
)
from staticgraph.serving.bodies.bad_body import BadBody
from staticgraph.serving.engine.error_words import first_line

log: logging.Logger = logging.getLogger("staticgraph.serving")


class Reply(NamedTuple):
    """What goes back over HTTP: JSON, and headers beside its own."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


def refused(error: Exception) -> Reply:
    """400 what cannot be read, 413 what is too large, 415 a type that is not known, 422 what no
    model takes, 503 when to ask again, 500 what the model or the server failed at; the trace of
    that stands in the log."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    text = first_line(error) or type(error).__name__
    match error:
        case BadBody():
            status = error.status
        case GraphTooLarge():
            status = 413
        case BadGraph():
            status = 422
        case ServerBusy():
            seconds = max(1, math.ceil(error.retry_after_s))
            status, headers = 503, ((b"retry-after", str(seconds).encode()),)
        case ServerClosed():
            status = 503
        case MissingPackage():
            status = 501
        case ValueError():  # more graphs than the queue holds
            status = 413 if "in one request" in text else 422
        case _:
            log.error("a request failed", exc_info=error)
            status = 500
            text = "the model failed" if isinstance(error, BatchFailed) else "the server failed"
    return Reply(status, json.dumps({"detail": text}).encode(), headers)
