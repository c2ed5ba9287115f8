"""Row pointers of a batch that was made without them, for code that reads them.

A store keeps row pointers and the transpose, and a loader with ``pointers=True`` only moves them.
Any other batch has its edges sorted by destination all the same, so the pointers follow from
``edge_index``: two counts and one pass over the sources, 20 us for 7,000 edges.
"""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.jit import kernel
from staticgraph.schema import POINTERS
from staticgraph.sizes.whole_numbers import pointer_dtype
from staticgraph.store.columns import Array

UNSORTED = (
    "batch.edge_index was exchanged or written to, and its edges are no longer in order of "
    "destination, as fused loops read them: exchange the edges inside the model's forward, which "
    "leaves the batch as it is; or sort them, and every field of edges, by edge_index[1]; or take "
    "mode='eager' and a model without kernels=True"
)


@kernel
def _point(edge_index: Array, row_ptr: Array, col_ptr: Array, transpose: Array) -> bool:
    """Fills the arrays if the edges are sorted by destination; returns whether they are."""
    nodes, edges = len(row_ptr) - 1, edge_index.shape[1]
    for e in range(1, edges):
        if edge_index[1, e] < edge_index[1, e - 1]:
            return False
    row_ptr[:] = 0
    col_ptr[:] = 0
    for e in range(edges):
        col_ptr[edge_index[0, e] + 1] += 1
        row_ptr[edge_index[1, e] + 1] += 1
    for v in range(nodes):
        col_ptr[v + 1] += col_ptr[v]
        row_ptr[v + 1] += row_ptr[v]
    for e in range(edges):  # advances the start of each source, which is restored below
        place = col_ptr[edge_index[0, e]]
        transpose[place] = e
        col_ptr[edge_index[0, e]] = place + 1
    for v in range(nodes, 0, -1):
        col_ptr[v] = col_ptr[v - 1]
    col_ptr[0] = 0
    return True


def with_pointers(batch: StaticBatch) -> StaticBatch:
    """Returns the batch with ``row_ptr``, ``col_ptr`` and ``transpose``; itself if it has them.

    :class:`staticgraph.batches.slots.slots.SlotLayout` describes these arrays.

    Raises:
        ValueError: its edges were replaced or written to, and are no longer sorted by destination.
    """
    if batch.layout.pointers and POINTERS[0] in batch.tensors():
        return batch
    layout = batch.layout if batch.layout.pointers else batch.layout.counterpart
    pointers: dict[str, Tensor] = dict(zip(POINTERS, _pointers(batch), strict=True))
    tensors = batch.tensors()
    arrays = {**tensors, **pointers}
    every = {entry.name: arrays[entry.name] for entry in layout.entries}
    more = {name: tensor for name, tensor in tensors.items() if name not in every}
    pointed = StaticBatch(layout, {**every, **more}, batch.real, batch._lease, batch._objects)
    pointed._extra = batch._extra
    return pointed


def _pointers(batch: StaticBatch) -> tuple[Tensor, Tensor, Tensor]:
    edge_index, nodes, edges = batch.edge_index, batch.num_nodes, batch.num_edges
    dtype = getattr(torch, pointer_dtype(edges))
    if edge_index.device.type == "cpu":
        row_ptr = torch.empty(nodes + 1, dtype=dtype)
        col_ptr, transpose = torch.empty_like(row_ptr), torch.empty(edges, dtype=dtype)
        arrays = (edge_index, row_ptr, col_ptr, transpose)
        if not _point(*(array.numpy() for array in arrays)):
            raise ValueError(UNSORTED)
        return row_ptr, col_ptr, transpose
    if bool((edge_index[1].diff() < 0).any()):  # replaced edges: a loader's are always sorted
        raise ValueError(UNSORTED)
    every = torch.arange(nodes + 1, device=edge_index.device)
    source, order = edge_index[0].sort(stable=True)
    row_ptr = torch.searchsorted(edge_index[1].contiguous(), every)
    return row_ptr.to(dtype), torch.searchsorted(source, every).to(dtype), order.to(dtype)
