"""What HTTP asks: the server in this process, or in another one (:mod:`.remote`)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from staticgraph.serving.flat_graphs import FlatGraphs
from staticgraph.serving.metrics import prometheus
from staticgraph.serving.plain_values import plain

if TYPE_CHECKING:
    from staticgraph.serving.server import Server


class Asker(Protocol):
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


class Here:
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
