"""An exported folder -> a service for its compiled model.

An export contains the model, its buckets and the fields of a graph, and whether these are the
features that this library computes from SMILES, if the data set recorded that. It does not say what
the outputs mean; the caller may pass a task. Its buckets are fixed when it is compiled, so smaller
ones cannot be added afterwards (use ``for_serving`` on the plan before the export).
"""

from __future__ import annotations

from pathlib import Path

from staticgraph.runner.exported import load_exported
from staticgraph.serving.bodies.reader import Reader
from staticgraph.serving.engine.server import Server
from staticgraph.serving.service import ATOMS, BONDS, Service, fits_molecules, has_molecules


def service_of_export(
    folder: Path,
    *,
    digest: str | None = None,
    smiles: bool = False,
    task: str | None = None,
    max_wait_ms: float = 5.0,
    max_queue: int = 4096,
    most_graphs: int = 1024,
    most_bytes: int = 8 << 20,
) -> Service:
    """Loads an exported model and starts its server; the model's source is not needed.

    Args:
        folder: written by :meth:`StaticGraphRunner.export`. Its packages are code and are executed:
            see :func:`staticgraph.load_exported`.
        digest: the digest that the export returned; another folder is refused.
        smiles: whether ``x`` and ``edge_attr`` are the features that this library computes from
            SMILES, for a data set that did not record that.
        task: ``binary`` or ``classes`` to add probabilities to the outputs.
        max_wait_ms, max_queue: arguments of :class:`Server`.
        most_graphs, most_bytes: limits of one request.

    Raises:
        FileNotFoundError, ExportRefused: as for :func:`staticgraph.load_exported`.
        ValueError: ``smiles`` is set, but the model's fields are not those features.
    """
    model = load_exported(folder, digest)
    if smiles and not fits_molecules(model.schema):
        found = ", ".join(f"{item.name} {item.describe()}" for item in model.schema)
        raise ValueError(
            f"the graphs of {folder} have {found}, and a molecule that is read from SMILES has x "
            f"{_described(ATOMS)} and edge_attr {_described(BONDS)}: leave --smiles out, and send "
            "graphs"
        )
    smiles = smiles or has_molecules(model.schema)
    reader = Reader(
        model.schema,
        model.manifest.categories,
        smiles,
        most_graphs,
        most_bytes,
        model.plan.has_edges is not False,
    )
    server = Server(model, max_wait_ms=max_wait_ms, max_queue=max_queue)
    return Service(server, reader, f"{model.manifest.model} of {folder.name}", task)


def _described(field: tuple[str, tuple[int, ...], str]) -> str:
    level, shape, dtype = field
    return f"{dtype} {list(shape)} per {level}"
