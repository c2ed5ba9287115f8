"""Whom HTTP asks: the server in this process, or in another one (:mod:`.remote`)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol

from staticgraph.serving.flat_graphs import FlatGraphs
from staticgraph.serving.metrics import prometheus

if TYPE_CHECKING:
    from staticgraph.serving.server import Server


class Asker(Protocol):
    """Answers graphs with plain values, and says how it does."""

    async def open(self) -> None:
        """Before the first request, in the loop of all of them."""
        ...

    async def ask(self, graphs: FlatGraphs) -> Any:
        """Lists of numbers; dicts and lists of these as the model returns them."""
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

    async def ask(self, graphs: FlatGraphs) -> Any:
        """What the server answers."""
        return plain(await self.server.ask(graphs))

    async def health(self) -> tuple[int, str]:
        """What the server did."""
        stats = self.server.stats()
        return stats.failing, prometheus(stats)

    async def close(self) -> None:
        """Answers what waits."""
        await asyncio.to_thread(self.server.close)


def plain(out: Any) -> Any:
    """Tensors as lists of numbers, in whatever collects them."""
    if isinstance(out, dict):
        return {str(key): plain(value) for key, value in out.items()}
    if isinstance(out, list | tuple):
        return [plain(piece) for piece in out]
    return out.tolist() if hasattr(out, "tolist") else out
