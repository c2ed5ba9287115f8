"""An error -> an HTTP reply with one line and a status."""

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
from staticgraph.serving.engine.request_too_large import RequestTooLarge

log: logging.Logger = logging.getLogger("staticgraph.serving")


class Reply(NamedTuple):
    """An HTTP reply: a status, a JSON body, and headers besides content type and length."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


def refused(error: Exception) -> Reply:
    """The reply for an error.

    The status is 400 for an unreadable body, 408 for a slow one, 413 for one that is too large, 415
    for an unknown type, 422 for graphs that the model cannot take, 501 for a missing package, 503
    for a busy or closed server, and 500 (logged) if the model or the server failed.
    """
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
        case RequestTooLarge():
            status = 413
        case ValueError():
            status = 422
        case _:
            log.error("a request failed", exc_info=error)
            status = 500
            text = "the model failed" if isinstance(error, BatchFailed) else "the server failed"
    return Reply(status, json.dumps({"detail": text}).encode(), headers)
