"""Clear messages for the mistakes of a first day; and what prints in a notebook."""

from __future__ import annotations

import pytest
import torch
from support.alike import adam, squared
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader

import staticgraph as sg
from staticgraph.runner.counters import no_recompile


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = torch.nn.Linear(9, 1)

    def forward(self, x, batch, num_graphs):
        rows = x.float()
        return self.head(rows.new_zeros(num_graphs, 9).index_add(0, batch, rows))


@pytest.fixture(scope="module")
def store():
    return sg.datasets.open("esol")


@pytest.fixture(scope="module")
def plan(store):
    return sg.plan_buckets(store, batch_size=32)


def runner_of(model, plan, trained):
    return sg.StaticGraphRunner(
        model,
        plan,
        mode="eager",
        loss=squared,
        optimizer=adam(trained),
    )


@pytest.mark.filterwarnings("error")
def test_an_optimizer_of_another_model_is_told():
    plan = [(100, 200, 5)]
    with pytest.warns(UserWarning, match="the optimizer has none of the parameters of Net"):
        runner_of(Net(), plan, Net())
    model = Net()
    runner_of(model, plan, model)
    runner_of(model, plan, model.head)  # a part of the model
    runner_of(model.requires_grad_(False), plan, Net())  # the model has nothing to train


@pytest.mark.sampled(2)
@pytest.mark.parametrize("collated", [False, True])
def test_a_warm_up_takes_what_a_step_takes(store, collated):
    model = Net()
    graphs = [Data(x=store[n].x, edge_index=store[n].edge_index, y=store[n].y) for n in range(9)]
    plan = sg.plan_stream(graphs, batch_size=9)
    runner = sg.StaticGraphRunner(model, plan, "fused", loss=squared, optimizer=adam(model))
    runner.predict(graphs)
    runner.warmup(Batch.from_data_list(graphs) if collated else graphs)
    with no_recompile():
        runner.step(graphs)
        runner.step(sg.Padder(plan)(graphs))


def test_other_things_are_named(store, plan):
    model = Net()
    runner = runner_of(model, plan, model)
    with pytest.raises(TypeError, match="a DataLoader has no graphs to prepare with"):
        runner.warmup(DataLoader(list(store[:4])))
    with pytest.raises(ValueError, match="is not the state of a runner"):
        runner.load_state_dict({"model": model.state_dict()})
    with pytest.raises(TypeError, match="3 is not graphs: give a list"):
        runner.predict(3)
    for option, text in {
        "loss": "loss='node' is not a function",
        "forward": "forward='node' is not a function",
        "rows": "rows='node': give a dict",
    }.items():
        with pytest.raises(TypeError, match=text):
            sg.StaticGraphRunner(model, plan, **{option: "node"})
    with pytest.raises(TypeError, match="a GraphStore is not a plan"):
        sg.StaticGraphRunner(model, store)
    with pytest.raises(TypeError, match=r"a Data is not a capacity, .* plan_stream"):
        sg.StaticGraphRunner(model, [Data()])  # pyright: ignore
    with pytest.raises(TypeError, match="a Net is no runner"):
        sg.Server(model)  # pyright: ignore
    with pytest.raises(TypeError, match=r"'plan\.json' is not a plan: BucketPlan\.load"):
        sg.StaticGraphRunner(model, "plan.json")
    with pytest.raises(sg.BadGraph, match=r"'esol' is a name, not a data set: sg\.datasets\.open"):
        sg.GraphStore.from_pyg("esol")
    with pytest.raises(TypeError, match="takes a padded batch, not a DataBatch"):
        sg.masked_mean(torch.ones(4), Batch.from_data_list(list(store[:4])))  # pyright: ignore


def test_fewer_buckets_than_were_asked_for_is_said(store):
    one = sg.plan_buckets(store, graphs=32, num_buckets=2)
    assert len(one.capacities) == 1
    assert one.note == "num_buckets=2 was asked, 1 cost less than more"
    assert sg.plan_buckets(store, graphs=64, num_buckets=2).note == ""


def test_what_prints_is_for_people(store, plan):
    (capacity,) = plan.capacities
    shown = str(plan).splitlines()
    assert shown[0].startswith("1 bucket, batches of 32 graphs, expected to be real: 9")
    assert shown[1:] == [f"bucket 0: {capacity}"]
    free = sg.BucketPlan.of([(100, 200, 5)])
    assert str(free).splitlines()[0] == "1 bucket, any number of graphs per batch"
    noted = sg.plan_buckets(store, batch_size=5000)
    assert str(noted).splitlines()[-1] == noted.note != ""
    assert repr(sg.StaticGraphRunner(Net(), plan, mode="eager")) == (
        "StaticGraphRunner(Net on cpu, mode eager, 1 bucket)"
    )
    batch = next(iter(sg.StaticLoader(store, plan)))
    nodes = int(batch.num_real_nodes)
    assert repr(batch).startswith(f"StaticBatch(bucket=0, real: {nodes} nodes, ")
