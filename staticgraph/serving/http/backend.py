"""What HTTP asks: the server in this process, or in another one (:mod:`.remote`)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from staticgraph.serving.bodies.flat_graphs import FlatGraphs
from staticgraph.serving.engine.plain_values import plain
from staticgraph.serving.http.metrics import prometheus

if TYPE_CHECKING:
    from staticgraph.serving.engine.server import Server


class Backend(Protocol):
    """Answers graphs with plain values, and says how it does."""

    async def open(self) -> None:
        """Before the first request, in the loop of all of them."""
        ...

    def ask(self, graphs: FlatGraphs) -> asyncio.Future[Any]:
        """A future of lists of numbers; of dicts and lists of these as the model returns them."""
        ...

    async def health(self) -> tuple[int, str]:
        """How many batches in a row failed, and the metrics as Prometheus reads them."""
        ...

    async def close(self) -> None:
        """After the last request."""
        ...


class LocalBackend:
    """The server in this process, which is closed with the application."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def open(self) -> None:
        """Nothing."""

    def ask(self, graphs: FlatGraphs) -> asyncio.Future[Any]:
        """What the server answers."""
        return asyncio.ensure_future(self._answer(graphs))

    async def _answer(self, graphs: FlatGraphs) -> Any:
        return plain(await self.server.ask(graphs))

    async def health(self) -> tuple[int, str]:
        """What the server did."""
        stats = self.server.stats()
        return stats.failing, prometheus(stats)

    async def close(self) -> None:
        """Answers what waits."""
        await asyncio.to_thread(self.server.close)
