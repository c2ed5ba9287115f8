"""A model that makes or splits a batch of graphs in its forward is told what to write instead."""

from __future__ import annotations

import pytest
from support.alike import adam
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GINConv, global_add_pool

import staticgraph as sg


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = GINConv(nn.Linear(9, 8))
        self.head = nn.Linear(8, 1)

    def forward(self, x, edge_index, batch, batch_size):
        h = self.conv(x.float(), edge_index)
        return self.head(global_add_pool(h, batch, batch_size))


class Together(Net):
    def forward(self, x, edge_index, batch, batch_size):
        data = Batch.from_data_list([Data(x=x, edge_index=edge_index)])
        return super().forward(data.x, data.edge_index, batch, batch_size)


class Reads(Net):
    def forward(self, x, edge_index, batch, batch_size):
        return super().forward(x * float(x.sum()), edge_index, batch, batch_size)


def test_a_batch_made_inside_is_named_with_what_to_write(esol):
    few = sg.GraphStore.from_pyg(esol[:20])
    plan = sg.plan_buckets(few, 8)
    report = sg.check(Together(), plan, few)
    (found,) = [o for o in report.obstacles if "from_data_list" in o.line]
    assert "makes a Batch of graphs, or graphs of a Batch, inside the forward" in found.remedy
    assert "batch.edge_index" in str(report)
    (other,) = [o for o in sg.check(Reads(), plan, few).obstacles if o.kind == "host read"]
    assert "inside the forward" not in other.remedy


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda out, batch: (out - batch.y).pow(2).mean(), "the loss is a scalar.* return"),
        (lambda out, batch: (out - batch.y).pow(2)[:3], r"a tensor of shape \[3, 1\].* return"),
    ],
)
def test_a_loss_without_rows_is_told_what_it_gave(esol, loss, says):
    few = sg.GraphStore.from_pyg(esol[:20])
    model = Net()
    optimizer = adam(model)
    plan = sg.plan_buckets(few, 8)
    runner = sg.StaticGraphRunner(model, plan, "eager", loss=loss, optimizer=optimizer)
    with pytest.raises(ValueError, match=says):
        runner.step(next(iter(runner.loader(few))))
