"""A fast path for ``POST /predict`` within uvicorn's protocol.

The problem: for a request with one molecule, uvicorn's scope, cycle, event and task, and their
messages to and from the application, took more processor time than all other work before the model.
The idea: a request that arrives in one piece, with a plain head, on an idle connection, is parsed
and submitted here, and answered with one write. Everything else (several pieces, chunks,
``Expect``, another path, and above all malformed requests) is handled by uvicorn.

The invariant: uvicorn's parser would read a request on the fast path in the same way, and the
answers of a connection are sent in the order of its requests.
"""

from __future__ import annotations

import asyncio
import re
from functools import lru_cache
from typing import Any, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from staticgraph.serving.http.predict_route import (
    INLINE_BYTES,
    JSON,
    PATH,
    PredictRoute,
    reads_at_once,
)
from staticgraph.serving.http.refusal import Reply, refused

_LINE = b"POST " + PATH.encode() + b" HTTP/1.1\r\n"
_END = b"\r\n\r\n"
# Programs send the same few heads again and again; a longer head does not take the fast path.
LONGEST_HEAD = 2048
KEPT_HEADS = 1024
# The most bytes and seconds for one head in uvicorn's parser, which has no limit of its own.
MOST_HEAD, HEAD_S = 1 << 16, 30.0
# The most bytes of a request, in bodies of the largest size: a byte may come in a chunk of six.
MOST_BODIES = 8
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_LENGTH = re.compile(rb"[0-9]{1,9}")
# Headers that change the connection, what the client waits for, or how the body is encoded.
_OTHERWISE = {
    b"connection",
    b"content-encoding",
    b"expect",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}


class PlainHead(NamedTuple):
    """The relevant values of a head: the content type of the body, and its length in bytes."""

    kind: str
    length: int


@lru_cache(KEPT_HEADS)
def plain_head(head: bytes) -> PlainHead | None:
    """Parses the head of a ``POST /predict``, which ends with an empty line; None if it is not
    plain enough for the fast path."""
    found: dict[bytes, bytes] = {}
    for line in head[len(_LINE) : -len(_END)].split(b"\r\n"):
        name, colon, value = line.partition(b":")
        if not colon or not _NAME.fullmatch(name) or _CONTROL.search(value):
            return None
        name, value = name.lower(), value.strip(b" \t")
        if name == b"connection" and value.lower() == b"keep-alive":
            continue
        if name in _OTHERWISE or (name in found and name.startswith(b"content-")):
            return None
        found[name] = value
    length = found.get(b"content-length", b"")
    if not _LENGTH.fullmatch(length) or int(length) > INLINE_BYTES:
        return None
    return PlainHead(PredictRoute.kind_of(found.get(b"content-type", JSON.encode())), int(length))


class PredictProtocol(HttpToolsProtocol):
    """The protocol of one connection.

    Attributes:
        route: answers the requests; a class attribute that :func:`protocol_of` sets.
    """

    route: PredictRoute
    timeout_keep_alive_task: asyncio.TimerHandle | None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._reading = False  # whether uvicorn's parser is within a request
        self._in_head = False  # and within its head
        self._received = 0  # bytes of this request
        self._began = 0.0
        self._asked: asyncio.Future[Any] | None = None
        self._after = b""  # bytes received before the pending answer was sent
        self._closes = False

    def data_received(self, data: bytes) -> None:
        """Receives bytes of the connection."""
        if self._asked is not None:
            self._after += data
            self.flow.pause_reading()
            return
        if not self._reading and data.startswith(_LINE) and self._is_free():
            end = data.find(_END, 0, LONGEST_HEAD) + len(_END)
            plain = plain_head(data[:end]) if end >= len(_END) else None
            if plain is not None and len(data) - end == plain.length:
                body = data[end:]
                if reads_at_once(body):
                    self._take(plain.kind, body)
                    return
        super().data_received(data)
        self._bound(len(data))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts the timeout for the first request of a new connection."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._wait(HEAD_S)

    def on_message_begin(self) -> None:
        """Called by the parser when a request begins."""
        self._reading = self._in_head = True
        self._received, self._began = 0, self.loop.time()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Called by the parser when a head has ended."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Called by the parser when a request has ended."""
        self._reading = False
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the pending request of a closed connection."""
        super().connection_lost(exc)
        if self._asked is not None:
            self._asked.cancel()

    def shutdown(self) -> None:
        """Closes the connection, after the pending answer if there is one."""
        if self._asked is None:
            super().shutdown()
        else:
            self._closes = True

    def _bound(self, more: int) -> None:
        """Ends a connection whose request is too long or too slow."""
        self._received += more
        if not self._reading or self.transport.is_closing():
            return
        if self._in_head:
            self._wait(HEAD_S)
            if self._received > MOST_HEAD or self.loop.time() - self._began > HEAD_S:
                self.send_400_response("The head of the request is too long, or too slow.")
        elif self._received > MOST_HEAD + MOST_BODIES * self.route.most_bytes:
            self.transport.close()

    def _wait(self, seconds: float) -> None:
        """Ends the connection after this many seconds without data."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )

    def _is_free(self) -> bool:
        """Whether every request is answered and the connection can take more data."""
        answered = self.cycle is None or self.cycle.response_complete
        return answered and not self.flow.write_paused and not self.transport.is_closing()

    def _take(self, kind: str, body: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            asked = self.route.ask(kind, body)
        except Exception as error:
            self._give(refused(error))
            return
        self._asked = asked
        asked.add_done_callback(self._answered)

    def _answered(self, asked: asyncio.Future[Any]) -> None:
        self._asked = None
        if self.transport.is_closing():
            return
        try:
            reply = self.route.reply(asked.result())
        except asyncio.CancelledError:
            self.transport.close()
            return
        except Exception as error:
            reply = refused(error)
        self._give(reply)
        if self._after and not self._closes:
            after, self._after = self._after, b""
            self.flow.resume_reading()
            self.data_received(after)

    def _give(self, reply: Reply) -> None:
        """Writes an answer, then waits for the next request or closes the connection."""
        lines = [STATUS_LINE[reply.status]]
        for name, value in (*self.server_state.default_headers, *reply.headers):
            lines += (name, b": ", value, b"\r\n")
        lines.append(b"connection: close\r\n" if self._closes else b"")
        lines.append(b"content-type: application/json\r\ncontent-length: ")
        lines += (str(len(reply.body)).encode(), _END, reply.body)
        self.transport.write(b"".join(lines))
        self.server_state.total_requests += 1
        if self._closes:
            self.transport.close()
        else:
            self._wait(self.timeout_keep_alive)


def protocol_of(route: PredictRoute) -> type[PredictProtocol]:
    """The protocol class for the connections to one application."""
    return type("PredictProtocol", (PredictProtocol,), {"route": route})
