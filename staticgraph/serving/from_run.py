"""A run's folder -> a service for its model."""

from __future__ import annotations

from pathlib import Path

from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.serving.bodies.reader import Reader
from staticgraph.serving.engine.server import Server
from staticgraph.serving.service import Service, has_molecules
from staticgraph.serving.smaller_buckets import for_serving
from staticgraph.training.job import device_of
from staticgraph.training.trained import Trained


def service_of_run(
    folder: Path,
    *,
    device: str = "auto",
    mode: str = "auto",
    max_wait_ms: float = 5.0,
    max_queue: int = 4096,
    most_graphs: int = 1024,
    most_bytes: int = 8 << 20,
) -> Service:
    """Loads the model, warms it up, and starts its server.

    Args:
        folder: the folder of a run; see :meth:`Trained.load` for what is read and raised.
        device: the device, as for training.
        mode: the mode of the runner.
        max_wait_ms, max_queue: arguments of :class:`Server`.
        most_graphs, most_bytes: limits of one request.
    """
    trained = Trained.load(folder, device_of(device))
    runner = StaticGraphRunner(trained.model, for_serving(trained.plan), mode)
    runner.warmup(phases=("eval",))
    smiles = has_molecules(trained.schema)
    reader = Reader(
        trained.schema,
        trained.categories,
        smiles,
        most_graphs,
        most_bytes,
        trained.plan.has_edges is not False,
    )
    server = Server(runner, max_wait_ms=max_wait_ms, max_queue=max_queue)
    return Service(server, reader, f"{trained.config.model} of {folder.name}", trained.task)
