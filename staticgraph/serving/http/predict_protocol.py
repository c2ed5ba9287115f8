"""``POST /predict`` on its short way through uvicorn's own protocol.

The problem: of a request for one molecule, uvicorn's scope, cycle, event and task and the messages
between them and the application took more processor time than all else that is done to it before
the model. The idea: a request that came in one piece, with a head of the plainest kind, on a
connection where nothing else is going on, is read here, asked, and answered with one write.
Whatever is anything else (pieces, chunks, ``Expect``, another path, a mistake above all) goes
uvicorn's way, which has the words for it.

The invariant: what goes the short way is what uvicorn's parser would have read in the same way, and
the answers of a connection leave in the order of its requests.
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
# Programs send the same few heads all day; one beyond this is nobody's who is in a hurry.
LONGEST_HEAD = 2048
KEPT_HEADS = 1024
# What uvicorn's parser may be given of one head, and for how long; it knows no limit itself.
MOST_HEAD, HEAD_S = 1 << 16, 30.0
# Of a whole request, in bodies of the longest kind: a byte may come in a chunk of six.
MOST_BODIES = 8
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_LENGTH = re.compile(rb"[0-9]{1,9}")
# They change what follows, or what the other side waits for, or what a body is.
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
    """What a head says that is to be known: the type of the body, and its length in bytes."""

    kind: str
    length: int


@lru_cache(KEPT_HEADS)
def plain_head(head: bytes) -> PlainHead | None:
    """What the head of a ``POST /predict`` says, up to its empty line; None where it is not of the
    plainest kind."""
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
    """One connection.

    Attributes:
        route: answers; of the class, which :func:`protocol_of` makes.
    """

    route: PredictRoute
    timeout_keep_alive_task: asyncio.TimerHandle | None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._reading = False  # uvicorn's parser is in the midst of a request
        self._in_head = False  # or of its head, even
        self._received = 0  # bytes of this request
        self._began = 0.0
        self._asked: asyncio.Future[Any] | None = None
        self._after = b""  # what came before the answer to what was asked
        self._closes = False

    def data_received(self, data: bytes) -> None:
        """Some bytes of the connection."""
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
        """Somebody is there, who has a while to say what he wants."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._wait(HEAD_S)

    def on_message_begin(self) -> None:
        """The parser's, as a request begins."""
        self._reading = self._in_head = True
        self._received, self._began = 0, self.loop.time()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The parser's, as a head has ended."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The parser's, as a request has ended."""
        self._reading = False
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody waits any more."""
        super().connection_lost(exc)
        if self._asked is not None:
            self._asked.cancel()

    def shutdown(self) -> None:
        """No more after the answer that is on its way."""
        if self._asked is None:
            super().shutdown()
        else:
            self._closes = True

    def _bound(self, more: int) -> None:
        """Ends a connection whose request has no end."""
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
        """Ends the connection then, if nothing comes."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )

    def _is_free(self) -> bool:
        """Whether everything that was asked is answered, and gone or going."""
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
        """Writes an answer, and waits for what comes next."""
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
    """The protocol of the connections to one application."""
    return type("PredictProtocol", (PredictProtocol,), {"route": route})
