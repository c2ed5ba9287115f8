"""The protocol between a process that reads bodies and the process that has the device.

A frame is its length (uint32), its kind (uint32) and that many bytes. Requests are sent as the
compact bytes of all their graphs together, which the receiver reads without a Python object per
graph; answers, settings and numbers are sent as JSON; nothing is pickled. The process that reads a
body checks its contents, and they are not checked again: both processes belong to one program.

A pair of sockets is used, not shared memory: a batch of 64 molecules is 0.2 MB, copied in far less
than a hundredth of the time that the batch takes; and a socket reports when the other process is
gone, and leaves nothing to clean up.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from staticgraph import errors
from staticgraph.schema import Schema
from staticgraph.serving.bodies import compact_format
from staticgraph.serving.bodies.flat_graphs import FlatGraphs
from staticgraph.serving.engine.error_words import words_of

HEADER = struct.Struct("<II")
ASK, ANSWERS, HEALTH, SETTINGS, READY = range(5)
_ASKED = struct.Struct("<QQ")
# The errors that are passed on to a caller with their own type.
KNOWN = ("BadGraph", "GraphTooLarge", "ServerBusy", "ServerClosed", "BatchFailed", "ValueError")


class RequestFrame(NamedTuple):
    """Requests numbered from ``first``, with ``counts`` graphs each, in one set of arrays."""

    first: int
    counts: list[int]
    graphs: FlatGraphs


def frame(kind: int, payload: bytes = b"") -> bytes:
    """The bytes of a frame."""
    return HEADER.pack(len(payload), kind) + payload


def json_frame(kind: int, values: Any) -> bytes:
    """A frame of plain values as JSON; NaN and infinities as Python writes them."""
    return frame(kind, json.dumps(values, separators=(",", ":")).encode())


def ask_frame(asked: RequestFrame, schema: Schema) -> bytes:
    """A frame of requests; the graphs start at a multiple of 8 bytes, since counts are int64."""
    counts = np.array(asked.counts, "<i8").tobytes()
    head = _ASKED.pack(asked.first, len(asked.counts))
    return frame(ASK, head + counts + compact_format.encode_graphs(asked.graphs, schema))


def asked_of(payload: bytearray, schema: Schema) -> RequestFrame:
    """Decodes the payload of :func:`ask_frame`; the arrays are views of the same memory."""
    first, requests = _ASKED.unpack_from(payload)
    at = _ASKED.size + 8 * requests
    counts = np.frombuffer(payload, "<i8", requests, _ASKED.size).tolist()
    return RequestFrame(
        first, counts, compact_format.decode_graphs(memoryview(payload)[at:], schema)
    )


def error_values(error: BaseException) -> list[Any]:
    """An error as plain values: its type, its message, and the seconds until a retry."""
    name = next((k.__name__ for k in type(error).__mro__ if k.__name__ in KNOWN), "RuntimeError")
    return [name, words_of(error), getattr(error, "retry_after_s", 0.0)]


def error_of(values: Sequence[Any]) -> Exception:
    """The error that :func:`error_values` describes."""
    name, words, retry_after_s = values
    if name == "ServerBusy":
        return errors.ServerBusy(words, retry_after_s)
    kind = ValueError if name == "ValueError" else getattr(errors, name, RuntimeError)
    return kind(words)
