"""A tensor changed in place after it was read: the earlier read still gives the earlier value."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from support.rewritten import OfNodes, difference, fired, missed, seeded, summed
from torch_geometric.nn import global_add_pool


class ColumnAfterGather(OfNodes):
    def nodes(self, h, edge_index):
        h = self.second(h)
        m = h[edge_index[0]]
        h[:, 0] = 0
        return summed(m, edge_index, h) + h


class ViewOfACopy(OfNodes):
    """``m`` reads ``h`` first, so a copy is changed, of which ``rows`` is a view."""

    def nodes(self, h, edge_index):
        h = self.second(h)
        m = h[edge_index[0]]
        h[:, 0] = 0
        rows = h[:]
        rows += 0.5
        return summed(m, edge_index, h) + h + rows


class Twice(OfNodes):
    def nodes(self, h, edge_index):
        h = self.second(h)
        v = h.view(-1, 2, 8)
        h += 1.0
        h += h
        return v.flatten(1) * 2 + self.norm(h)


class Intermediate(OfNodes):
    def nodes(self, h, edge_index):
        h = self.second(h)
        rows = h[edge_index[0]]
        m = rows + h[edge_index[1]]
        rows *= 0
        return summed(m.relu(), edge_index, h) + summed(rows, edge_index, h) + h


class WithoutGradientAfterGather(OfNodes):
    def nodes(self, h, edge_index):
        h = self.second(h)
        m = h[edge_index[0]]
        with torch.no_grad():
            h += 1.0
        return summed(m, edge_index, h) + h


class OwnOperand(OfNodes):
    def nodes(self, h, edge_index):
        h = self.second(h)
        half = h[:, :8]
        m = h[edge_index[0]]
        half *= half.sum(1, keepdim=True)
        return summed(m, edge_index, h) + h


class Degrees(OfNodes):
    """What PyG's older layers do for nodes without neighbours."""

    def nodes(self, h, edge_index):
        degree = summed(torch.ones_like(edge_index[0], dtype=h.dtype), edge_index, h)
        root = degree.pow(-0.5)
        root[root == float("inf")] = 0
        weight = root[edge_index[0]] * root[edge_index[1]]
        return summed(h[edge_index[0]] * weight.view(-1, 1), edge_index, h)


class Input(OfNodes):
    def forward(self, x, edge_index, batch, batch_size):
        x = x.double()
        m = x[edge_index[0]]
        x += 1.0
        h = self.first(summed(m, edge_index, x) + x)
        return global_add_pool(self.norm(h).relu(), batch, batch_size)


class Harmless(OfNodes):
    """Every common in-place change of a tensor that nothing else reads."""

    def nodes(self, h, edge_index):
        h = self.second(h)
        h += h.sum(1, keepdim=True)
        h = F.relu(h, inplace=True)
        s = torch.zeros_like(h)
        s.index_add_(0, edge_index[1], h[edge_index[0]])
        s += h
        s /= 2
        weight = torch.ones(h.size(0), 1, dtype=h.dtype, device=h.device)
        weight[:3] = 2.0
        return F.dropout(s + weight * h, 0.5, False, True)


@functools.cache
def compared(build, store) -> tuple:
    """The difference to plain PyG and the runner, computed once for all tests of a model."""
    return difference(seeded(build), store)


HARMFUL = [
    ColumnAfterGather,
    ViewOfACopy,
    Twice,
    Intermediate,
    WithoutGradientAfterGather,
    OwnOperand,
    Degrees,
    Input,
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("build", [*HARMFUL, Harmless])
def test_outputs_and_gradients_are_those_of_plain_pyg(build, esol):
    largest, _ = compared(build, esol)
    assert largest <= 1e-10


def test_what_nothing_else_reads_is_rewritten(esol):
    _, runner = compared(Harmless, esol)
    assert fired(runner) == {"neighbours": 1, "batch_norm": 1, "pools": 1}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("build", [ColumnAfterGather, Twice, Degrees, Input])
def test_a_change_that_is_read_by_name_alone_keeps_nothing_from_being_rewritten(build, esol):
    _, runner = compared(build, esol)
    assert fired(runner)["pools"] >= 1
    assert "in place" not in missed(runner)


@pytest.mark.parametrize("build", [OwnOperand, WithoutGradientAfterGather])
def test_a_change_that_something_else_sees_is_said_with_its_line(build, esol):
    _, runner = compared(build, esol)
    assert not fired(runner)
    said = missed(runner)
    assert "test_rewrites_in_place.py" in said
    assert "changed in place after it was read" in said
