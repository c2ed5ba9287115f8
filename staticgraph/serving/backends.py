"""What answers the requests of an event loop: a server in the same process, or in another.

The problem: Python runs one thread at a time, so in one process the model waits while bodies are
read. The idea: uvicorn's worker processes read the bodies, without torch, and ask the process with
the model over a Unix socket. Requests that arrive together are sent in one message, and so are the
replies that are ready together. Arrays are ``safetensors`` and the rest is ``msgspec``; nothing is
pickled. The invariant: for every request number received one reply is sent, unless the other
process is gone.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import queue
import signal
import socket
import socketserver
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from tempfile import TemporaryDirectory
from threading import Thread
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import Response
from safetensors.numpy import load, save

from staticgraph.errors import ServerClosed
from staticgraph.serving.checked_graphs import Arrays, joined, store_of
from staticgraph.serving.replies import log, refusal, reply_of, status_reply

if TYPE_CHECKING:
    from staticgraph.serving.server import Server

# How long requests are collected while others wait for their answers, in seconds: they would wait
# for the running batch in any case.
GATHER_S = 0.001

Reply = asyncio.Future[Response]


class Backend(ABC):
    """Answers the requests of an event loop. Those that arrive in one turn of the loop, or within a
    moment while others wait, are submitted together: waking the model's thread for each took half
    of the processor time."""

    def __init__(self) -> None:
        self._arrived: list[tuple[Arrays, Reply]] = []
        self._running = 0  # requests that were submitted and have no reply yet

    async def open(self) -> None:  # noqa: B027 - there may be nothing to prepare
        """Prepares for requests, in the event loop that has them."""

    def predict(self, graphs: Arrays) -> Reply:
        """A future of the reply for checked graphs."""
        loop = asyncio.get_running_loop()
        if not self._arrived:
            loop.call_later(GATHER_S if self._running else 0, self._submit_arrived)
        response: Reply = loop.create_future()
        self._arrived.append((graphs, response))
        return response

    def _submit_arrived(self) -> None:
        arrived = [each for each in self._arrived if not each[1].done()]  # else the caller is gone
        self._arrived = []
        if not arrived:
            return
        graphs, replies = zip(*arrived, strict=True)
        self._running += len(replies)
        try:
            self._submit(joined(graphs), [len(each["num_nodes"]) for each in graphs], replies)
        except Exception as error:  # reported through the replies, since this has no caller
            for response in replies:
                self._end(response, refusal(error))

    def _end(self, response: Reply, reply: Response) -> None:
        """Replies to a request that was submitted; its caller may be gone."""
        self._running -= 1
        if not response.done():
            response.set_result(reply)

    @abstractmethod
    def _submit(self, graphs: Arrays, counts: list[int], replies: Sequence[Reply]) -> None:
        """Submits requests, of ``counts`` of the checked graphs each; :meth:`_end` replies."""

    @abstractmethod
    async def status(self, path: str) -> Response:
        """The reply for ``health`` or ``metrics``."""

    @abstractmethod
    async def close(self) -> None:
        """Ends the work, after the last request."""


class AsyncServer(Backend):
    """Answers with a server in this process, which is closed with the application; the task and
    classes are those of :func:`staticgraph.serving.replies.reply`."""

    def __init__(self, server: Server, task: str | None, classes: Sequence[str]) -> None:
        super().__init__()
        self._server, self._meaning = server, (task, classes)

    def _submit(self, graphs: Arrays, counts: list[int], replies: Sequence[Reply]) -> None:
        loop = asyncio.get_running_loop()
        futures = self._server.submit_split(store_of(graphs, self._server.schema), counts)
        for response, future in zip(replies, futures, strict=True):
            future.add_done_callback(
                lambda done, reply=response: loop.call_soon_threadsafe(self._end_with, reply, done)
            )

    def _end_with(self, response: Reply, future: Future[Any]) -> None:
        self._end(response, reply_of(future, *self._meaning))

    async def status(self, path: str) -> Response:
        """The reply for ``health`` or ``metrics``."""
        return status_reply(self._server, path)

    async def close(self) -> None:
        """Closes the server after it has answered the waiting requests."""
        await asyncio.to_thread(self._server.close)


# Requests of a process that reads bodies: the number of the first, the others follow; the number of
# graphs of each; the graphs of all as safetensors; in place of graphs, ``health`` or ``metrics``.
_REQUESTS = msgspec.msgpack.Decoder(tuple[int, list[int], bytes, str])
# The number of each request; the body, status and headers of its reply.
_REPLIES = msgspec.msgpack.Decoder(list[tuple[int, bytes, int, dict[str, str]]])
SIZE_BYTES = 8


def _framed(message: Any) -> bytes:
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(SIZE_BYTES, "big") + body


class ReaderConnections(socketserver.ThreadingUnixStreamServer):
    """Answers the processes that read bodies, from two threads for each of them.

    Attributes:
        address, key: arguments of :class:`RemoteServer` in the other processes.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self, server: Server, task: str | None, classes: Sequence[str]) -> None:
        self._server, self._meaning = server, (task, classes)
        self._folder = TemporaryDirectory(prefix="staticgraph-")  # that no other user may enter
        self.address: str = os.path.join(self._folder.name, "model")
        self.key: bytes = os.urandom(32)
        super().__init__(self.address, socketserver.StreamRequestHandler)
        self._accepting = Thread(target=self.serve_forever, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        """Accepts no more processes."""
        self.shutdown()
        self._accepting.join()
        self.server_close()
        self._folder.cleanup()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Submits the requests of one process until it is gone."""
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # A process that is killed leaves half a message.
        with request.makefile("rb") as stream, suppress(OSError, msgspec.DecodeError):
            if not hmac.compare_digest(stream.read(len(self.key)), self.key):
                return  # a stranger
            Thread(target=self._give_back, args=(request, done), daemon=True).start()
            try:
                while size := stream.read(SIZE_BYTES):
                    self._submit(*_REQUESTS.decode(stream.read(int.from_bytes(size, "big"))), done)
            finally:
                done.put(None)

    def _submit(self, first: int, counts: list[int], arrays: bytes, path: str, done: Any) -> None:
        """Submits the requests of a message; puts each one's number and a function that makes its
        reply once it is done."""
        if path:
            done.put((first, partial(status_reply, self._server, path)))
            return
        try:  # the arrays were checked by the process that sent them
            store = store_of(load(arrays), self._server.schema)
            futures = self._server.submit_split(store, counts)
        except Exception as error:
            for number in range(first, first + len(counts)):
                done.put((number, partial(refusal, error)))
            return
        for number, future in enumerate(futures, first):
            reply = partial(reply_of, future, *self._meaning)
            future.add_done_callback(lambda _, ended=(number, reply): done.put(ended))

    def _give_back(self, request: socket.socket, done: queue.SimpleQueue[Any]) -> None:
        """Sends one process its replies, all that are ready at a time."""
        ended: list[Any] = []
        try:
            while None not in ended:
                ended = [done.get()]
                while not done.empty():
                    ended.append(done.get())
                replies = [(number, make_reply()) for number, make_reply in filter(None, ended)]
                message = [(k, bytes(r.body), r.status_code, dict(r.headers)) for k, r in replies]
                request.sendall(_framed(message))
        except OSError:
            pass  # the other process is gone
        finally:  # else it must learn that the connection ended, or it would wait forever
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)


class RemoteServer(Backend):
    """Asks a server in another process, with the address and key of :class:`ReaderConnections`."""

    def __init__(self, address: str, key: bytes) -> None:
        super().__init__()
        self._address, self._key = address, key
        self._asked = 0
        self._waiting: dict[int, Reply] = {}

    async def open(self) -> None:
        """Connects, in the event loop that serves the requests."""
        replies, self._out = await asyncio.open_unix_connection(self._address)
        self._out.write(self._key)
        self._receiving = asyncio.create_task(self._take(replies))

    async def close(self) -> None:
        """Closes the connection; called after all requests are answered."""
        self._receiving.cancel()
        self._out.close()

    def _submit(self, graphs: Arrays, counts: list[int], replies: Sequence[Reply]) -> None:
        self._ask(replies, counts, save(graphs), "")

    async def status(self, path: str) -> Response:
        """The reply for ``health`` or ``metrics``."""
        response: Reply = asyncio.get_running_loop().create_future()
        self._ask([response], [], b"", path)
        self._running += 1
        return await response

    def _ask(self, replies: Sequence[Reply], counts: list[int], arrays: bytes, path: str) -> None:
        if self._receiving.done():
            raise ServerClosed("the process with the model is gone")
        self._out.write(_framed((self._asked, counts, arrays, path)))
        self._waiting.update(enumerate(replies, self._asked))
        self._asked += len(replies)

    async def _take(self, replies: asyncio.StreamReader) -> None:
        """Takes replies until the other process is gone, which ends this one."""
        try:
            while True:
                size = int.from_bytes(await replies.readexactly(SIZE_BYTES), "big")
                for number, content, status, headers in _REPLIES.decode(
                    await replies.readexactly(size)
                ):
                    self._end(self._waiting.pop(number), Response(content, status, headers))
        except (OSError, EOFError):
            pass
        except (ValueError, KeyError):
            log.exception("an answer of the process with the model cannot be read")
        for response in self._waiting.values():
            self._end(response, refusal(ServerClosed("the process with the model is gone")))
        os.kill(os.getpid(), signal.SIGTERM)
