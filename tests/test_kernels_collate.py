"""The Triton kernels of collation without a GPU: compiled for sm_90, and their launches counted.

Their results are tested in interpreted_collate.py.
"""

from __future__ import annotations

import pytest
import torch
from support.collated import layout_for, odd_graphs, padded_ids, with_positions
from support.examples import EXAMPLES

import staticgraph as sg
from staticgraph.batches.collation.collate_arguments import collate_arguments

pytest.importorskip("triton", reason="Triton is not installed (Linux only)")

from support.compiled import launches

from staticgraph.kernels.collate import gpu


@pytest.mark.sampled(5)
@pytest.mark.parametrize("pointers", [True, False])
@pytest.mark.parametrize("name", ["esol", "PROTEINS", "positions", "odd"])
def test_compiles_for_hopper_in_two_launches_without_atomics(name, pointers):
    made = {"positions": lambda: with_positions(9), "odd": odd_graphs}
    store = made[name]() if name in made else sg.datasets.open(EXAMPLES / f"{name}.npz")
    layout = layout_for(store, range(6), pointers)
    tensors = layout.tensors(torch.zeros(layout.nbytes, dtype=torch.uint8))
    arguments = collate_arguments(store.to("cpu"), layout, tensors)
    found = launches(gpu.collate, padded_ids(range(6), layout), *arguments)
    assert [(each.name, each.atomics) for each in found] == [
        ("collate_starts", []),
        ("collate_rows", []),
    ]
