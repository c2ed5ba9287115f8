"""Batches of a store on the device beside those that the host fills, bit for bit."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import staticgraph as sg
from staticgraph.collate import fill
from staticgraph.kernels.collate import Arguments
from staticgraph.slots import SlotLayout


def layout_for(store, ids, pointers=True, spare=(7, 9, 3)) -> SlotLayout:
    """A bucket that these graphs fit into."""
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
    """What the host writes."""
    tensors = layout.tensors(torch.empty(layout.nbytes, dtype=torch.uint8))
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    fill(store, np.asarray(list(ids), np.int64), layout, arrays)
    return tensors


def collated(collate, moved, ids, layout) -> dict[str, Tensor]:
    """What ``collate`` writes over garbage."""
    garbage = torch.randint(0, 256, (layout.nbytes,), dtype=torch.uint8)
    tensors = layout.tensors(garbage.to(moved.device))
    for name in ("node_mask", "edge_mask", "graph_mask"):
        tensors[name].fill_(True)  # a bool that is neither 0 nor 1 is nothing that torch defines
    collate(padded_ids(ids, layout, moved.device), *Arguments.of(moved, layout, tensors))
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def assert_same_bits(found, expected) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        same = np.array_equal(bits(found[name]), bits(value))
        assert same, f"{name}: {found[name]} instead of {value}"


def bits(value: Tensor) -> np.ndarray:
    return value.contiguous().view(-1).numpy().view(np.uint8)
