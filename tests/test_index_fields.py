"""User-defined index fields follow PyG's rules; the oracle is PyG's own ``Batch``.

Without its padding, a batch of the store must equal ``Batch.from_data_list`` of the same graphs,
and its padding must point only at padding.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from fuzz.loading import check_fields
from hypothesis import given
from hypothesis import strategies as st
from support.alike import same
from support.drawn import examples
from support.graphs import by_destination
from support.index_rules import Clusters, Pair, Triplets, base, bipartite, ints, triplets
from support.parity import call, differences, plain_step, poisoned, static_step
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_add_pool, global_mean_pool
from torch_geometric.utils import scatter

import staticgraph as sg
from staticgraph.batches.batch.batch_arrays import field_mask
from staticgraph.errors import BadGraph, PlanMismatch


def pair(rng, n: int) -> Data:
    s, t = n, int(rng.integers(1, 9))
    m = int(rng.integers(0, 6))
    return Pair(
        x_s=torch.from_numpy(rng.standard_normal((s, 2))),
        edge_index_s=ints(rng, s, 2, int(rng.integers(0, 9))),
        x_t=torch.from_numpy(rng.standard_normal((t, 3))),
        edge_index_t=ints(rng, t, 2, int(rng.integers(0, 9))),
        assignment_index=torch.stack([ints(rng, s, m), ints(rng, t, m)]),
        num_nodes=s,
    )


def clusters(rng, n: int) -> Data:
    k = int(rng.integers(1, n + 1))
    f = int(rng.integers(0, 5))
    return Clusters(
        **base(rng, n),
        num_clusters=k,
        cluster_index=torch.stack([torch.arange(n), ints(rng, k, n)]),
        face=ints(rng, n, 3, f),
        cell=torch.from_numpy(rng.standard_normal((3, 3))),
        num_nodes=n,
    )


KINDS = {"triplets": triplets, "pair": pair, "clusters": clusters, "bipartite": bipartite}


def made(kind: str, seed: int, count: int = 12) -> list[Data]:
    rng = np.random.default_rng(seed)
    return [KINDS[kind](rng, int(rng.integers(1, 9))) for _ in range(count)]


def ordered(data: Data) -> Data:
    """The graph in the store's order."""
    return by_destination(data, ("edge_attr", "reverse_index")) if "edge_attr" in data else data


def assert_points_at_padding(batch: sg.StaticBatch) -> None:
    for field in batch.layout.schema:
        if not field.counts:
            continue
        mask = field_mask(batch, field)
        rows = batch[field.name].movedim(field.cat_dim or 0, 0).reshape(len(mask), -1)[~mask]
        levels = field.counts * (field.width if len(field.counts) == 1 else 1)
        for place, level in enumerate(levels):
            if level:
                assert not batch[f"{level}_mask"][rows[:, place]].any(), (field.name, level)


@pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@examples(15)
@given(seed=st.integers(0, 2**32 - 1), keep_order=st.booleans())
def test_a_batch_holds_what_pyg_batches(kind, seed, keep_order):
    graphs = made(kind, seed)
    in_batch = graphs if keep_order else [ordered(graph) for graph in graphs]
    store = sg.GraphStore.from_pyg(graphs, keep_order=keep_order)
    for number, graph in enumerate(graphs):
        assert store[number].num_nodes == graph.num_nodes
        for name, value in graph.to_dict().items():
            if name == "num_nodes":
                continue
            found = store[number][name]
            assert torch.equal(torch.as_tensor(found), torch.as_tensor(value).view_as(found)), name
    for plan in (sg.plan_buckets(store, batch_size=4), sg.plan_buckets(store, graphs=5)):
        seen = []
        for batch in sg.StaticLoader(store, plan, shuffle=True):
            seen += check_fields(batch, in_batch)
            assert_points_at_padding(batch)
        assert sorted(seen) == list(range(len(graphs)))


@pytest.mark.filterwarnings("ignore:Unable to accurately infer 'num_nodes'")
@pytest.mark.parametrize("keep_order", [False, True])
def test_pairs_that_do_not_say_their_num_nodes_are_padded_from_pygs_batch_and_from_a_list(
    keep_order,
):
    graphs = made("pair", 1)
    for graph in graphs:
        del graph.num_nodes, graph.assignment_index
    with pytest.raises(ValueError, match=r"graph 0 does not know its num_nodes.*keep_order=True"):
        sg.plan_stream(graphs, 4)
    store = sg.GraphStore.from_pyg(graphs, keep_order=keep_order)
    padder = sg.Padder(sg.plan_stream(store, 4))
    padded, other = padder(graphs[:4]), padder(Batch.from_data_list(graphs[:4]))
    assert same(dict(padded.tensors()), dict(other.tensors()))


