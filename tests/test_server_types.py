"""A server of graphs with several types: a missing type has no rows, or is named in an error."""

from __future__ import annotations

import pytest
import torch
from support.hetero_graphs import from_molecule
from support.served_graphs import CLOSE, PATIENCE_S
from torch import nn
from torch_geometric.data import Batch, HeteroData
from torch_geometric.nn import HeteroConv, SAGEConv, global_add_pool

import staticgraph as sg
from staticgraph.serving import for_serving

WIDTHS = {"atom": 9, "bond": 3, "ring": 1}
RING = [("atom", "within", "ring"), ("ring", "has", "atom"), ("ring", "beside", "ring")]


class Typed(nn.Module):
    """One convolution per relation, and the sum of each type's rows."""

    def __init__(self, relations) -> None:
        super().__init__()
        torch.manual_seed(0)
        made = {kind: SAGEConv((WIDTHS[kind[0]], WIDTHS[kind[2]]), 4) for kind in relations}
        self.conv = HeteroConv(made, aggr="sum").double()

    def forward(self, data):
        rows = self.conv(data.x_dict, data.edge_index_dict)
        return sum(global_add_pool(rows[k], data[k].batch, data.num_graphs) for k in WIDTHS)


@pytest.fixture(scope="module")
def molecules(esol) -> list[HeteroData]:
    return [from_molecule(esol[number], torch.float64) for number in range(12)]


@pytest.fixture(scope="module")
def runner(molecules) -> sg.StaticGraphRunner:
    plan = for_serving(sg.plan_buckets(sg.GraphStore.from_pyg(molecules), batch_size=4))
    model = Typed(molecules[0].edge_types)
    return sg.StaticGraphRunner(model, plan, mode="eager", forward=lambda m, batch: m(batch))


def alone(runner: sg.StaticGraphRunner, graph: HeteroData) -> torch.Tensor:
    """Plain PyG's output for one graph."""
    with torch.no_grad():
        return runner.model(Batch.from_data_list([graph]))


def without(graph: HeteroData, *names) -> HeteroData:
    found = graph.clone()
    for name in names:
        del found[name]
    return found


def emptied(graph: HeteroData, *names) -> HeteroData:
    """The graph with no rows of these types, rather than without the types."""
    found = graph.clone()
    for name in names:
        for key, value in list(found[name].items()):
            found[name][key] = value[:, :0] if key == "edge_index" else value[:0]
    return found


def ringed(molecules) -> HeteroData:
    return next(graph for graph in molecules if len(graph["ring"].x))


def test_types_that_a_request_lacks_have_no_rows(runner, molecules):
    graph = ringed(molecules)
    with sg.Server(runner, max_wait_ms=0) as server:
        for names in (
            (RING[0],),
            RING,
            ("ring", *RING),
            (("atom", "bonded", "atom"), "ring", *RING),
        ):
            found = server.submit([without(graph, *names), graph]).result(PATIENCE_S)
            expected = [alone(runner, emptied(graph, *names)), alone(runner, graph)]
            torch.testing.assert_close(found, torch.cat(expected), **CLOSE)


def test_edges_to_a_type_that_a_request_lacks_are_named_and_it_is_left_alone(runner, molecules):
    """PyG used to create the type, and the message was about ``__inc__``, unknown to the user."""
    graph = ringed(molecules)
    odd = without(graph, "ring")
    with sg.Server(runner, max_wait_ms=0) as server:
        asked = server.submit([graph, odd])
        with pytest.raises(sg.BadGraph, match=r"graph 1 .*'within', 'ring'\) but no nodes of type"):
            asked.result(PATIENCE_S)
        assert "ring" not in odd.node_types
        found = server.submit([graph]).result(PATIENCE_S)
    torch.testing.assert_close(found, alone(runner, graph), **CLOSE)
