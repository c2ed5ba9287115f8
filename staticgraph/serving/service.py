"""A run's folder, or an exported one -> a service for its model.

An export does not say what its outputs mean; the caller may pass a task. Its buckets are fixed when
it is compiled, so smaller ones cannot be added afterwards (use ``for_serving`` on the plan before).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from staticgraph.runner.exported import load_exported
from staticgraph.runner.prediction import Predictor
from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.schema import Schema
from staticgraph.serving import for_serving
from staticgraph.serving.checked_graphs import Categories, fields_of
from staticgraph.serving.reader import Reader
from staticgraph.serving.server import Server
from staticgraph.training.checkpoint import Trained
from staticgraph.training.job import device_of

# The level, shape and dtype of OGB's features of an atom and of a bond.
ATOMS, BONDS = ("node", (9,), "int64"), ("edge", (3,), "int64")


@dataclass(frozen=True)
class Limits:
    """``max_wait_ms`` and ``max_queue`` of :class:`Server`, and the most graphs and bytes of one
    request."""

    max_wait_ms: float = 5.0
    max_queue: int = 4096
    most_graphs: int = 1024
    most_bytes: int = 8 << 20


class Service(NamedTuple):
    """A running server, the reader of its request bodies, a title, and the task of its outputs."""

    server: Server
    reader: Reader
    title: str
    task: str | None

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, if these are the task and the data has names for them."""
        schema = self.reader.schema
        return schema["y"].classes if "y" in schema and self.task == "classes" else ()


def service_of_run(
    folder: Path, *, device: str = "auto", mode: str = "auto", limits: Limits = Limits()
) -> Service:
    """Loads the model of a run's folder (see :meth:`Trained.load` for what is raised), warms it up
    on a device and in a mode as for training, and starts its server."""
    trained = Trained.load(folder, device_of(device))
    runner = StaticGraphRunner(trained.model, for_serving(trained.plan), mode)
    runner.warmup(phases=("eval",))
    title = f"{trained.config.model} of {folder.name}"
    smiles = has_molecules(trained.schema)
    return _service(runner, trained.schema, trained.categories, smiles, limits, title, trained.task)


def service_of_export(
    folder: Path,
    *,
    digest: str | None = None,
    smiles: bool = False,
    task: str | None = None,
    limits: Limits = Limits(),
) -> Service:
    """Loads an exported model and starts its server; the model's source is not needed.

    Args:
        folder: written by :meth:`StaticGraphRunner.export`. Its packages are code and are executed:
            see :func:`staticgraph.load_exported`, also for what is raised.
        digest: the digest that the export returned; another folder is refused.
        smiles: whether ``x`` and ``edge_attr`` are the features that this library computes from
            SMILES, for a data set that did not record that.
        task: ``binary`` or ``classes`` to add probabilities to the outputs.
        limits: the limits of requests.

    Raises:
        ValueError: ``smiles`` is set, but the model's fields are not those features.
    """
    model = load_exported(folder, digest)
    schema = model.schema
    if smiles and not fits_molecules(schema):
        present = ", ".join(f"{item.name} {item.describe()}" for item in schema)
        atoms, bonds = (f"{t} {list(shape)} per {level}" for level, shape, t in (ATOMS, BONDS))
        raise ValueError(
            f"the graphs of {folder} have {present}, and a molecule that is read from SMILES has x "
            f"{atoms} and edge_attr {bonds}: leave --smiles out, and send graphs"
        )
    title = f"{model.manifest.model} of {folder.name}"
    smiles = smiles or has_molecules(schema)
    return _service(model, schema, model.manifest.categories, smiles, limits, title, task)


def _service(
    runner: Predictor,
    schema: Schema,
    categories: Categories,
    smiles: bool,
    limits: Limits,
    title: str,
    task: str | None,
) -> Service:
    if schema.axes or schema.two_sided:
        raise ValueError(
            "these graphs have types, or rows that belong to neither nodes, edges nor graphs, "
            "which a request cannot say: serve them from Python, with sg.Server(runner)"
        )
    edges = runner.plan.has_edges is not False
    reader = Reader(schema, categories, smiles, limits.most_graphs, limits.most_bytes, edges)
    server = Server(runner, max_wait_ms=limits.max_wait_ms, max_queue=limits.max_queue)
    return Service(server, reader, title, task)


def has_molecules(schema: Schema) -> bool:
    """Whether the data set recorded that its graphs are molecules with the features that this
    library computes from SMILES."""
    return schema.molecules and fits_molecules(schema)


def fits_molecules(schema: Schema) -> bool:
    """Whether the fields have the names, shapes and dtypes that this library computes from SMILES;
    the values may have another meaning, as in PyG's own molecules (``molnet:``)."""
    fields = {item.name: (item.level, item.shape, item.dtype) for item in fields_of(schema)}
    return fields == {"x": ATOMS, "edge_attr": BONDS}
