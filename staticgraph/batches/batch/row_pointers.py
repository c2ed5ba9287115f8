"""Row pointers of a batch that was made without them, for code that reads them.

A store keeps row pointers and the transpose, and a loader with ``pointers=True`` only moves them.
Any other batch has its edges sorted by destination all the same, so the pointers follow from
``edge_index``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.kernels.edges import order_edges
from staticgraph.schema import POINTERS
from staticgraph.sizes.whole_numbers import pointer_dtype

UNSORTED = (
    "batch.edge_index was exchanged or written to, and its edges are no longer in order of "
    "destination, as fused loops read them: exchange the edges inside the model's forward, which "
    "leaves the batch as it is; or sort them, and every field of edges, by edge_index[1]; or take "
    "mode='eager' and a model without kernels=True"
)


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


def _pointers(batch: StaticBatch) -> Iterator[Tensor]:
    src, dst = batch.edge_index
    if bool((dst.diff() < 0).any()):  # replaced edges: a loader's are always sorted
        raise ValueError(UNSORTED)
    dtype = getattr(torch, pointer_dtype(batch.num_edges))
    return (
        array.to(dtype) for array in order_edges(src, dst, batch.num_nodes, batch.num_nodes)[:-1]
    )
