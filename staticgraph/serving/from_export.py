"""An exported folder -> a service that answers for its compiled model.

An export has the model, its buckets and the fields of a graph, and whether these are what a SMILES
gets here, where the data said so. It does not say what the outputs mean. Who serves it says so, or
does without. Its buckets are those it was compiled for: no smaller ones can
be made with them (``for_serving`` of a plan, before the export).
"""

from __future__ import annotations

from pathlib import Path

from staticgraph.runner.export.exported import load_exported
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
    """Loads the packages and starts their server; the model's source is not needed.

    Args:
        folder: that :meth:`StaticGraphRunner.export` wrote. Its packages are code and are run: see
            :func:`staticgraph.load_exported`.
        digest: what the export returned; another folder is refused.
        smiles: its ``x`` and ``edge_attr`` are the features that this library gives a SMILES, where
            its data did not say so.
        task: ``binary`` or ``classes`` for probabilities next to the outputs.
        max_wait_ms, max_queue: of the :class:`Server`.
        most_graphs, most_bytes: of one request.

    Raises:
        FileNotFoundError, ExportRefused: as :func:`staticgraph.load_exported`.
        ValueError: ``smiles``, and the fields are other ones.
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
