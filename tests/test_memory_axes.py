"""The memory of data with axes (typed nodes and index fields), against the profiler's peak.

The molecules are real; their bonds are nodes of a second type, or pairs of bonds that share an atom
are triplets. One relation has no edge in any graph, since rare and absent must be told apart.
"""

from __future__ import annotations

import functools

import pytest
import torch
from support.alike import adam, squared
from support.index_rules import Triplets
from support.probed_tasks import measured
from torch import nn
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.nn import SAGEConv, global_mean_pool, to_hetero
from torch_geometric.utils import scatter

import staticgraph as sg
from staticgraph import cli
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.memory.budget import GRADIENTS, STEP
from staticgraph.memory.memory_model import MemoryModel
from staticgraph.probing.probe import batch_bytes, probe
from staticgraph.probing.step_reading import Probed
from staticgraph.steps.computation.model_setup import Subject

WIDTH = 16
COUNT = 120


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = SAGEConv((-1, -1), WIDTH), nn.BatchNorm1d(WIDTH)
        self.second = SAGEConv((-1, -1), WIDTH)

    def forward(self, x, edge_index):
        return self.second(self.norm(self.first(x, edge_index)).relu(), edge_index)


class Solubility(nn.Module):
    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(WIDTH, 1)

    def forward(self, data):
        h = self.encoder(data.x_dict, data.edge_index_dict)
        return self.head(global_mean_pool(h["atom"], data["atom"].batch, data.num_graphs))


class Directional(nn.Module):
    """Message passing along triplets to edges, and along edges to nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.message = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.outward = nn.Linear(2 * WIDTH, 1)

    def forward(self, batch):
        edges = self.inward(batch.edge_attr)
        first, second = batch.triplets
        edges = scatter(self.message(edges[first]).relu(), second, 0, edges.shape[0])
        nodes = scatter(edges, batch.edge_index[1], 0, batch.num_nodes)
        return self.outward(scatter(nodes, batch.batch, 0, batch.num_graphs))


def typed(data: Data) -> HeteroData:
    once = data.edge_index[0] < data.edge_index[1]
    ends, bonds = data.edge_index[:, once], torch.arange(int(once.sum()))
    made = HeteroData(y=data.y)
    made["atom"].x = data.x.float()
    made["bond"].x = data.edge_attr[once].float()
    made["atom", "ends", "bond"].edge_index = torch.stack([ends.flatten(), bonds.repeat(2)])
    made["bond", "joins", "atom"].edge_index = torch.stack([bonds.repeat(2), ends.flatten()])
    made["bond", "never", "bond"].edge_index = torch.empty(2, 0, dtype=torch.long)
    return made


def directed(data: Data) -> Triplets:
    source, target = data.edge_index
    follows = (target[:, None] == source[None, :]) & (source[:, None] != target[None, :])
    return Triplets(
        x=data.x.float(),
        edge_index=data.edge_index,
        edge_attr=data.edge_attr.float(),
        triplets=follows.nonzero().t().contiguous(),
        y=data.y,
    )


@pytest.fixture(scope="module")
def stores(esol):
    return {
        make.__name__: sg.GraphStore.from_pyg([make(esol[i]) for i in range(COUNT)])
        for make in (typed, directed)
    }


def task_of(name: str, store) -> Probed:
    torch.manual_seed(0)
    if name == "triplets":
        model = Directional()
    else:
        first = [store[0], store[1]]
        model = Solubility(to_hetero(Encoder(), first[0].metadata()))
        with torch.no_grad():
            model(Batch.from_data_list(first))
    return Probed(Subject(model, squared, adam(model)), store.schema)


@pytest.fixture(scope="module")
def probed(stores):
    """By name: the store, the subject and its memory model, probed on first use."""

    @functools.cache
    def of(name: str):
        store = stores["directed" if name == "triplets" else "typed"]
        task = task_of(name, store)
        memory = probe(task.subject.model, store, loss=squared, optimizer=task.subject.optimizer)
        return store, task, memory

    return of


# ---------------------------------------------------------------------- against the profiler


@pytest.mark.parametrize("name", ["sage", "triplets"])
def test_the_prediction_is_what_the_cpu_allocates(probed, name):
    """At twice the largest probed capacity and at a real plan's, within 3% and without slack."""
    store, task, memory = probed(name)
    fitted = memory.fit
    assert fitted.form == "linear"
    assert len(memory.points) > len(fitted.terms)
    assert fitted.worst < 1e-6
    assert fitted.typed is store.schema.hetero
    assert ("nodes" in fitted.terms) is not store.schema.hetero, "sums of the types' rows"
    for capacity in (memory.checked.capacity, sg.plan_buckets(store, 32).capacities[-1]):
        found = measured(task, capacity)
        assert fitted.predict(capacity) == pytest.approx(found.step, rel=0.03)
        assert memory.update_bytes == pytest.approx(found.update, rel=0.03)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["sage", "triplets"])
