"""Triton's collation, run by the interpreter on the CPU: the same bits as the CPU writes.

Started by test_kernels_triton.py in a separate process, like interpreted_cases.py.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from support.collated import (
    assert_same_bits,
    collated,
    filled,
    layout_for,
    odd_graphs,
    with_positions,
)
from support.examples import EXAMPLES

assert os.environ.get("TRITON_INTERPRET") == "1"

import staticgraph as sg  # noqa: E402
from staticgraph.kernels.collate import gpu as collate  # noqa: E402

STORES = odd_graphs(), with_positions(1000), with_positions(9).in_first_order()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("store", STORES, ids=["odd", "positions", "ordered"])
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
