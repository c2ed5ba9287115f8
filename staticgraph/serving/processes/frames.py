"""What the process that reads bodies and the one that has the device say to each other.

A frame is its length (uint32), its kind (uint32) and that many bytes. Requests go as the compact
bytes of all their graphs together, which the other side reads without a Python object per graph;
answers, settings and numbers go as JSON; nothing is pickled. What a body holds was checked by the
process that read it, and is not checked again: the two are one program.

A pair of sockets, not memory shared: 64 molecules are 0.2 MB a batch, copied in far less than a
hundredth of the time that the batch takes; and a socket tells, by its end, that the other side is
gone, and leaves nothing behind.
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
# What a caller may be told by its own type.
KNOWN = ("BadGraph", "GraphTooLarge", "ServerBusy", "ServerClosed", "BatchFailed", "ValueError")


class RequestFrame(NamedTuple):
    """Requests numbered from ``first``, with so many graphs each, in one set of arrays."""

    first: int
    counts: list[int]
    graphs: FlatGraphs


def frame(kind: int, payload: bytes = b"") -> bytes:
    """The bytes of one."""
    return HEADER.pack(len(payload), kind) + payload


def json_frame(kind: int, values: Any) -> bytes:
    """One of plain values; NaN and infinities as Python writes them."""
    return frame(kind, json.dumps(values, separators=(",", ":")).encode())


def ask_frame(asked: RequestFrame, schema: Schema) -> bytes:
    """One of requests; the number of graphs of each is a multiple of 8 bytes."""
    counts = np.array(asked.counts, "<i8").tobytes()
    head = _ASKED.pack(asked.first, len(asked.counts))
    return frame(ASK, head + counts + compact_format.encode_graphs(asked.graphs, schema))


def asked_of(payload: bytearray, schema: Schema) -> RequestFrame:
    """What :func:`ask_frame` holds, over the same memory."""
    first, requests = _ASKED.unpack_from(payload)
    at = _ASKED.size + 8 * requests
    counts = np.frombuffer(payload, "<i8", requests, _ASKED.size).tolist()
    return RequestFrame(
        first, counts, compact_format.decode_graphs(memoryview(payload)[at:], schema)
    )


def error_values(error: BaseException) -> list[Any]:
    """An error as plain values: its type, its words, when to ask again."""
    name = next((k.__name__ for k in type(error).__mro__ if k.__name__ in KNOWN), "RuntimeError")
    return [name, words_of(error), getattr(error, "retry_after_s", 0.0)]


def error_of(values: Sequence[Any]) -> Exception:
    """What :func:`error_values` was made of."""
    name, words, retry_after_s = values
    if name == "ServerBusy":
        return errors.ServerBusy(words, retry_after_s)
    kind = ValueError if name == "ValueError" else getattr(errors, name, RuntimeError)
    return kind(words)
