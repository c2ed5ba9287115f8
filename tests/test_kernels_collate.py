"""The Triton kernels of collation without a GPU: compiled for sm_90, and their launches counted.

Their results are tested in interpreted_collate.py.
"""

from __future__ import annotations

import pytest
import torch
from support.collated import layout_for, odd_graphs, padded_ids, with_positions
from support.examples import EXAMPLES
from torch import Tensor

import staticgraph as sg
from staticgraph.batches.collation.collate_arguments import collate_arguments
from staticgraph.dryrun.operations import OperationCounter
from staticgraph.kernels.collate import LAUNCHES, collate, collate_reference

triton = pytest.importorskip("triton", reason="Triton is not installed (Linux only)")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from staticgraph.kernels.collate import gpu  # noqa: E402

HOPPER = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
}


class Noted:
    """A stand-in for a kernel that records its launches."""

    def __init__(self, kernel, launches) -> None:
        self.kernel, self.launches = kernel, launches

    def __getitem__(self, grid):
        def launch(*args, **options):
            given = dict(zip((p.name for p in self.kernel.params), args, strict=False))
            self.launches.append((self.kernel, grid, {**given, **options}))

        return launch


def launches_of(store, monkeypatch, pointers=True) -> list:
    layout = layout_for(store, range(6), pointers)
    tensors = layout.tensors(torch.zeros(layout.nbytes, dtype=torch.uint8))
    launches = []
    for name in ("starts_kernel", "rows_kernel"):
        monkeypatch.setattr(gpu, name, Noted(getattr(gpu, name), launches))
    arguments = collate_arguments(store.to("cpu"), layout, tensors)
    gpu.collate(padded_ids(range(6), layout), *arguments)
    return launches


def type_of(value):
    if isinstance(value, tuple):
        return tuple(map(type_of, value))
    return TYPES[value.dtype] if isinstance(value, Tensor) else "i32"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pointers", [True, False])
@pytest.mark.parametrize("name", ["esol", "PROTEINS", "positions", "odd"])
def test_compiles_for_hopper_in_two_launches_without_atomics(name, pointers, monkeypatch):
    made = {"positions": lambda: with_positions(9), "odd": odd_graphs}
    store = made[name]() if name in made else sg.datasets.open(EXAMPLES / f"{name}.npz")
    launches = launches_of(store, monkeypatch, pointers)
    assert len(launches) == LAUNCHES
    for kernel, grid, given in launches:
        assert grid[0] >= 1
        constants = {p.name: given[p.name] for p in kernel.params if p.is_constexpr}
        types = {
            p.name: "constexpr" if p.is_constexpr else type_of(given[p.name]) for p in kernel.params
        }
        source = ASTSource(kernel, types, constants)
        assembly = triton.compile(source, target=HOPPER).asm["ptx"]
        assert ".target sm_90" in assembly
        assert not [line for line in assembly.splitlines() if "atom." in line or "red.gl" in line]


def test_operations_of_the_reference(esol):
    """The number of operations that two launches replace, published in docs/ondevice.md."""
    layout = layout_for(esol, range(20))
    tensors = layout.tensors(torch.zeros(layout.nbytes, dtype=torch.uint8))
    arguments = collate_arguments(esol.to("cpu"), layout, tensors)
    ids = padded_ids(range(20), layout)
    with OperationCounter() as counter:
        collate_reference(ids, *arguments)
    assert counter.operations.total() == 157
    with OperationCounter() as counter:
        collate(ids, arguments)
    assert (counter.operations.total(), counter.operations.launches) == (1, LAUNCHES)