class Angular(torch.nn.Module):
    """Message passing along triplets: from edge to edge with an angle, then to nodes and graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.edge = torch.nn.Linear(5, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.last = torch.nn.Linear(8, 1)

    def forward(self, data):
        src, dst = data.edge_index
        h = self.edge(torch.cat([data.x[src], data.x[dst], data.edge_attr], 1)).tanh()
        one, other = data.triplets
        h = h + scatter(h[one] * data.angle[:, None].cos(), other, 0, h.size(0))
        return self.last(scatter(self.norm(h), data.batch[dst], 0, data.num_graphs))


def test_a_model_over_triplets_equals_plain_pyg():
    graphs = made("triplets", 3, 20)
    store = sg.GraphStore.from_pyg(graphs)
    batch = next(iter(sg.StaticLoader(store, sg.plan_buckets(store, batch_size=8))))
    torch.manual_seed(0)
    model = Angular().double()
    expected = plain_step(model, call, batch)
    for traced in (False, True):
        found, trace = static_step(model, call, poisoned(batch, 1000.0), traced)
        assert trace is None or trace.static, trace
        assert differences(expected, found) == []


# ---------------------------------------------------------------------- plans


def test_a_plan_keeps_its_components(tmp_path):
    store = sg.GraphStore.from_pyg(made("triplets", 2))
    plan = sg.plan_buckets(store, batch_size=4)
    assert [name for name, _ in plan.capacities[0].extra] == ["triplets"]
    assert plan.capacities[0].edge_reserve == 1
    plan.save(tmp_path / "plan.json")
    assert sg.BucketPlan.load(tmp_path / "plan.json") == plan
    store.save(tmp_path / "store")
    loaded = sg.GraphStore.load(tmp_path / "store")
    assert loaded.schema == store.schema
    for name, array in store.arrays().items():
        assert np.array_equal(array, loaded.arrays()[name]), name
    next(iter(sg.StaticLoader(loaded, plan)))


def test_a_capacity_without_the_rows_is_refused():
    store = sg.GraphStore.from_pyg(made("triplets", 2))
    with pytest.raises(PlanMismatch, match="the data counts triplets but the capacity"):
        sg.StaticLoader(store, [(100, 300, 5)])
    short = sg.Capacity(100, 300, 5, extra=(("triplets", 400),))
    with pytest.raises(PlanMismatch, match="keeps no edge for its padding to point at"):
        sg.StaticLoader(store, [short])


def test_graphs_may_not_take_the_row_of_an_axis_that_is_padding():
    store = sg.GraphStore.from_pyg(made("triplets", 2))
    rows = int(store.offsets["triplets"][-1])
    fits = sg.Capacity(100, 300, 13, extra=(("triplets", rows + 1),), edge_reserve=1)
    assert sg.StaticBatch.of(store, range(12), fits).triplets_mask.sum() == rows
    full = replace(fits, extra=(("triplets", rows),))
    with pytest.raises(sg.errors.GraphTooLarge, match=rf"the bucket takes {rows - 1}:"):
        sg.StaticBatch.of(store, range(12), full)


# ---------------------------------------------------------------------- errors


def odd(key: str, inc, value=None, cat_dim=0) -> Data:
    class Odd(Data):
        def __inc__(self, name, *args, **kwargs):
            return inc if name == key else super().__inc__(name, *args, **kwargs)

        def __cat_dim__(self, name, *args, **kwargs):
            return cat_dim if name == key else super().__cat_dim__(name, *args, **kwargs)

    value = torch.zeros(2, dtype=torch.int64) if value is None else value
    return Odd(x=torch.ones(3, 1), edge_index=torch.zeros(2, 1, dtype=torch.int64), **{key: value})


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (odd("part", -1), "graph 0 gives -1 as __inc__ of 'part'; whole numbers from 0 on"),
        (odd("part", 0.5), "gives 0.5 as __inc__ of 'part'"),
        (odd("part", torch.tensor([1, 2])), "must be the same along dimension 0, over which"),
        (odd("part", 3, torch.ones(2)), "would add 3 to 'part', which is torch.float32"),
        (odd("part", 3, torch.full((2,), 3)), "graph 0 has 3 in 'part', which counts 'node', of"),
        (odd("part", 0, cat_dim=(0, 1)), r"gives \(0, 1\) as __cat_dim__ of 'part', whose shape"),
    ],
)
def test_rules_that_cannot_be_followed_are_named(graph, message):
    with pytest.raises(BadGraph, match=message):
        sg.GraphStore.from_pyg([graph])


def test_new_graphs_that_count_otherwise_are_refused():
    class Uncounted(Triplets):
        def __inc__(self, key, value, *args, **kwargs):
            return Data.__inc__(self, key, value, *args, **kwargs)

    graphs = made("triplets", 5)
    schema = sg.GraphStore.from_pyg(graphs).schema
    others = [Uncounted(**graph.to_dict()) for graph in graphs]
    with pytest.raises(
        BadGraph, match=r"adds 0 to 'triplets' \(__inc__\), where the plan was made"
    ):
        sg.GraphStore.from_pyg(others, schema=schema)
    others = [Data(**graph.to_dict()) for graph in graphs]
    with pytest.raises(BadGraph, match="gives 0 as __cat_dim__ of 'triplets'; the plan was made"):
        sg.GraphStore.from_pyg(others, schema=schema)


def test_an_index_too_narrow_for_the_rows_of_a_batch_is_refused():
    """PyG increments it until it wraps; its padding would point at real rows even before that."""
    graphs = [
        Data(x=torch.ones(60, 1), edge_index=torch.empty(2, 0, dtype=torch.long)) for _ in range(8)
    ]
    for graph in graphs:
        graph.root_index = torch.tensor([59], dtype=torch.int8)
    store = sg.GraphStore.from_pyg(graphs)
    sg.StaticBatch.of(store, [0, 1], (121, 8, 3))
    with pytest.raises(
        PlanMismatch, match=r"'root_index' is int8, and would number 241 rows .*int64"
    ):
        sg.StaticBatch.of(store, [0, 1], (241, 8, 3))


class Nested(Data):
    """Nodes belong to subgraphs, and these to the graph."""

    def __inc__(self, key, value, *args, **kwargs):
        if key == "node_to_subgraph":
            return len(self.subgraph_to_graph)
        return 1 if key == "subgraph_to_graph" else super().__inc__(key, value, *args, **kwargs)


class OverSubgraphs(torch.nn.Module):
    def __init__(self, index) -> None:
        super().__init__()
        self.head = torch.nn.Linear(4, 1)
        self.index = index

    def forward(self, data):
        rows = global_mean_pool(data.x, self.index(data)).sin()
        return self.head(global_add_pool(rows, data.subgraph_to_graph))


def nested(count: int = 12) -> list[Data]:
    return [
        Nested(
            x=torch.randn(n, 4),
            edge_index=torch.zeros(2, 3, dtype=torch.long),
            node_to_subgraph=torch.arange(n) % (1 + n % 3),
            subgraph_to_graph=torch.zeros(1 + n % 3, dtype=torch.long),
        )
        for n in [3 + number % 5 for number in range(count)]
    ]


class Repeated(OverSubgraphs):
    def forward(self, data):
        rows = torch.repeat_interleave(global_add_pool(data.x, data.batch), data.count, dim=0)
        return self.head(global_add_pool(rows.sin(), data.subgraph_to_graph))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mode", ["eager", "fused"])
def test_rows_are_repeated_as_often_as_a_graph_has_subgraphs(mode):
    graphs, model = nested(), Repeated(None)
    single = Nested(x=torch.ones(1, 4), edge_index=torch.zeros(2, 0, dtype=torch.long))
    single.node_to_subgraph = single.subgraph_to_graph = torch.zeros(1, dtype=torch.long)
    graphs.append(single)
    for graph in graphs:
        graph.count = len(graph.subgraph_to_graph)
    expected = model(Batch.from_data_list(graphs)).detach()
    store = sg.GraphStore.from_pyg(graphs)
    plan = sg.plan_buckets(store, batch_size=4)
    assert sg.check(model, plan, store, rewrites=True).compiles
    runner = sg.StaticGraphRunner(model, plan, mode)
    runner(next(iter(runner.loader(store))))
    torch.testing.assert_close(runner.predict(graphs), expected)
    bare = sg.StaticGraphRunner(model, replace(plan, source=lambda: None), "fused")
    with pytest.raises(sg.NotStatic, match=r"which rows 'count' counts is known from graphs alone"):
        bare.warmup(phases=("eval",))
    # As many nodes as subgraphs: what its count counts is known from the batches before.
    torch.testing.assert_close(runner.predict([single]), expected[-1:])


def test_a_pool_by_another_index_is_not_one_to_graphs():
    graphs = nested()
    model = OverSubgraphs(lambda data: 2 * data.batch + (data.x[:, 0] > 0))
    plan = sg.plan_buckets(sg.GraphStore.from_pyg(graphs), batch_size=4)
    for mode in ("eager", "fused"):  # a captured graph does not see how many there are
        with pytest.raises(sg.NotStatic, match=r"this one names \d+ groups: pass size="):
            sg.StaticGraphRunner(model, plan, mode).predict(graphs)


def test_a_field_of_several_rows_per_graph_has_a_mask_of_as_many():
    cells = [Data(pos=torch.randn(n, 3), cell=torch.randn(3, 3)) for n in (2, 4)]
    store = sg.GraphStore.from_pyg(cells)
    batch = sg.StaticBatch.of(store, [0, 1], (9, 3, 5))
    for name, real in (("pos", 6), ("cell", 6)):
        mask = field_mask(batch, store.schema[name])
        assert torch.equal(mask, torch.arange(len(batch[name])) < real)
