"""Random graphs through every loader: each graph once per epoch, batched as PyG does it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from support.alike import real_ids
from torch import Tensor
from torch_geometric.data import Batch

import staticgraph as sg

from .equal import equal
from .graph_sets import GraphSet, graph_sets
from .subject import Subject
from .typed_batch import check_typed_batch
from .typed_sets import TypedSet, typed_sets


@dataclass(frozen=True)
class Case:
    """Data, a plan, and the options of a loader.

    Attributes:
        data: the graphs, homogeneous or of several types.
        batch_size: of exact batches; None for packed batches.
        buckets: the number of capacities, for packed batches.
        exact: None leaves it to the plan.
        shuffle, seed, workers, pointers, window: of the loader; graphs of several types have no
            pointers.
        moved: whether the store is "on the device", which here is the CPU; sets with custom index
            fields or several types are not moved.
        share: the number of ranks; all of them are run, one after another.
        half: whether the loader gets only every second graph.
        break_off: the number of batches after which the first epoch is interrupted and resumed
            in another loader; 0 for no interruption.
    """

    data: GraphSet | TypedSet
    batch_size: int | None
    buckets: int
    exact: bool | None
    shuffle: bool
    seed: int
    workers: int
    pointers: bool
    window: int | None
    moved: bool
    share: int
    half: bool
    break_off: int

    def plan(self, store: sg.GraphStore) -> sg.BucketPlan:
        if self.batch_size is not None:
            return sg.plan_buckets(store, self.batch_size)
        return sg.plan_buckets(store, num_buckets=self.buckets, graphs=4)

    def loaders(self, store: sg.GraphStore, plan: sg.BucketPlan) -> list[sg.StaticLoader]:
        """One loader per rank."""
        window = {} if self.exact or (self.exact is None and self.batch_size) else {
            "window": self.window
        }  # fmt: skip
        return [
            sg.StaticLoader(
                store.to("cpu") if self.moved and self.data.rules == "none" else store,
                plan,
                indices=range(0, len(store), 2) if self.half else None,
                exact=False if self.batch_size is None else self.exact,
                shuffle=self.shuffle,
                seed=self.seed,
                num_workers=self.workers,
                pointers=self.pointers and self.data.rules != "typed",
                rank=rank,
                world_size=self.share,
                **window,
            )
            for rank in range(self.share)
        ]


def cases() -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        graph_sets() | graph_sets() | typed_sets(),
        st.none() | st.integers(1, 6),
        st.integers(1, 3),
        st.sampled_from((None, True, False)),
        st.booleans(),
        st.integers(0, 2**31),
        st.sampled_from((0, 0, 1, 3)),
        st.booleans(),
        st.sampled_from((None, 1, 4, 8)),
        st.booleans(),
        st.sampled_from((1, 1, 1, 2, 3)),
        st.booleans(),
        st.integers(0, 4),
    )


def check(case: Case) -> None:
    graphs = case.data.graphs()
    store = sg.GraphStore.from_pyg(graphs, levels=case.data.levels)
    plan = case.plan(store)
    expected = case.data.expected()
    compared = check_typed_batch if isinstance(case.data, TypedSet) else check_batch
    wanted = sorted(range(0, len(store), 2) if case.half else range(len(store)))
    loaders = case.loaders(store, plan)
    for epoch in range(2):
        seen: list[int] = []
        steps = set()
        for rank, loader in enumerate(loaders):
            count = 0
            for batch in _epoch(case, store, plan, loader, rank, epoch):
                seen += compared(batch, expected)
                count += 1
            steps.add(count)
        assert len(steps) == 1, f"ranks take {steps} steps"
        assert sorted(seen) == wanted, f"epoch {epoch} has the graphs {sorted(seen)}"


def _epoch(
    case: Case, store: sg.GraphStore, plan: sg.BucketPlan, loader: Any, rank: int, epoch: int
) -> Iterator[sg.StaticBatch]:
    if epoch or not case.break_off:
        yield from loader
        return
    batches = iter(loader)
    for _ in range(case.break_off):
        batch = next(batches, None)
        if batch is None:
            return
        yield batch
    state = loader.state_dict()
    del batch, batches
    other = case.loaders(store, plan)[rank]
    other.load_state_dict(state)
    yield from other
    loader.load_state_dict(other.state_dict())


def check_batch(batch: sg.StaticBatch, graphs: list[Any]) -> list[int]:
    """Compares a batch with PyG's batch of the same graphs; returns their numbers."""
    ids = real_ids(batch)
    assert batch.graph_ids[len(ids) :].eq(-1).all()
    counts = {
        "node": int(batch.node_mask.sum()),
        "edge": int(batch.edge_mask.sum()),
        "graph": len(ids),
    }
    for found, mask in zip(
        counts.values(), (batch.node_mask, batch.edge_mask, batch.graph_mask), strict=True
    ):
        assert mask[:found].all(), "real rows come first"
    _check_padding(batch, counts)
    if not ids:
        return ids
    theirs = Batch.from_data_list([graphs[i] for i in ids])
    equal(batch.edge_index[:, : counts["edge"]], theirs.edge_index, "edge_index")
    equal(batch.batch[: counts["node"]], theirs.batch, "batch")
    equal(batch.ptr[: len(ids) + 1], theirs.ptr, "ptr")
    if batch.layout.pointers:
        _check_pointers(batch, counts)
    return check_fields(batch, graphs)


