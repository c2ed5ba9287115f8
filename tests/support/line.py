"""The connection between the body-reading process and the model's process, in one process."""

from __future__ import annotations

import asyncio
import socket

import staticgraph as sg
from staticgraph.serving.processes.gateway import Gateway
from staticgraph.serving.processes.remote import RemoteBackend
from support.served_graphs import BUCKETS, PATIENCE_S, runner_of


class Line:
    """A server, and a client at the other end of a socket pair."""

    def __init__(self, out: str = "graph", **options) -> None:
        self.runner = runner_of(out, BUCKETS)
        self.server = sg.Server(self.runner, **{"max_wait_ms": 0, **options})
        self.near, self.far = socket.socketpair()
        self.gateway = Gateway(self.server, self.near)
        self.lost: list[int] = []
        self.remote = RemoteBackend(self.far, self.server.schema, lambda: self.lost.append(1))

    def run(self, asked):
        async def whole():
            await self.remote.open()
            try:
                return await asyncio.wait_for(asked(self.remote), PATIENCE_S)
            finally:
                await self.remote.close()

        try:
            return asyncio.run(whole())
        finally:
            self.server.close()
            self.gateway.join()
