"""Attention in blocks by size: every batch of the bucket fits, and every path gives the same."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from support.attending import Attending, batch_of, batches
from support.drawn import examples
from support.parity import unknown_counts

import staticgraph as sg
from staticgraph.nn.context.size_classes import ClassedLayout
from staticgraph.sizes.attention import attention_path


@given(batches(), st.booleans())
@examples(150)
def test_every_batch_that_fits_the_bucket_fits_the_blocks(drawn, known):
    """Each real node has exactly one place, next to the nodes of its own graph only."""
    sizes, capacity = drawn
    batch = batch_of(sizes, capacity)
    batch = batch if known else unknown_counts(batch)
    layout = ClassedLayout.of(batch, attention_path(capacity, "size-classed"))
    ids = torch.arange(capacity.nodes, dtype=torch.float64) + 1
    blocks = layout.to_blocks(ids)
    rows = sorted(tuple(r[r > 0].tolist()) for block in blocks for r in block)
    ends = np.cumsum([0, *sizes])
    graphs = [tuple(float(i + 1) for i in range(a, b)) for a, b in itertools.pairwise(ends)]
    assert [row for row in rows if row] == sorted(graph for graph in graphs if graph)
    real = sum(sizes)
    back = layout.to_nodes(blocks)
    assert torch.equal(back[:real], ids[:real])
    assert not back[real:].any()


def test_the_bound_holds_for_the_sizes_it_was_made_for():
    """Blocks and widths match the definition: n // (i + 1) at the first graph of each block."""
    capacity = sg.Capacity(3295, 7093, 129, 222)
    path = attention_path(capacity)
    assert path.name == "size-classed"
    assert "6 blocks; entries at most: dense 6,357,636; size-classed 1,6" in path.reason
    assert path.entries * 3 < 129 * 222 * 222
    assert sum(block.graphs for block in path.blocks) == 129
    for block in path.blocks:
        assert block.width == min(222, 3294 // (block.first + 1))


def test_small_blocks_stay_in_one():
    """If all graphs are nearly as large as the largest, one block is best."""
    path = attention_path(sg.Capacity(18 * 32 + 1, 40 * 32, 33, 20))
    assert (path.name, len(path.blocks)) == ("dense", 1)
    for refuse in (
        lambda: attention_path(sg.Capacity(100, 200, 7), "sparse"),
        lambda: sg.convert(Attending(), attention="sparse"),
    ):
        with pytest.raises(ValueError, match="one of auto, dense, size-classed, varlen, kernel"):
            refuse()