def check_fields(batch: sg.StaticBatch, graphs: list[Any]) -> list[int]:
    """Compares all fields, in the batch and in its single graphs; returns their numbers."""
    ids = real_ids(batch)
    theirs = Batch.from_data_list([graphs[i] for i in ids])
    for field in batch.layout.schema:
        ours = batch[field.name]
        at = field.cat_dim or 0
        value = theirs[field.name]
        if not isinstance(value, Tensor) or value.shape[at] > ours.shape[at]:
            raise AssertionError(f"{field.name} is {value!r} in PyG, {ours.shape} here")
        equal(ours.narrow(at, 0, value.shape[at]), value, field.name)
    for found, graph in zip(batch.to_data_list(), (graphs[i] for i in ids), strict=True):
        for name, value in graph.to_dict().items():
            if name != "num_nodes":
                given = value if isinstance(value, Tensor) else torch.tensor([value])
                equal(found[name], given, f"{name}, unpadded")
        assert found.num_nodes == graph.num_nodes
    return ids


def _check_padding(batch: sg.StaticBatch, counts: dict[str, int]) -> None:
    """Padding edges join padding nodes, which belong to padding graphs."""
    ends = batch.edge_index[:, counts["edge"] :]
    assert ends.numel() == 0 or int(ends.min()) >= counts["node"]
    assert ends.numel() == 0 or int(ends.max()) < batch.num_nodes
    owners = batch.batch[counts["node"] :]
    assert owners.numel() > 0, "no node is kept for padding"
    assert int(owners.min()) >= counts["graph"]
    assert int(owners.max()) < batch.num_graphs
    assert bool((batch.batch.diff() >= 0).all()), "graphs are in order"
    assert bool((batch.edge_index[1].diff() >= 0).all()), "edges are by destination"


def _check_pointers(batch: sg.StaticBatch, counts: dict[str, int]) -> None:
    """Pointers count edges by destination and by source; ``transpose`` sorts them by source."""
    source, target = batch.edge_index
    for pointer, ends in ((batch.row_ptr, target), (batch.col_ptr, source)):
        counted = torch.bincount(ends, minlength=batch.num_nodes).cumsum(0)
        assert torch.equal(pointer[1:].long(), counted)
        assert int(pointer[0]) == 0
    order = batch.transpose.long()
    assert torch.equal(order.sort().values, torch.arange(batch.num_edges))
    assert bool((source[order].diff() >= 0).all()), "the transpose is by source"


SUBJECT = Subject("loading", cases, check, 40)
