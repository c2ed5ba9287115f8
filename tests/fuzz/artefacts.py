"""The library's files on disk: how each is written, read back in full, and which errors it raises.

Each artefact is small, so that damage reaches most of its bytes, and is made from two seeds, so
that a file of one can replace the same file of the other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

import staticgraph as sg
from staticgraph.errors import CheckpointCorrupt, StoreCorrupt
from staticgraph.memory.model import MemoryModel
from staticgraph.models import build
from staticgraph.outofcore import PartitionedGraph, partition
from staticgraph.outofcore.disk.embeddings import EmbeddingFile
from staticgraph.runner import way_choice
from staticgraph.training import checkpoint


@dataclass(frozen=True)
class Artefact:
    """One kind of file or folder.

    Attributes:
        write: writes the artefact of a seed into a folder.
        read: returns the full contents as plain values and arrays; the number selects how it reads.
        raises: the exceptions that reading a damaged one may raise.
    """

    write: Callable[[Path, int], Any]
    read: Callable[[Path, int], Any]
    raises: tuple[type[Exception], ...]


@cache
def pristine(name: str, seed: int) -> Path:
    """A folder with an undamaged artefact, written once per process."""
    folder = Path(tempfile.mkdtemp(prefix=f"fuzz_{name}_"))
    ARTEFACTS[name].write(folder, seed)
    return folder


# ---------------------------------------------------------------------- stores


class Marked(Data):
    """Data whose field ``marked`` holds node indices, in rows that match no level."""

    def __inc__(self, key: str, value: Any, *args: Any, **kwargs: Any) -> Any:
        return self.num_nodes if key == "marked" else super().__inc__(key, value, *args, **kwargs)


def _homogeneous(rng: np.random.Generator) -> list[Data]:
    made = []
    for n, e in ((3, 4), (1, 0), (4, 6), (2, 1)):
        made.append(
            Marked(
                x=torch.from_numpy(rng.normal(size=(n, 2)).astype(np.float32)),
                edge_index=torch.from_numpy(rng.integers(0, n, (2, e))),
                edge_attr=torch.from_numpy(rng.integers(0, 9, e)),
                marked=torch.from_numpy(rng.integers(0, n, 2 * n - 1)),
                y=torch.from_numpy(rng.normal(size=(1, 1)).astype(np.float32)),
            )
        )
    return made


def _typed(rng: np.random.Generator) -> list[HeteroData]:
    made = []
    for n in (3, 2, 1):
        data = HeteroData()
        data["a"].x = torch.from_numpy(rng.normal(size=(n, 1)))
        data["b"].x = torch.from_numpy(rng.normal(size=(n + 1, 2)))
        data["a", "to", "b"].edge_index = torch.from_numpy(rng.integers(0, n, (2, 2 * n - 2)))
        data.y = torch.from_numpy(rng.normal(size=(1, 1)))
        made.append(data)
    return made


def _store(make: Callable[[np.random.Generator], list[Any]], seed: int) -> sg.GraphStore:
    store = sg.GraphStore.from_pyg(make(np.random.default_rng(seed)), name="s", progress=False)
    return store.with_splits(train=range(len(store) - 1), val=[len(store) - 1], test=[])


def _read_store(folder: Path, way: int) -> Any:
    store = sg.GraphStore.load(folder / "s", verify=(None, False, True)[way % 3])
    graphs = [store[graph].to_dict() for graph in range(len(store))]
    batches = []
    for batch in sg.StaticLoader(
        store, sg.plan_buckets(store, 2), pointers=not store.schema.hetero
    ):
        batches.append({name: value.clone() for name, value in batch.tensors().items()})
    return [
        dict(store.arrays()), store.schema.to_dict(), store.name, graphs, batches,
    ]  # fmt: skip


def _store_artefact(make: Callable[[np.random.Generator], list[Any]]) -> Artefact:
    return Artefact(
        lambda folder, seed: _store(make, seed).save(folder / "s"),
        _read_store,
        (StoreCorrupt, FileNotFoundError),
    )


# ---------------------------------------------------------------------- partitioned graphs


def _partition(folder: Path, seed: int, relations: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, 11, 40), rng.integers(0, 11, 40)]
    rows += [rng.integers(0, relations, 40)] if relations else []
    features = rng.normal(size=(11, 2)).astype(np.float32)
    partition(np.stack(rows), 11, 3, folder / "g", features=features, seed=seed)


def _read_partitioned(folder: Path, way: int) -> Any:
    graph = PartitionedGraph(folder / "g", verify=way % 2 == 1)
    features = np.zeros((3, graph.partition_size, 2), np.float32)
    for k in range(3):
        graph.read_features(k, features[k])
    edges = [graph.read_cells([(i, j)]) for i in range(3) for j in range(3)]
    return [np.array(graph.node_ids), features, edges, graph.degrees("both"), graph.digest]


def _embeddings(folder: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    file = EmbeddingFile.create(
        folder, 3, 4, 2, lambda k: rng.normal(size=(4, 2)), {"bias": rng.normal(size=5)}
    )
    file.write(1, rng.normal(size=(4, 2)).astype(np.float32), np.ones((4, 2), np.float32))
    file.commit()
    file.close()


def _read_embeddings(folder: Path, way: int) -> Any:
    file = EmbeddingFile(folder, cached=way % 2 == 0)
    read = []
    try:
        for k in range(file.num_partitions):
            values = np.empty((file.partition_size, file.dimension), np.float32)
            file.read(k, values, sums := np.empty_like(values))
            read += [values, sums]
        return [file.epoch, file.extras, read]
    finally:
        file.close()


# ---------------------------------------------------------------------- documents and checkpoints


def _memory(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)

    def loss(out: torch.Tensor, batch: sg.StaticBatch) -> torch.Tensor:
        return (out - batch.y).square()

    store = _store(_homogeneous, seed)
    model = build("gin", store, hidden=4 + seed, layers=1)
    sg.probe(model, store, loss=loss).save(folder / "memory.json")


MADE_FOR = {"torch": "2", "model": "m"}


def _choices(folder: Path, seed: int) -> None:
    times = {"eager": [1.0 + seed, 2.0, 3.0], "compiled": [0.5, 1.0, 1.5]}
    way_choice.save(folder / "c.json", [way_choice.choose(0, "step", times, {"x": "no"})], MADE_FOR)


def _checkpoint(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    checkpoint.save(folder, model=model.state_dict(), step=seed, loader={"epoch": 1})


ARTEFACTS = {
    "store": _store_artefact(_homogeneous),
    "typed": _store_artefact(_typed),
    "partitioned": Artefact(
        lambda folder, seed: _partition(folder, seed, 0),
        _read_partitioned,
        (StoreCorrupt, FileNotFoundError),
    ),
    "relations": Artefact(
        lambda folder, seed: _partition(folder, seed, 3),
        _read_partitioned,
        (StoreCorrupt, FileNotFoundError),
    ),
    "embeddings": Artefact(_embeddings, _read_embeddings, (StoreCorrupt, FileNotFoundError)),
    "plan": Artefact(
        lambda folder, seed: sg.plan_buckets(_store(_homogeneous, seed), 2).save(folder / "p.json"),
        lambda folder, way: sg.BucketPlan.load(folder / "p.json"),
        (ValueError, FileNotFoundError),
    ),
    "memory": Artefact(
        _memory,
        lambda folder, way: MemoryModel.load(folder / "memory.json").to_dict(),
        (ValueError, FileNotFoundError),
    ),
    "choices": Artefact(
        _choices,
        lambda folder, way: way_choice.load(folder / "c.json", MADE_FOR),
        (ValueError, FileNotFoundError),
    ),
    "checkpoint": Artefact(
        _checkpoint,
        lambda folder, way: checkpoint.load(folder),
        (CheckpointCorrupt, FileNotFoundError),
    ),
}
