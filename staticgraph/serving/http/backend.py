"""The interface of HTTP to the server, in this process or in another one (``processes.remote``)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from staticgraph.serving.bodies.flat_graphs import FlatGraphs
from staticgraph.serving.engine.plain_values import plain
from staticgraph.serving.http.metrics import prometheus

if TYPE_CHECKING:
    from staticgraph.serving.engine.server import Server


class Backend(Protocol):
    """Answers graphs with plain values, and reports its health and metrics."""

    async def open(self) -> None:
        """Called before the first request, in the event loop that serves the requests."""
        ...

    def ask(self, graphs: FlatGraphs) -> asyncio.Future[Any]:
        """A future of lists of numbers, in the dicts and lists that the model returns."""
        ...

    async def health(self) -> tuple[int, str]:
        """The number of consecutive failed batches, and the metrics in Prometheus' format."""
        ...

    async def close(self) -> None:
        """Called after the last request."""
        ...


class LocalBackend:
    """A backend for a server in this process, which is closed with the application."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def open(self) -> None:
        """Does nothing."""

    def ask(self, graphs: FlatGraphs) -> asyncio.Future[Any]:
        """A future of the server's answer as plain values."""
        return asyncio.ensure_future(self._answer(graphs))

    async def _answer(self, graphs: FlatGraphs) -> Any:
        return plain(await self.server.ask(graphs))

    async def health(self) -> tuple[int, str]:
        """The failed batches and the metrics of the server."""
        stats = self.server.stats()
        return stats.failing, prometheus(stats)

    async def close(self) -> None:
        """Closes the server after it has answered the waiting requests."""
        await asyncio.to_thread(self.server.close)
