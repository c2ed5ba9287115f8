"""Processes that read bodies, and the process with the model that answers them.

The problem: Python runs one thread at a time, so in one process the model waits while bodies are
read. The idea: uvicorn's worker processes read the bodies, without torch, and connect to the
process with the model (:mod:`multiprocessing.connection`). Requests that arrive in the same turn of
the event loop, or within a moment while others wait for their answers, are sent together in one
message; so are the replies of a batch. Arrays are ``safetensors`` and the rest is ``msgspec``;
nothing is pickled. The invariant: for every request number received one reply is sent, unless the
other process is gone.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import queue
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Client,
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import FastAPI, Response
from safetensors.numpy import load, save

from staticgraph.errors import ServerClosed
from staticgraph.schema import EDGE_INDEX, Schema
from staticgraph.serving.bodies.flat_graphs import FlatGraphs, joined
from staticgraph.serving.bodies.reader import Reader
from staticgraph.serving.http.app import Gathered, make_app, settle
from staticgraph.serving.http.replies import refusal, reply_of, status_reply

if TYPE_CHECKING:
    from staticgraph.serving.engine.server import Server

log: logging.Logger = logging.getLogger("staticgraph.serving")


class RequestMessage(msgspec.Struct, array_like=True):
    """Requests from a process that reads bodies.

    Attributes:
        first: the number of the first request; the others follow.
        counts: the number of graphs of each request, none for a path.
        arrays: the graphs of all requests, as safetensors.
        path: ``health`` or ``metrics``, without graphs.
    """

    first: int
    counts: list[int]
    arrays: bytes = b""
    path: str = ""


_MESSAGES = msgspec.msgpack.Decoder(RequestMessage)
# The number of a request; the body, status and headers of its reply.
ReplyMessage = tuple[int, bytes, int, dict[str, str]]
_REPLIES = msgspec.msgpack.Decoder(list[ReplyMessage])


class ReaderConnections:
    """Answers the processes that read bodies, from threads of the process with the model.

    Args:
        server: answers the requests.
        task, classes: arguments of :func:`staticgraph.serving.http.replies.reply`.

    Attributes:
        address, key: arguments of :class:`RemoteServer` in the other processes.
    """

    def __init__(self, server: Server, task: str | None, classes: Sequence[str]) -> None:
        self._server, self._task, self._classes = server, task, classes
        self.key: bytes = os.urandom(32)
        self._listener = Listener()
        self.address: Any = self._listener.address
        self._closed = False
        self._accepting = _start(self._accept)

    def close(self) -> None:
        """Accepts no more processes."""
        if not self._closed:
            self._closed = True
            Client(self.address).close()  # wakes the thread; closing a listening socket does not
            self._accepting.join()
            self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            with suppress(OSError, RuntimeError):  # that process is gone, or no thread can start
                _start(self._take_in, self._listener.accept())

    def _take_in(self, connection: Connection) -> None:
        """Submits the requests of one process until it is gone."""
        try:
            deliver_challenge(connection, self.key)
            answer_challenge(connection, self.key)
        except (OSError, EOFError, AuthenticationError):  # a lost process, a stranger
            connection.close()
            return
        done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        _start(self._give_back, connection, done)
        try:
            while body := connection.recv_bytes():
                self._submit(_MESSAGES.decode(body), done)
        except (EOFError, OSError):
            pass
        finally:
            done.put(None)

    def _submit(self, message: RequestMessage, done: queue.SimpleQueue[Any]) -> None:
        if message.path:
            done.put((message.first, status_reply(self._server, message.path)))
            return
        try:
            columns = load(message.arrays)  # they were checked by the process that sent them
            counts = columns.pop("num_nodes"), columns.pop("num_edges")
            graphs = FlatGraphs(*counts, columns.pop(EDGE_INDEX), columns)
            futures = self._server.submit_split(graphs, message.counts)
        except Exception as error:
            for number in range(len(message.counts)):
                done.put((message.first + number, refusal(error)))
            return
        for number, future in enumerate(futures, message.first):
            future.add_done_callback(lambda future, number=number: done.put((number, future)))

    def _give_back(self, connection: Connection, done: queue.SimpleQueue[Any]) -> None:
        """Sends one process its replies, all that are ready at a time."""
        try:
            while (item := done.get()) is not None:
                items = [item]
                while not done.empty() and (item := done.get()) is not None:
                    items.append(item)
                replies = list[ReplyMessage]()
                for number, each in items:
                    if isinstance(each, Future):
                        each = reply_of(each, self._task, self._classes)
                    replies.append((number, bytes(each.body), each.status_code, dict(each.headers)))
                connection.send_bytes(msgspec.msgpack.encode(replies))
                if item is None:
                    return
        except OSError:
            pass  # the other process is gone
        finally:  # else it must learn that the connection ended, or it would wait forever
            with suppress(OSError):
                connection.send_bytes(b"")
                connection.close()


def _start(work: Any, *args: Any) -> threading.Thread:
    name = f"staticgraph {work.__name__}"
    thread = threading.Thread(target=work, args=args, name=name, daemon=True)
    thread.start()
    return thread


class RemoteServer(Gathered):
    """Asks a server in another process for replies.

    Args:
        address, key: those of its :class:`ReaderConnections`.
        schema: the schema of the graphs.
    """

    def __init__(self, address: Any, key: bytes, schema: Schema) -> None:
        super().__init__()
        self._address, self._key, self._schema = address, key, schema
        self._numbers = itertools.count()
        self._open: dict[int, asyncio.Future[Response]] = {}
        self._lost = self._closing = False

    async def open(self) -> None:
        """Connects, in the event loop that serves the requests."""
        self._connection = Client(self._address, authkey=self._key)
        self._loop = asyncio.get_running_loop()
        _start(self._receive)

    async def close(self) -> None:
        """Closes the connection; called after all requests are answered."""
        self._closing = True
        with suppress(OSError):
            self._connection.send_bytes(b"")

    def predict(self, graphs: FlatGraphs) -> asyncio.Future[Response]:
        """A future of the reply for graphs."""
        self._check_there()
        return super().predict(graphs)

    async def status(self, path: str) -> Response:
        """The reply for ``health`` or ``metrics``."""
        self._check_there()
        number, future = next(self._numbers), self._loop.create_future()
        self._open[number] = future
        self._running += 1
        self._connection.send_bytes(msgspec.msgpack.encode(RequestMessage(number, [], path=path)))
        return await future

    def _check_there(self) -> None:
        if self._lost:
            raise ServerClosed("the process with the model is gone")

    def _submit(self, graphs: list[FlatGraphs], replies: list[asyncio.Future[Response]]) -> None:
        whole = joined(graphs, self._schema)
        counts = {"num_nodes": whole.num_nodes, "num_edges": whole.num_edges}
        arrays = save({**counts, EDGE_INDEX: whole.edge_index, **whole.columns})
        numbers = [next(self._numbers) for _ in replies]
        message = RequestMessage(numbers[0], [len(each) for each in graphs], arrays)
        self._connection.send_bytes(msgspec.msgpack.encode(message))
        self._open.update(zip(numbers, replies, strict=True))

    def _receive(self) -> None:
        """Receives replies, in a thread."""
        with suppress(RuntimeError):  # the loop has ended
            try:
                while body := self._connection.recv_bytes():
                    replies = _REPLIES.decode(body)
                    self._loop.call_soon_threadsafe(self._take, replies)
            except (EOFError, OSError):
                pass
            except ValueError:
                log.exception("an answer of the process with the model cannot be read")
            self._loop.call_soon_threadsafe(self._lose)

    def _take(self, replies: list[ReplyMessage]) -> None:
        for number, body, status, headers in replies:
            if (future := self._open.pop(number, None)) is not None:
                self._end(future, Response(body, status, headers))

    def _lose(self) -> None:
        """The other process is gone: refuses all open requests, and ends this process."""
        self._lost = True
        gone = refusal(ServerClosed("the process with the model is gone"))
        for future in self._open.values():
            self._end(future, gone)
        self._open.clear()
        if not self._closing:
            os.kill(os.getpid(), signal.SIGTERM)


def reader_app(reader: Reader, title: str, address: Any, key: bytes) -> FastAPI:
    """The application of a process that reads bodies for the process with the model.

    Args:
        reader, title: arguments of :func:`make_app`.
        address, key: arguments of :class:`RemoteServer`.
    """
    settle()
    return make_app(RemoteServer(address, key, reader.schema), reader, title)
