"""Compares batches of a store on the device with those that the host fills, bit for bit."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import staticgraph as sg
from staticgraph.batches.collation.collate import fill
from staticgraph.batches.collation.collate_arguments import collate_arguments
from staticgraph.batches.slots.slots import SlotLayout


def layout_for(store, ids, pointers=True, spare=(7, 9, 3)) -> SlotLayout:
    """Returns the layout of a bucket that these graphs fit into."""
    nodes, edges = store.sizes[list(ids)].sum(0) if len(ids) else (0, 0)
    largest = int(max(store.sizes[list(ids), 0], default=0))
    capacity = sg.Capacity.distinct(
        max(int(nodes), largest) + spare[0], int(edges) + spare[1], max(2, len(ids) + spare[2])
    )
    return SlotLayout(0, capacity, store.schema, pointers)


def padded_ids(ids, layout: SlotLayout, device="cpu") -> Tensor:
    padded = torch.full((layout.capacity.graphs,), -1, dtype=torch.int32)
    padded[: len(ids)] = torch.tensor(list(ids), dtype=torch.int32)
    return padded.to(device)


def filled(store, ids, layout) -> dict[str, Tensor]:
    """Returns the tensors that the host writes."""
    tensors = layout.tensors(torch.empty(layout.nbytes, dtype=torch.uint8))
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    fill(store, np.asarray(list(ids), np.int64), layout, arrays)
    return tensors


def collated(collate, moved, ids, layout) -> dict[str, Tensor]:
    """Returns the tensors that ``collate`` writes over garbage."""
    garbage = torch.randint(0, 256, (layout.nbytes,), dtype=torch.uint8)
    tensors = layout.tensors(garbage.to(moved.device))
    for name in ("node_mask", "edge_mask", "graph_mask"):
        tensors[name].fill_(True)  # torch does not define a bool that is neither 0 nor 1
    collate(padded_ids(ids, layout, moved.device), *collate_arguments(moved, layout, tensors))
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def assert_same_bits(actual, expected) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        same = np.array_equal(bits(actual[name]), bits(value))
        assert same, f"{name}: {actual[name]} instead of {value}"


def bits(value: Tensor) -> np.ndarray:
    return value.contiguous().view(-1).numpy().view(np.uint8)


def odd_graphs() -> sg.GraphStore:
    """Returns graphs of every dtype, NaN payloads, -0.0, one-hot and wide rows, masks; no edges."""
    rng = np.random.default_rng(0)
    nodes, edges = np.array([3, 0, 1, 40, 300, 2]), np.array([4, 0, 0, 90, 700, 1])
    n, e, g = nodes.sum(), edges.sum(), len(nodes)
    special = rng.normal(size=n).astype(np.float32)
    special[:3] = np.array([0x7FC00123, 0x80000000, 0xFF800000], np.uint32).view(np.float32)
    each = np.repeat(nodes, edges)
    labels = rng.integers(-127, 128, (g, 5)).astype(np.float32)
    labels[1:3, 1:] = np.nan
    other_nan = labels.copy()
    other_nan[1, 1] = np.array(0x7FC00123, np.uint32).view(np.float32)
    fields = {
        "labels": ("graph", labels),
        "wide_labels": ("edge", np.where(rng.random(e) < 0.5, np.nan, 1.0)),
        "other_nan": ("graph", other_nan),
        "negative_zero": ("graph", np.where(labels == labels, np.float32(-0.0), labels)),
        "x": ("node", rng.integers(0, 2, (n, 11)).astype(np.float32)),
        "special": ("node", special),
        "mask": ("node", rng.random(n) < 0.5),
        "masks": ("node", rng.random((n, 3)) < 0.5),
        "half": ("node", rng.normal(size=(n, 2)).astype(np.float16)),
        "small": ("edge", rng.integers(-100, 100, (e, 2)).astype(np.int16)),
        "unsigned": ("edge", rng.integers(0, 60_000, e).astype(np.uint16)),
        "large": ("edge", rng.integers(0, 40_000, e)),
        "huge": ("edge", rng.integers(0, 2**32, e).astype(np.uint32)),
        "nothing": ("edge", np.zeros((e, 0))),
        "y": ("graph", rng.normal(size=(g, 2))),
        "wide": ("graph", rng.normal(size=(g, 70)).astype(np.float32)),
        "cell": ("graph", rng.normal(size=(3 * g, 3))),
        "flags": ("graph", rng.integers(0, 2, (2 * g, 3))),
        "largest": ("graph", np.full(g, 2**64 - 1, np.uint64)),
    }
    return sg.GraphStore.from_arrays(
        nodes,
        edges,
        rng.integers(0, each),
        rng.integers(0, each),
        fields,
        rows={"cell": 3, "flags": 2},
    )


def with_positions(spread: float) -> sg.GraphStore:
    rng = np.random.default_rng(1)
    nodes, edges = rng.integers(1, 9, 30), rng.integers(0, 20, 30)
    each = np.repeat(nodes, edges)
    return sg.GraphStore.from_arrays(
        nodes,
        edges,
        rng.integers(0, each),
        rng.integers(0, each),
        {"pos": ("node", np.floor(rng.random((nodes.sum(), 3)) * spread).astype(np.float32))},
    )
