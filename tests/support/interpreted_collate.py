"""Triton's collation, run by the interpreter on the CPU: the same bits as the CPU writes.

Started by test_kernels_triton.py in a separate process, like interpreted_cases.py.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from support.collated import assert_same_bits, collated, filled, layout_for
from support.examples import EXAMPLES

assert os.environ.get("TRITON_INTERPRET") == "1"

import staticgraph as sg  # noqa: E402
from staticgraph.kernels.collate import gpu as collate  # noqa: E402


def three_stores():
    """Yields stores with node, edge and graph fields, bits, rows wider than a block, positions, and
    one whose edges keep their order."""
    rng = np.random.default_rng(0)
    for name, shape in (("pos", (3,)), ("x", (70,)), ("R", (3,))):
        nodes, edges = np.array([3, 0, 1, 90, 2]), np.array([4, 0, 0, 130, 1])
        ends = [rng.integers(0, np.repeat(nodes, edges)) for _ in range(2)]
        fields = {
            name: ("node", rng.normal(size=(nodes.sum(), *shape)).astype(np.float32)),
            "one_hot": ("node", rng.integers(0, 2, (nodes.sum(), 11)).astype(np.float32)),
            "mask": ("node", rng.random(nodes.sum()) < 0.5),
            "edge_attr": ("edge", rng.integers(0, 9, (edges.sum(), 3))),
            "y": ("graph", rng.normal(size=(5, 2))),
            "labels": ("graph", np.where(rng.random((5, 3)) < 0.5, np.nan, 1).astype("f4")),
        }
        store = sg.GraphStore.from_arrays(nodes, edges, *ends, fields)
        yield store.in_first_order() if name == "R" else store


@pytest.mark.parametrize("store", list(three_stores()), ids=["positions", "wide", "ordered"])
@pytest.mark.parametrize("pointers", [True, False])
@pytest.mark.parametrize("ids", [[], [1], [2, 3, 1, 0, 3, 4]], ids=len)
def test_collate(store, pointers, ids, monkeypatch):
    """Must equal the host's batch bit for bit, with the graphs summed in several rounds."""
    monkeypatch.setattr(collate, "GRAPHS", 4)
    layout = layout_for(store, ids, pointers and store.schema.has_pointers)
    batch = collated(collate.collate, store.to("cpu"), ids, layout)
    assert_same_bits(batch, filled(store, ids, layout))


def test_collate_molecules():
    store = sg.datasets.open(EXAMPLES / "esol.npz")
    ids = np.random.default_rng(0).permutation(len(store))[:40]
    layout = layout_for(store, ids)
    batch = collated(collate.collate, store.to("cpu"), ids, layout)
    assert_same_bits(batch, filled(store, ids, layout))
