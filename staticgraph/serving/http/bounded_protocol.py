"""uvicorn's protocol, with bounds on the size and the time of a request.

uvicorn's C parser buffers a head of any length for any time, so one client could hold memory and
connections without ever sending a request. Here a connection ends whose head is too long or too
slow, or whose body, chunks included, is longer than a body may be.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# The most bytes and seconds for one head.
MOST_HEAD, HEAD_S = 1 << 16, 30.0
# The most bytes of a request, in bodies of the largest size: a byte may come in a chunk of six.
MOST_BODIES = 8


class BoundedProtocol(HttpToolsProtocol):
    """The protocol of one connection.

    Attributes:
        most_bytes: the most bytes of a body; a class attribute that :func:`protocol_of` sets.
    """

    most_bytes: int
    timeout_keep_alive_task: asyncio.TimerHandle | None

    _reading = False  # whether the parser is within a request
    _in_head = False  # and within its head
    _received = 0  # bytes of this request
    _began = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts the timeout for the first request of a new connection."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._wait(HEAD_S)

    def data_received(self, data: bytes) -> None:
        """Receives bytes, and ends a connection whose request is too long or too slow."""
        super().data_received(data)
        self._received += len(data)
        if not self._reading or self.transport.is_closing():
            return
        if self._in_head:
            self._wait(HEAD_S)
            if self._received > MOST_HEAD or self.loop.time() - self._began > HEAD_S:
                self.send_400_response("The head of the request is too long, or too slow.")
        elif self._received > MOST_HEAD + MOST_BODIES * self.most_bytes:
            self.transport.close()

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

    def _wait(self, seconds: float) -> None:
        """Ends the connection after this many seconds without data."""
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            seconds, self.timeout_keep_alive_handler
        )


def protocol_of(most_bytes: int) -> type[BoundedProtocol]:
    """The protocol class for connections whose bodies have at most this many bytes."""
    return type("BoundedProtocol", (BoundedProtocol,), {"most_bytes": most_bytes})
