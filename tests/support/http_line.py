"""An HTTP server in a thread, to be addressed byte by byte, with a backend that a test can hold."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI

import staticgraph as sg
from staticgraph.serving.app import config_of, make_app
from staticgraph.serving.checked_graphs import Arrays
from staticgraph.serving.reader import Reader
from staticgraph.serving.replies import reply
from support.patience import patience
from support.served_graphs import graph

PATIENCE_S = patience(30)


class Nodes:
    """Answers with each graph's number of nodes, immediately or when it is released."""

    def __init__(self) -> None:
        self.held: list[tuple[Arrays, asyncio.Future[Any]]] | None = None
        self.asked = threading.Semaphore(0)

    async def open(self) -> None:
        pass

    def predict(self, graphs: Arrays) -> asyncio.Future[Any]:
        self.loop = asyncio.get_running_loop()
        future = self.loop.create_future()
        if self.held is None:
            self._answer(graphs, future)
        else:
            self.held.append((graphs, future))
        self.asked.release()
        return future

    def let_go(self) -> None:
        def answer() -> None:
            held, self.held = self.held or [], None
            for each in held:
                self._answer(*each)

        self.loop.call_soon_threadsafe(answer)

    @staticmethod
    def _answer(graphs: Arrays, future: asyncio.Future[Any]) -> None:
        if not future.done():
            future.set_result(reply([[n] for n in graphs["num_nodes"].tolist()], None))

    async def close(self) -> None:
        pass


def app_of(backend: Nodes) -> FastAPI:
    """Returns an application for the graphs of :mod:`support.served_graphs`."""
    schema = sg.GraphStore.from_pyg([graph(3)]).schema
    return make_app(backend, Reader(schema, {}, False, 20, 100_000), "test")


@contextmanager
def served(backend: Nodes, **options: Any) -> Iterator[tuple[int, uvicorn.Server]]:
    """Yields a port and its server."""
    app = app_of(backend)
    config = config_of(app, log_level="critical", **options)
    server, port = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([port],), daemon=True)
    number = port.getsockname()[1]
    thread.start()
    try:
        yield number, server
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server does not stop"


def connected(port: int) -> socket.socket:
    line = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return line


def read_all(line: socket.socket) -> bytes:
    """Returns everything received until the other side closes the connection."""
    content = b""
    try:
        while more := line.recv(1 << 16):
            content += more
    except ConnectionResetError:
        pass
    return content


def answers(content: bytes) -> list[tuple[int, bytes]]:
    """Returns status and body of each answer, split by the lengths in their headers."""
    results = []
    while content:
        head, _, rest = content.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        length = next(int(n[15:]) for n in lines if n.startswith(b"content-length:"))
        results.append((int(lines[0].split()[1]), rest[:length]))
        content = rest[length:]
    return results


def talk(port: int, pieces: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """Sends bytes piece by piece and returns the answers; the last request ends the connection."""
    with connected(port) as line:
        for piece in pieces:
            line.sendall(piece)
        return answers(read_all(line))
