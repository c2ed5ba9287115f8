"""One connection from a process that reads bodies to the server: requests in, answers out.

It has two threads, which mostly wait: one submits all requests of a frame to the server at once,
the other sends all answers that are ready in one frame. The invariant: for every request number
received, one answer or error is sent, unless the other process is gone.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
from contextlib import suppress
from typing import Any

from staticgraph.errors import BatchFailed
from staticgraph.serving.engine.completion_queue import Completion, CompletionQueue
from staticgraph.serving.engine.server import Server
from staticgraph.serving.http.metrics import prometheus
from staticgraph.serving.processes import frames

log: logging.Logger = logging.getLogger("staticgraph.serving")


class Gateway:
    """Serves one connection until the other process closes it.

    Args:
        server: answers the requests.
        line: a stream socket.

    Attributes:
        ready: set once the other process accepts requests.
    """

    def __init__(self, server: Server, line: socket.socket) -> None:
        self._server, self._line = server, line
        self.ready: threading.Event = threading.Event()
        self._completions = CompletionQueue()
        self._threads = [
            threading.Thread(target=run, name=f"staticgraph {run.__name__}", daemon=True)
            for run in (self._take_in, self._give_back)
        ]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Waits until the connection has ended."""
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
            self._completions.close()

    def _take(self, kind: int, payload: bytearray) -> None:
        if kind == frames.READY:
            self.ready.set()
        elif kind == frames.HEALTH:
            stats = self._server.stats()
            said = [stats.failing, prometheus(stats)]
            self._completions.put(Completion(json.loads(payload), said, None))
            self._completions.notify()
        else:
            asked = frames.asked_of(payload, self._server.schema)
            self._server.submit_split(asked.graphs, asked.counts, (self._completions, asked.first))

    def _give_back(self) -> None:
        try:
            while (done := self._completions.fetch()) is not None:
                _log_failures(done)
                self._line.sendall(_frame([_values(each) for each in done]))
        except OSError:
            pass  # the other process is gone
        finally:
            # The other process must always learn that the line ended, or it would wait forever.
            with suppress(OSError):
                self._line.shutdown(socket.SHUT_RDWR)
            self._line.close()

    def _read(self, length: int) -> bytearray | None:
        """Reads ``length`` bytes; None if the other process is gone."""
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


def _log_failures(done: list[Completion]) -> None:
    """Logs one traceback per failed batch, not one per request."""
    failed = [each.error for each in done if isinstance(each.error, BatchFailed)]
    for error in {id(error.__cause__): error for error in failed}.values():
        log.error("a batch failed", exc_info=error)


def _values(done: Completion) -> list[Any]:
    if done.error is None:
        return [done.number, done.value, None]
    return [done.number, None, frames.error_values(done.error)]


def _frame(values: list[list[Any]]) -> bytes:
    """Encodes answers; one that JSON cannot express (complex numbers, say) is replaced by an error,
    so that the others are still sent."""
    try:
        return frames.json_frame(frames.ANSWERS, values)
    except Exception:
        return frames.json_frame(frames.ANSWERS, [_sayable(*each) for each in values])


def _sayable(number: int, value: Any, error: Any) -> list[Any]:
    try:
        frames.json_frame(frames.ANSWERS, [value, error])
    except Exception as reason:
        log.error("an output of the model cannot be written as JSON: %s", reason)
        failed = BatchFailed(f"an output of the model cannot be written as JSON: {reason}")
        return [number, None, frames.error_values(failed)]
    return [number, value, error]
