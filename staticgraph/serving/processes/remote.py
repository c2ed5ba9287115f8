"""The server in another process, as the one that reads bodies asks it.

Requests that came in the same turn of the event loop go over together, in one set of arrays; and
those that came in the next moments, where others wait for their answers already.
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

# How long those who ask while others wait for their answers are gathered, in seconds: they would
# wait for the batch that runs in any case, and a frame costs each process what some requests do.
GATHER_S = 0.001

log: logging.Logger = logging.getLogger("staticgraph.serving")


class RemoteBackend:
    """Asks over a socket.

    Args:
        line: a stream to a :class:`~staticgraph.serving.processes.gateway.Gateway`.
        schema: of the graphs.
        on_loss: is called when the other process is gone.
    """

    def __init__(self, line: socket.socket, schema: Schema, on_loss: Callable[[], None]) -> None:
        self._line, self._schema, self._on_loss = line, schema, on_loss
        self._numbers = itertools.count()
        self._waiting: list[tuple[FlatGraphs, asyncio.Future[Any]]] = []
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._lost = False

    async def open(self) -> None:
        """Begins to listen."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._line)
        self._loop = asyncio.get_running_loop()
        self._listening = asyncio.create_task(self._listen())
        self._writer.write(frames.frame(frames.READY))

    def ask(self, graphs: FlatGraphs) -> asyncio.Future[Any]:
        """A future of plain values, or of the error that the server had."""
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
        """What the server did."""
        self._check_there()
        number, future = next(self._numbers), self._loop.create_future()
        self._open[number] = future
        self._writer.write(frames.json_frame(frames.HEALTH, number))
        failing, text = await future
        return failing, text

    async def close(self) -> None:
        """Ends the line, when all is answered."""
        self._listening.cancel()
        self._writer.close()

    def _check_there(self) -> None:
        if self._lost:
            raise ServerClosed("the process with the model is gone")

    def _send(self) -> None:
        waiting = [each for each in self._waiting if not each[1].done()]  # its caller has gone
        self._waiting = []
        if not waiting:
            return
        try:
            self._check_there()  # it may have gone since they asked
            graphs = together([whole(each) for each, _ in waiting], self._schema)
            numbers = [next(self._numbers) for _ in waiting]
            asked = frames.RequestFrame(numbers[0], [len(each) for each, _ in waiting], graphs)
            said = frames.ask_frame(asked, self._schema)
        except Exception as error:  # nobody but these futures waits for it
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
                    if future.done():  # its caller has gone
                        continue
                    if error is None:
                        future.set_result(value)
                    else:
                        future.set_exception(frames.error_of(error))
        except (asyncio.IncompleteReadError, OSError):
            self._lose()
        except Exception:  # what was said makes no sense: neither will what follows
            log.exception("an answer of the process with the model cannot be read")
            self._lose()

    def _lose(self) -> None:
        """The other side is gone: who waits is told, and whoever asks from now on."""
        self._lost = True
        opened, self._open = self._open, {}
        _fail(opened.values(), ServerClosed("the process with the model is gone"))
        self._on_loss()


def _fail(futures: Iterable[asyncio.Future[Any]], error: Exception) -> None:
    for future in futures:
        if not future.done():
            # Of its own, since raising changes an error.
            future.set_exception(frames.error_of(frames.error_values(error)))
