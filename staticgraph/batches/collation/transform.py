"""A transform at collation: noise, sign flips, rotations, drawn again for every batch.

The problem: a dataset's ``transform`` runs once, when a store is made, so that a random one is
frozen. The idea: before anything reads a filled batch, the flat arrays of its real rows are passed
to a function as a PyG ``Data``, with the graph of each node in ``data.batch`` (without PyG, as a
:class:`~staticgraph.store.record.Record`). Its changes are written back in place; it never sees
padding.

Invariant: the random numbers depend on seed, epoch, rank and the batch's position in the epoch, so
they are the same with any number of workers and after a resume; the random states of the process
are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from staticgraph.batches.slots.real_counts import RealCounts
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.schema import EDGE_INDEX
from staticgraph.store.random_states import kept_random_states
from staticgraph.store.record import graph_of

# ``transform(data)`` changes the data in place, or returns another.
Transform = Callable[[Any], Any]


# PyG's transforms that treat a batch as one graph: what they should compute from each graph's rows
# they would compute from all rows together. Those in NORMED do so only if norm= is true.
OF_WHOLE_GRAPHS = frozenset({"Center", "NormalizeScale", "NormalizeRotation", "NormalizeFeatures"})
OF_WHOLE_GRAPHS |= {"AddLaplacianEigenvectorPE", "SVDFeatureReduction"}
NORMED = frozenset({"Cartesian", "Distance", "Polar", "Spherical"})


def check_transform(transform: Any) -> Any:
    """Returns a transform, but refuses PyG transforms that would take a batch for one graph.

    Args:
        transform: of a loader; may be None, or contain others (``T.Compose``).

    Raises:
        ValueError: there is such a transform; the message names it.
    """
    inside = getattr(transform, "transforms", None)
    for each in inside if isinstance(inside, list | tuple) else ():
        check_transform(each)
    kind = type(transform)
    if not kind.__module__.startswith("torch_geometric."):
        return transform
    normed = kind.__name__ in NORMED and getattr(transform, "norm", True)
    if kind.__name__ in OF_WHOLE_GRAPHS or normed:
        other = ", or give it norm=False" if normed else ""
        raise ValueError(
            f"transform= has {kind.__name__}, which looks at a whole graph, and a batch would be "
            "one graph to it: apply it before GraphStore.from_pyg, as the data set's transform, "
            f"where it sees each graph alone{other}"
        )
    return transform


def apply_transform(
    transform: Transform,
    layout: SlotLayout,
    arrays: Mapping[str, Tensor],
    real: RealCounts,
    draw: tuple[int, ...],
) -> None:
    """Lets a transform change the real rows of a batch.

    Args:
        transform: takes a ``Data`` of flat arrays.
        layout: the batch's layout.
        arrays: the batch's tensors, on the host.
        real: how many rows of each level are real.
        draw: what distinguishes this batch's random numbers from all others.

    Raises:
        ValueError: it changed which nodes and edges there are, or a field's shape or dtype.
    """
    data = graph_of(
        edge_index=arrays[EDGE_INDEX][:, : real.edges],
        batch=arrays["batch"][: real.nodes],
        ptr=arrays["ptr"][: real.graphs + 1],
        num_nodes=real.nodes,
    )
    fields = {}
    for field in layout.schema:
        rows = real.of(field.level) * field.rows
        fields[field.name] = arrays[field.name].narrow(field.cat_dim or 0, 0, rows)
        data[field.name] = fields[field.name]
    structure = {name: data[name] for name in (EDGE_INDEX, "batch", "ptr")}
    before = {name: value.clone() for name, value in structure.items()}
    with kept_random_states(int(np.random.SeedSequence(draw).generate_state(1)[0])):
        changed = transform(data)
    changed = data if changed is None else changed
    for name, value in structure.items():
        if name in fields:
            continue
        if changed.get(name) is not value or not torch.equal(value, before[name]):
            raise ValueError(
                f"transform= exchanged {name!r}, or wrote to it: it may change fields of nodes, "
                "edges and graphs, but not add or remove any; apply such a transform to the "
                "data set, before GraphStore.from_pyg"
            )
    written = {}
    for name, rows in fields.items():
        value = changed.get(name)
        if not isinstance(value, Tensor) or value.shape != rows.shape or value.dtype != rows.dtype:
            kind = f"{list(value.shape)} {value.dtype}" if isinstance(value, Tensor) else value
            raise ValueError(
                f"transform= made {kind} of {name!r}, which is {list(rows.shape)} {rows.dtype}: "
                "shapes and dtypes stay; a field that is to be added belongs into the data set, "
                "before GraphStore.from_pyg"
            )
        if value is not rows:
            written[name] = value.clone()  # it may be a view of another field that is written
    for name, value in written.items():
        fields[name].copy_(value)
