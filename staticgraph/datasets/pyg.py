"""Opens data sets that PyG and OGB download, and lists of ``Data`` in a file.

PyG and OGB do the downloading; this module gives the results a common form (splits, a name, labels
whose dtype determines the task) and a uniform error if the network or a package is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData, InMemoryDataset
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import BaseStorage, EdgeStorage, GlobalStorage, NodeStorage
from torch_geometric.datasets import MoleculeNet, TUDataset

from staticgraph.errors import BadGraph, DatasetUnavailable, MissingPackage, UnknownDataset
from staticgraph.schema import Field
from staticgraph.store.columns import Array
from staticgraph.store.graph_store import GraphStore

# The prefix of OGB's data sets of molecules.
MOLECULES = "ogbg-mol"


def open_tu(name: str, root: Path, progress: bool) -> GraphStore:
    """Opens a TUDataset: ``x`` float32, the one-hot node label or ones; ``y`` int64 ``[1]``."""
    with _downloading(f"tu:{name}", root):
        dataset = TUDataset(str(root / "tu"), name)
    store = GraphStore.from_pyg(dataset, name=name, progress=progress)
    if "x" in store.schema:
        return store
    ones = np.ones((int(store.node_offsets[-1]), 1), dtype=np.uint8)
    return _with_column(store, Field("x", "node", (1,), "float32"), ones)


def open_molnet(name: str, root: Path, progress: bool) -> GraphStore:
    """Opens a MoleculeNet set with PyG's features: ``y`` float32 ``[1, T]``, NaN where unlabelled.

    Raises:
        UnknownDataset: if MoleculeNet has no data set of this name.
    """
    if name.lower() not in MoleculeNet.names:
        raise UnknownDataset(
            f"molnet:{name}: MoleculeNet has {', '.join(sorted(MoleculeNet.names))}"
        )
    with _downloading(f"molnet:{name}", root):
        dataset = MoleculeNet(str(root / "molnet"), name)
    return GraphStore.from_pyg(dataset, name=name, progress=progress, exclude=["smiles"])


def open_ogb(name: str, root: Path, progress: bool) -> GraphStore:
    """Opens an OGB graph property prediction set with its published split.

    Labels of binary tasks are float32 ``[1, T]`` with NaN for missing labels, those of multiclass
    tasks are int64 ``[1]``, so that the dtype determines the task.

    Raises:
        UnknownDataset: if OGB has no data set of this name.
    """
    with _downloading(f"ogb:{name}", root):
        from ogb.graphproppred import PygGraphPropPredDataset  # pyright: ignore[reportMissingImports]

        try:
            with _data_is_safe():
                dataset = PygGraphPropPredDataset(name, root=str(root / "ogb"))
        except ValueError as error:  # OGB's error for an unknown name
            raise UnknownDataset(f"ogb:{name}: {error}") from None
    store = GraphStore.from_pyg(dataset, name=name, progress=progress)
    store = replace(store, schema=replace(store.schema, molecules=name.startswith(MOLECULES)))
    ids = dataset.get_idx_split()
    splits = {"train": ids["train"], "val": ids["valid"], "test": ids["test"]}
    return _with_task_dtype(store, dataset.task_type).with_splits(
        **{key: np.asarray(value) for key, value in splits.items()}
    )


def open_pt(path: Path, progress: bool, name: str | None = None) -> GraphStore:
    """Opens a ``.pt`` file of ``Data`` or ``HeteroData``.

    The file is a list written by ``torch.save``, or one of PyG's ``InMemoryDataset`` in
    ``processed/``; nothing but tensors and these classes is unpickled.

    Args:
        path: the file.
        progress: show a progress bar, and a line that describes the fields.
        name: the store's name; None for the file's stem.

    Raises:
        BadGraph: if the file holds something else.
    """
    try:
        with _data_is_safe():
            graphs = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # the exception depends on the bytes
        raise BadGraph(
            f"{path} is not a list of Data saved by torch.save, or holds other objects as well; "
            "load it yourself and pass the graphs to GraphStore.from_pyg, or save them as "
            "torch.save(list(dataset), path)"
        ) from error
    if isinstance(graphs, tuple):
        graphs = _collated(graphs) or graphs
    if not isinstance(graphs, list | InMemoryDataset):
        raise BadGraph(
            f"{path} holds a {type(graphs).__name__}; expected a list of "
            "torch_geometric.data.Data, as torch.save(list(dataset), path) writes it"
        )
    return GraphStore.from_pyg(graphs, name=name or path.stem, progress=progress)


def _collated(content: tuple[Any, ...]) -> InMemoryDataset | list[Data] | None:
    """Returns the graphs of a tuple; None if it holds anything else.

    The tuple holds either graphs, or ``(fields of all, slices, ..., class)``, as written by
    ``InMemoryDataset.save`` and ``TUDataset``.
    """
    if all(isinstance(item, Data | HeteroData) for item in content):
        return list(content)
    if len(content) < 2 or not isinstance(content[1], dict):
        return None
    data, slices, kind = *content[:2], content[-1]
    if isinstance(data, dict) and kind in (Data, HeteroData):
        data = kind.from_dict(data)
    if not isinstance(data, Data | HeteroData):
        return None
    dataset = InMemoryDataset()
    dataset.data, dataset.slices = data, slices
    return dataset


def _data_is_safe() -> torch.serialization.safe_globals:
    """Lets ``torch.load`` read ``Data``: PyG 2.8 does not register the classes inside it.

    OGB 1.3.6 calls ``torch.load`` without ``weights_only``, so since torch 2.6 it needs this,
    too.
    """
    plain = [Data, DataEdgeAttr, DataTensorAttr, GlobalStorage]
    return torch.serialization.safe_globals(
        [*plain, HeteroData, BaseStorage, NodeStorage, EdgeStorage]
    )


@contextmanager
def _downloading(spec: str, root: Path) -> Iterator[None]:
    """Turns a missing package or a failed download into an error that states the remedy."""
    try:
        yield
    except ImportError as error:
        name = str(error.name).partition(".")[0]
        raise MissingPackage(
            f"{spec} needs the package {name!r}, which is not installed: pip install {name}"
        ) from error
    except OSError as error:
        raise DatasetUnavailable(
            f"{spec} is not under {root} and could not be downloaded ({error}): check the name "
            f"and the network, or copy the folder from a machine that has it"
        ) from error


def _with_column(store: GraphStore, field: Field, column: Array) -> GraphStore:
    """Returns the same store with one field added or replaced."""
    others = [item for item in store.schema if item.name != field.name]
    return replace(
        store,
        schema=replace(store.schema, fields=(*others, field)),
        columns={**store.columns, field.name: column},
    )


def _with_task_dtype(store: GraphStore, task: str) -> GraphStore:
    if "y" not in store.schema or "regression" in task:
        return store
    y, column = store.schema["y"], store.columns["y"]
    if "multiclass" in task:
        return _with_column(store, replace(y, shape=(), dtype="int64"), column.reshape(-1))
    return _with_column(store, replace(y, dtype="float32"), column)
