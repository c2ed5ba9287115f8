"""``POST /predict``: a body in, one line of JSON out.

This is the only route that gets thousands of requests per second, so it bypasses the framework that
serves the others.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any

import numpy as np

from staticgraph.files.json_text import finite
from staticgraph.serving.bodies import compact_format
from staticgraph.serving.bodies.bad_body import BadBody
from staticgraph.serving.bodies.flat_graphs import FlatGraphs
from staticgraph.serving.bodies.reader import Reader
from staticgraph.serving.http.backend import Backend
from staticgraph.serving.http.refusal import Reply, refused
from staticgraph.text.how_many import how_many

PATH = "/predict"
JSON, NPZ = "application/json", ("application/octet-stream", "application/x-npz")
# Larger bodies are read in another thread, so that they do not delay other requests.
INLINE_BYTES = 1 << 16
# Reading a SMILES takes a hundred times as long as reading as many bytes of numbers.
INLINE_SMILES = 1 << 9
# The most seconds to wait for a body.
BODY_S = 60.0
# ``json.dumps`` with options creates one encoder per call.
_ENCODED = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class PredictRoute:
    """An ASGI application with one route.

    Args:
        backend: answers the requests.
        reader: reads the bodies.
        task: for ``binary`` and ``classes``, probabilities are added to the outputs.
    """

    def __init__(self, backend: Backend, reader: Reader, task: str | None) -> None:
        self._backend, self._reader, self._task = backend, reader, task
        schema = reader.schema
        self._classes = schema["y"].classes if "y" in schema and task == "classes" else ()
        self._readers = {JSON: reader.json, compact_format.CONTENT_TYPE: reader.compact}
        self._readers |= dict.fromkeys(NPZ, reader.npz)

    @property
    def most_bytes(self) -> int:
        """The most bytes of a body."""
        return self._reader.most_bytes

    @staticmethod
    def takes(scope: Message) -> bool:
        """Whether a request is for this route."""
        return scope["type"] == "http" and scope["path"] == PATH and scope["method"] == "POST"

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Handles one request."""
        try:
            graphs = await self._graphs(scope["headers"], receive)
            reply = _reply(await self._backend.ask(graphs), self._task, self._classes)
        except Exception as error:
            reply = refused(error)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(reply.body)).encode()),
            *reply.headers,
        ]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body})

    def _read_of(self, kind: str) -> Callable[[bytes], FlatGraphs]:
        if (read := self._readers.get(kind)) is None:
            raise BadBody(f"the body is {kind}; send {', '.join(self._readers)}", 415)
        return read

    async def _graphs(self, headers: Iterable[tuple[bytes, bytes]], receive: Receive) -> FlatGraphs:
        said = next((value for name, value in headers if name == b"content-type"), JSON.encode())
        packed = next((value for name, value in headers if name == b"content-encoding"), b"")
        if packed.strip().lower() not in (b"", b"identity"):
            how = packed[:100].decode("latin-1")
            raise BadBody(f"the body is packed (Content-Encoding: {how}): send it as it is", 415)
        read = self._read_of(said.decode("latin-1").partition(";")[0].strip().lower())
        body = await _body(receive, self._reader.most_bytes)
        return read(body) if _reads_at_once(body) else await asyncio.to_thread(read, body)


def _reads_at_once(body: bytes) -> bool:
    """Whether a body is small enough to be read in the event loop, not in another thread."""
    most = INLINE_SMILES if b'"smiles"' in body[:100] else INLINE_BYTES
    return len(body) <= most


async def _body(receive: Receive, most: int) -> bytes:
    """Reads the body, only up to the limit, regardless of its declared length.

    Pieces are joined once, at the end: otherwise a client that sends single bytes would cause a
    copy of the whole body per byte."""
    first = await receive()
    if not first.get("more_body"):
        return await _pieces(first, receive, most)
    try:
        async with asyncio.timeout(BODY_S):
            return await _pieces(first, receive, most)
    except TimeoutError:
        raise BadBody(f"the body did not come within {BODY_S:.0f} s", 408) from None


async def _pieces(message: Message, receive: Receive, most: int) -> bytes:
    pieces, length = list[bytes](), 0
    while True:
        if message["type"] == "http.disconnect":
            raise BadBody("the connection ended before the body did", 400)
        piece = message.get("body", b"")
        length += len(piece)
        if length > most:
            raise _too_long(most)
        if not message.get("more_body"):
            return b"".join([*pieces, piece]) if pieces else piece
        if piece:
            pieces.append(piece)
        message = await receive()


def _too_long(most: int) -> BadBody:
    return BadBody(f"the body has more than {how_many(most, 'byte')}", 413)


def _reply(outputs: Any, task: str | None, classes: Sequence[str] = ()) -> Reply:
    """The outputs as JSON, with null for values that are not finite, with probabilities, and with
    the most likely class of each row if classes have names."""
    found: dict[str, Any] = {"outputs": outputs}
    if task in ("binary", "classes"):
        probabilities = _probabilities(outputs, task)
        if probabilities is not None:
            found["probabilities"] = probabilities
        if classes and _is_table(outputs) and {*map(len, outputs)} == {len(classes)}:
            found["classes"] = _likeliest(outputs, classes)
    try:
        return Reply(200, _ENCODED(found).encode())
    except ValueError:
        return Reply(200, _ENCODED(finite(found)).encode())


def _is_table(outputs: Any) -> bool:
    """Whether a value is a list of rows of numbers."""
    return isinstance(outputs, list) and all(
        isinstance(row, list) and _is_row(row) for row in outputs
    )


def _is_row(outputs: Any) -> bool:
    """Whether a value is a list of numbers, with None for a number that is not finite."""
    return isinstance(outputs, list) and all(
        value is None or type(value) in (int, float) for value in outputs
    )


def _probabilities(outputs: Any, task: str) -> Any:
    """The probabilities of rows of logits, one row per graph or, nested, per node or edge of each
    graph; for ``binary`` also of a number in place of a row. None for any other structure."""
    if _is_row(outputs) and outputs:
        if task != "binary":
            return None
        return _row_probabilities(np.asarray(outputs, np.float64), task)
    if _is_table(outputs) and len({*map(len, outputs)}) <= 1:
        return _row_probabilities(np.asarray(outputs, np.float64), task) if outputs else []
    if not isinstance(outputs, list):
        return None
    found = [_probabilities(each, task) for each in outputs]
    return None if None in found else found


def _row_probabilities(outputs: Any, task: str) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        if task == "binary":
            return (1 / (1 + np.exp(-outputs))).tolist()
        raised = np.exp(outputs - outputs.max(axis=-1, keepdims=True, initial=-np.inf))
        return (raised / raised.sum(axis=-1, keepdims=True)).tolist()


def _likeliest(outputs: Any, classes: Sequence[str]) -> list[str | None]:
    """The class name of each row's largest number; None for a row with a NaN."""
    values = np.asarray(outputs, np.float64)
    unknown = np.isnan(values.max(axis=1)).tolist()  # the maximum is NaN if any value is
    places: list[int] = values.argmax(axis=1).tolist()
    return [None if none else classes[n] for none, n in zip(unknown, places, strict=True)]
