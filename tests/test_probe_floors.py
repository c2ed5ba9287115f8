"""Blocks with a minimum width, whatever the graphs: each side of that width has its own sum."""

from __future__ import annotations

import pytest
import torch
from support.alike import squared
from support.parity import STORE
from support.probed_tasks import GivenReader
from torch import nn
from torch_geometric.nn import GATConv
from torch_geometric.utils import to_dense_batch

from staticgraph.errors import FitRefused
from staticgraph.memory.memory_model import MemoryModel
from staticgraph.probing.fake_tensors import FakeTensorReader
from staticgraph.probing.fit_readings import match_moments
from staticgraph.probing.probe import probe
from staticgraph.probing.step_reading import Probed, Reading
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.computation.model_setup import Subject

NEAR = Capacity(200, 500, 20, 12)


class Ranked(nn.Module):
    """Keeps the first ``k`` nodes of each graph, from a block of width at least ``k``.

    Users write this by hand if a library has no layer for it. Several values of ``k`` are possible.
    """

    def __init__(self, *counts: int) -> None:
        super().__init__()
        self.conv, self.counts = GATConv(8, 16), counts
        self.head = nn.Linear(16 * sum(counts), 2)

    def forward(self, data):
        h = self.conv(data.x.float(), data.edge_index).relu()
        _, mask = to_dense_batch(h, data.batch)  # the width of the widest graph, as a host number
        rows = []
        for k in self.counts:
            dense, _ = to_dense_batch(h, data.batch, max_num_nodes=max(mask.size(1), k))
            wide = dense.exp() * dense.sigmoid()
            rows.append((wide[:, :k] if wide.size(1) > k else wide).flatten(1))
        return self.head(torch.cat(rows, 1))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kept", [(7,), (20,), (5, 16)], ids=str)
def test_a_model_of_ones_own_is_predicted_on_either_side_of_the_width_that_it_keeps(kept):
    """Graphs of 3 to 12 nodes are probed; predictions cover 1 to 48 nodes, including each floor and
    one node more, where the block is cut for the first time."""
    model = Ranked(*kept)
    memory = probe(model, STORE, loss=squared)
    assert memory.fit.worst < 0.01
    assert tuple(piece.above for piece in memory.fit.pieces) == kept
    widths = {1, 2, 12, 24, 48, *kept, *(k + 1 for k in kept)}
    with FakeTensorReader().open(Probed(Subject(model, squared), STORE.schema)) as step_at:
        for width in sorted(widths):
            capacity = Capacity(900, 2_300, 200, width)
            assert memory.fit.predict(capacity) == pytest.approx(step_at(capacity).step, rel=0.03)


def test_a_width_that_is_always_the_same_is_no_floor():
    """No graph of the data is wider, so one more capacity is read."""
    memory = probe(
        nn.Linear(2, 2),
        STORE,
        reader=GivenReader(lambda c: Reading(9 * c.nodes + 50 * c.graphs, widths=(20,))),
    )
    assert not memory.fit.pieces
    assert max(point.capacity.max_graph_nodes for point in memory.points) > 20


def test_what_a_side_does_not_explain_is_refused_by_name():
    def uneven(capacity: Capacity) -> Reading:
        widths = (max(6, capacity.max_graph_nodes),)
        wild = 1 + capacity.edges % 7 if capacity.max_graph_nodes > 6 else 1
        return Reading(1000 * wild * capacity.nodes, widths=widths)

    with pytest.raises(FitRefused, match=r"with more than 6 nodes in .*: .* misses"):
        probe(nn.Linear(2, 2), STORE, reader=GivenReader(uneven))


def test_pieces_are_saved_and_shown(tmp_path):
    memory = probe(
        nn.Linear(2, 2),
        STORE,
        reader=GivenReader(
            lambda c: Reading(
                (10 if c.max_graph_nodes > 6 else 5) * c.nodes + 7 * c.graphs,
                widths=(max(6, c.max_graph_nodes),),
            )
        ),
    )
    assert [piece.above for piece in memory.fit.pieces] == [6]
    assert "more than 6 nodes in the largest graph" in str(memory)
    memory.save(tmp_path / "memory.json")
    again = MemoryModel.load(tmp_path / "memory.json")
    assert again == memory
    for width, nbytes in ((6, 5), (7, 10)):
        capacity = Capacity(300, 400, 30, width)
        assert again.fit.predict(capacity) == pytest.approx(nbytes * 300 + 7 * 30)
        assert again.binding(capacity) == "nodes"


def test_where_memory_ends_before_the_floor_what_was_read_is_fitted_and_said():
    """Blocks have 20 places, and a graph with more nodes than that cannot be read."""

    def read_at(capacity: Capacity) -> Reading:
        if capacity.max_graph_nodes > 20:
            raise torch.OutOfMemoryError("out of memory")
        return Reading(9 * capacity.nodes + 50 * capacity.graphs, widths=(20,))

    memory = probe(nn.Linear(2, 2), STORE, reader=GivenReader(read_at))
    assert "memory ran out at" in memory.note
    assert not memory.fit.pieces
    assert memory.fit.predict(NEAR) == pytest.approx(9 * 200 + 50 * 20)


def reading(operations, *moments):
    return Reading(max(moments), moments=list(zip(operations, moments, strict=True)))


def test_what_only_some_steps_do_counts_by_the_largest_between_two_operations_of_all():
    one = reading("alb-", 10, 20, 5, 30)
    two = reading("alllb-", 11, 21, 22, 20, 6, 31)
    assert [list(m) for m in match_moments([one, two])] == [[0, 20, 5, 30], [0, 22, 6, 31]]
    before = reading("lab-", 9, 4, 5, 6)
    assert list(match_moments([one, before, two])[1]) == [9, 4, 5, 6]


@pytest.mark.parametrize(
    "other", [Reading(5), reading("ccc", 1, 2, 3)], ids=["no moments", "nothing in common"]
)
def test_steps_that_cannot_be_matched_give_none(other):
    assert match_moments([reading("abc", 1, 2, 3), other]) == [None, None]
