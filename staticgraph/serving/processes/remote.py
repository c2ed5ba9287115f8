"""The client of a server in another process, used by a process that reads bodies.

Requests that arrive in the same iteration of the event loop are sent together, in one set of
arrays; if others already wait for answers, requests are collected for a moment before they are
sent.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import socket
from collections.abc import Callable, Iterable
from typing import Any

from staticgraph.errors import ServerClosed
from staticgraph.schema import Schema
from staticgraph.serving.bodies.flat_graphs import FlatGraphs, together, whole
from staticgraph.serving.processes import frames

# How long requests are collected while others wait for their answers, in seconds: they would wait
# for the running batch in any case, and a frame costs each process as much as several requests.
GATHER_S = 0.001

log: logging.Logger = logging.getLogger("staticgraph.serving")


class RemoteBackend:
    """A backend that sends requests over a socket.

    Args:
        line: a stream socket to a :class:`~staticgraph.serving.processes.gateway.Gateway`.
        schema: the schema of the graphs.
        on_loss: called when the other process is gone.
    """

    def __init__(self, line: socket.socket, schema: Schema, on_loss: Callable[[], None]) -> None:
        self._line, self._schema, self._on_loss = line, schema, on_loss
        self._numbers = itertools.count()
        self._waiting: list[tuple[FlatGraphs, asyncio.Future[Any]]] = []
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._lost = False

    async def open(self) -> None:
        """Starts listening, and reports that this process is ready."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._line)
        self._loop = asyncio.get_running_loop()
        self._listening = asyncio.create_task(self._listen())
        self._writer.write(frames.frame(frames.READY))

    def ask(self, graphs: FlatGraphs) -> asyncio.Future[Any]:
        """A future of plain values, or of the server's error."""
        self._check_there()
        if not self._waiting:
            if self._open:
                self._loop.call_later(GATHER_S, self._send)
            else:
                self._loop.call_soon(self._send)
        future = self._loop.create_future()
        self._waiting.append((graphs, future))
        return future

    async def health(self) -> tuple[int, str]:
        """The failed batches and the metrics of the server."""
        self._check_there()
        number, future = next(self._numbers), self._loop.create_future()
        self._open[number] = future
        self._writer.write(frames.json_frame(frames.HEALTH, number))
        failing, text = await future
        return failing, text

    async def close(self) -> None:
        """Closes the connection; called after all requests are answered."""
        self._listening.cancel()
        self._writer.close()

    def _check_there(self) -> None:
        if self._lost:
            raise ServerClosed("the process with the model is gone")

    def _send(self) -> None:
        waiting = [each for each in self._waiting if not each[1].done()]  # else the caller is gone
        self._waiting = []
        if not waiting:
            return
        try:
            self._check_there()  # the other process may have ended since
            graphs = together([whole(each) for each, _ in waiting], self._schema)
            numbers = [next(self._numbers) for _ in waiting]
            asked = frames.RequestFrame(numbers[0], [len(each) for each, _ in waiting], graphs)
            said = frames.ask_frame(asked, self._schema)
        except Exception as error:  # reported through the futures, since this has no caller
            _fail([future for _, future in waiting], error)
            return
        self._open.update(zip(numbers, (future for _, future in waiting), strict=True))
        self._writer.write(said)

    async def _listen(self) -> None:
        try:
            while True:
                length, _ = frames.HEADER.unpack(await self._reader.readexactly(8))
                for number, value, error in json.loads(await self._reader.readexactly(length)):
                    future = self._open.pop(number)
                    if future.done():  # the caller is gone
                        continue
                    if error is None:
                        future.set_result(value)
                    else:
                        future.set_exception(frames.error_of(error))
        except (asyncio.IncompleteReadError, OSError):
            self._lose()
        except Exception:  # the stream is corrupt, and so is what follows
            log.exception("an answer of the process with the model cannot be read")
            self._lose()

    def _lose(self) -> None:
        """The other process is gone: fails all waiting and later requests."""
        self._lost = True
        opened, self._open = self._open, {}
        _fail(opened.values(), ServerClosed("the process with the model is gone"))
        self._on_loss()


def _fail(futures: Iterable[asyncio.Future[Any]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            # A separate error object per future, since raising an error modifies it.
            future.set_exception(frames.error_of(frames.error_values(error)))
