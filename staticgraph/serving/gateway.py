"""One line from a process that reads bodies to the server: its requests in, its answers out.

Two threads, which wait for the socket and hardly run: one hands all requests of a frame to the
server at once, the other sends what was answered meanwhile in one frame. The invariant: every
number that came in goes out once, with an answer or an error, unless the other side is gone.
"""

from __future__ import annotations

import json
import logging
import queue
import socket
import threading
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

from staticgraph.errors import BatchFailed
from staticgraph.serving import frames
from staticgraph.serving.asker import plain
from staticgraph.serving.metrics import prometheus
from staticgraph.serving.server import Server

log: logging.Logger = logging.getLogger("staticgraph.serving")


class Gateway:
    """Serves one line until its other side closes it.

    Args:
        server: answers.
        line: a stream.

    Attributes:
        ready: set once the other side takes requests.
    """

    def __init__(self, server: Server, line: socket.socket) -> None:
        self._server, self._line = server, line
        self.ready: threading.Event = threading.Event()
        # None where the line has ended. Each put costs the thread with the model little.
        self._answered: queue.SimpleQueue[tuple[int, Future[Any]] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=run, name=f"staticgraph {run.__name__}", daemon=True)
            for run in (self._take_in, self._give_back)
        ]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Waits until the line has ended."""
        for thread in self._threads:
            thread.join()

    def _take_in(self) -> None:
        try:
            while (header := self._read(frames.HEADER.size)) is not None:
                length, kind = frames.HEADER.unpack(header)
                if (payload := self._read(length)) is None:
                    break
                self._take(kind, payload)
        finally:
            self._answered.put(None)

    def _take(self, kind: int, payload: bytearray) -> None:
        if kind == frames.READY:
            self.ready.set()
        elif kind == frames.HEALTH:
            stats, future = self._server.stats(), Future[Any]()
            future.set_result([stats.failing, prometheus(stats)])
            self._note(json.loads(payload), future)
        else:
            asked = frames.asked_of(payload, self._server.schema)
            futures = self._server.submit_split(asked.graphs, asked.counts)
            for number, future in enumerate(futures, asked.first):
                future.add_done_callback(partial(self._note, number))

    def _note(self, number: int, future: Future[Any]) -> None:
        self._answered.put((number, future))

    def _give_back(self) -> None:
        while True:
            answered = [self._answered.get()]
            while not self._answered.empty():
                answered.append(self._answered.get())
            if None in answered:
                break
            values = [_values(*each) for each in answered if each is not None]
            try:
                self._line.sendall(_frame(values))
            except OSError:
                break
        self._line.close()

    def _read(self, length: int) -> bytearray | None:
        """So many bytes; None where the other side is gone."""
        found, at = bytearray(length), 0
        view = memoryview(found)
        while at < length:
            try:
                read = self._line.recv_into(view[at:])
            except OSError:
                return None
            if not read:
                return None
            at += read
        return found


def _values(number: int, future: Future[Any]) -> list[Any]:
    try:
        return [number, plain(future.result()), None]
    except (Exception, CancelledError) as error:
        if isinstance(error, BatchFailed):
            log.error("a batch failed", exc_info=error)
        return [number, None, frames.error_values(error)]


def _frame(values: list[list[Any]]) -> bytes:
    """Answers as bytes; where one cannot be said in JSON (complex numbers, say) its error stands
    there, since others came with it."""
    try:
        return frames.json_frame(frames.ANSWERS, values)
    except (TypeError, ValueError, RecursionError):
        return frames.json_frame(frames.ANSWERS, [_sayable(*each) for each in values])


def _sayable(number: int, value: Any, error: Any) -> list[Any]:
    try:
        frames.json_frame(frames.ANSWERS, [value, error])
    except (TypeError, ValueError, RecursionError) as reason:
        log.error("an output of the model cannot be written as JSON: %s", reason)
        failed = BatchFailed(f"an output of the model cannot be written as JSON: {reason}")
        return [number, None, frames.error_values(failed)]
    return [number, value, error]
