"""Row pointers of a batch, compared with a sort of its edges; absent unless requested."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.alike import real_ids
from support.drawn import examples

import staticgraph as sg
from staticgraph.batches.batch.row_pointers import with_pointers
from staticgraph.schema import Field


def by_sorting(nodes: torch.Tensor, num_nodes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The order of the edges by one end, and the start of each node's edges in it."""
    order = torch.argsort(nodes, stable=True)
    starts = torch.searchsorted(nodes[order].contiguous(), torch.arange(num_nodes + 1))
    return order, starts


@examples(25)
@given(data=st.data())
def test_pointers_are_those_of_a_stable_sort(data, esol):
    ids = data.draw(st.lists(st.integers(0, len(esol) - 1), max_size=9))
    batch = sg.StaticBatch.of(esol, ids, (510, 1130, 12), pointers=True)
    src, dst = batch.edge_index
    order, starts = by_sorting(src, batch.num_nodes)
    assert torch.equal(batch.transpose.long(), order)
    assert torch.equal(batch.col_ptr.long(), starts)
    order, starts = by_sorting(dst, batch.num_nodes)
    assert torch.equal(order, torch.arange(batch.num_edges))
    assert torch.equal(batch.row_ptr.long(), starts)


def test_stale_pointers_are_overwritten(esol):
    """A reused slot, full and then nearly empty, equals a fresh batch."""
    plan = sg.BucketPlan.of([(300, 700, 6)])
    loader = sg.StaticLoader(esol, plan, indices=range(40), exact=False, slots=1, pointers=True)
    for batch in loader:
        ids = real_ids(batch)
        fresh = sg.StaticBatch.of(esol, ids, plan.capacities[0], pointers=True)
        for name in ("row_ptr", "col_ptr", "transpose"):
            assert torch.equal(batch[name], fresh[name])
        del batch


def test_nothing_is_carried_unless_asked_for(esol):
    plain = sg.StaticBatch.of(esol, [0, 1], (60, 130, 4))
    assert not {"row_ptr", "col_ptr", "transpose"} & set(plain.keys())
    pointers = sg.StaticBatch.of(esol, [0, 1], (60, 130, 4), pointers=True)
    assert plain.layout.nbytes < pointers.layout.nbytes
    assert {"row_ptr", "col_ptr", "transpose"} <= set(pointers.keys())


def test_batches_that_get_pointers_later_share_a_layout(esol):
    """Laying out the arrays costs five times as much as the pointers."""
    plan = sg.BucketPlan.of([(300, 700, 6)])
    batches = list(sg.StaticLoader(esol, plan, indices=range(20), exact=False, slots=9))
    pointed = [with_pointers(batch) for batch in batches]
    assert len(pointed) > 1
    assert all(each.layout is pointed[0].layout for each in pointed)
    again = [each.without_pointers().layout for each in pointed]
    assert all(layout is again[0] for layout in again)
    assert again[0].entries == batches[0].layout.entries


def test_a_field_of_that_name_is_refused():
    with pytest.raises(ValueError, match="'row_ptr': every batch has an attribute of this name"):
        sg.Schema((Field("row_ptr", "node", (), "int64"),))