def test_the_plan_by_memory_holds_the_cap(probed, name):
    store, task, memory = probed(name)
    budget = sg.MemoryBudget("1.5MB")
    plan = sg.plan_buckets(store, memory=memory, budget=budget, min_steps_per_epoch=1)
    assert "by memory, most of it rows of " in plan.note
    assert 1 < plan.batch_size < COUNT
    found = budget.check(memory, plan.capacities)
    steps = [measured(task, capacity).step for capacity in plan.capacities]
    assert (
        found.total_bytes - found.lines[STEP] - found.lines[GRADIENTS] + max(steps)
        <= budget.max_bytes
    )
    larger = sg.plan_buckets(store, 2 * plan.batch_size)
    with pytest.raises(sg.BudgetExceeded, match=r"take batches of at most \d+ graphs.*rows of"):
        budget.check(memory, larger.capacities)
    for capacity in plan.capacities:
        rows = dict(capacity.extra)
        sums = [
            sum(rows[axis.name] for axis in axes)
            for axes in (store.schema.node_axes, store.schema.edge_axes)
            if len(axes) > 1
        ]
        numbers = [capacity.graphs, *rows.values(), *sums]
        if store.schema.hetero:
            assert (capacity.nodes, capacity.edges) == tuple(sums), "rounded type by type"
        assert len(set(numbers)) == len(numbers), "rounding keeps apart what is told by its size"
    batches = list(sg.StaticLoader(store, plan))
    assert sum(batch.num_real_graphs for batch in map(sg.StaticBatch.clone, batches)) == COUNT


# ---------------------------------------------------------------------- the law itself


def test_data_with_other_axes_is_refused(stores, probed, esol):
    memory = probed("triplets")[2]
    with pytest.raises(ValueError, match=r"counts rows of triplets, and .* those of none: probe"):
        memory.predict(sg.plan_buckets(esol, 16).capacities[-1])
    with pytest.raises(ValueError, match=r"counts rows of no axis, and .* those of atom, bond"):
        MemoryModel.of(nodes=10).predict(sg.plan_buckets(stores["typed"], 16).capacities[-1])


def test_the_bytes_of_a_batch_are_an_upper_bound_within_the_alignment(stores):
    for store in stores.values():
        found = batch_bytes(store.schema)
        for size in (1, 7, 32):
            for capacity in sg.plan_buckets(store, size).capacities:
                layout = SlotLayout(0, capacity, store.schema)
                most = layout.nbytes + 256 * len(layout.entries)
                assert layout.nbytes <= found.of(capacity) <= most


def test_the_command_refuses_types_with_the_way_out(stores, tmp_path, capsys):
    stores["typed"].save(tmp_path / "typed")
    assert cli.main(["probe", "--data", str(tmp_path / "typed")]) != 0
    assert "give your own model, --model MODULE:NAME" in capsys.readouterr().err
