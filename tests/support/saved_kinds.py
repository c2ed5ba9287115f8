"""What this library saves, by kind: ``write`` saves a number, ``read`` returns it, checked."""

from __future__ import annotations

import hashlib
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch import nn

import staticgraph as sg
from staticgraph.files import atomic
from staticgraph.outofcore import PartitionedGraph, partition
from staticgraph.runner import export
from staticgraph.runner.export_manifest import ExportManifest
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.store.graph_store import GraphStore
from staticgraph.store.writer import StoreWriter
from staticgraph.training import checkpoint


def store_of(value: float) -> GraphStore:
    x = np.full((3, 1), value, np.float32)
    return GraphStore.from_arrays(
        np.array([2, 1]),
        np.array([1, 0]),
        np.array([0]),
        np.array([1]),
        {"x": ("node", x)},
        name=str(value),
    )


class Plan:
    name = "plan.json"

    @staticmethod
    def write(path: Path, number: int) -> None:
        sg.BucketPlan.of([(number, 20, 4)]).save(path)

    @staticmethod
    def read(path: Path) -> int:
        return sg.BucketPlan.load(path).capacities[0].nodes


class Checkpoint:
    name = checkpoint.CHECKPOINT

    @staticmethod
    def write(path: Path, number: int) -> None:
        checkpoint.save(path.parent, model={"w": torch.full((50,), number)})

    @staticmethod
    def read(path: Path) -> int:
        return int(checkpoint.load(path.parent)["model"]["w"].unique())


class Text:
    name = "report.json"

    @staticmethod
    def write(path: Path, number: int) -> None:
        atomic.write_text(path, f"{number}\n" * 500)

    @staticmethod
    def read(path: Path) -> int:
        (number,) = set(path.read_text().split())
        return int(number)


class Store:
    name = "store"

    @staticmethod
    def write(path: Path, number: int) -> None:
        store_of(number + 0.5).save(path, overwrite=True)

    @staticmethod
    def read(path: Path) -> int:
        store = GraphStore.load(path, verify=True)
        assert store.name == str(store.columns["x"][0, 0])
        return int(store.columns["x"][0, 0])


class Parts(Store):
    """A store in two parts, which the next writer goes on with if a fault left them."""

    @staticmethod
    def write(path: Path, number: int) -> None:
        writer = StoreWriter(path, overwrite=True, name=str(number + 0.5))
        for _ in range(writer.committed, 4, 2):
            writer.append_part(store_of(number + 0.5))
        writer.finish()


class Graph:
    name = "graph"

    @staticmethod
    def write(path: Path, number: int) -> None:
        edges = np.random.default_rng(number).integers(0, 6, (2, 8 + number))
        partition(edges, 6, 2, path, seed=number, overwrite=True)

    @staticmethod
    def read(path: Path) -> int:
        graph = PartitionedGraph(path, verify=True)
        assert len(graph.read_cells([(i, j) for i in (0, 1) for j in (0, 1)])) == graph.num_edges
        return graph.num_edges - 8


class Export:
    """An exported model whose package is a number, since compiling one takes seconds."""

    name = "export"

    @staticmethod
    def write(path: Path, number: int) -> None:
        def compiled(package: Path, *_: object) -> str:
            atomic.write_text(package, str(number))
            return "tensor"

        subject = Subject(nn.Linear(1, 1), check_padding=False)
        stubs = {"_compile": compiled, "check_entries": lambda *_: None}
        with mock.patch.multiple(export, **stubs):
            capacities = sg.BucketPlan.of([(10, 20, 4)]).capacities
            plan = sg.BucketPlan(capacities, schema=store_of(1).schema)
            export.export(path, mock.Mock(), subject, plan, overwrite=True, progress=False)

    @staticmethod
    def read(path: Path) -> int:
        (digest,) = ExportManifest.read(path).packages
        (package,) = (file for file in path.iterdir() if file.suffix != ".json")
        assert hashlib.sha256(package.read_bytes()).hexdigest() == digest
        return int(package.read_text())


FILES = [Plan, Checkpoint, Text]
FOLDERS = [Store, Graph, Export]
KINDS = [*FILES, *FOLDERS]
