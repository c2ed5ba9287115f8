"""No model silently trains on padding: its loss equals plain PyG's, or an error names the layer."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
import torch.nn.functional as F
from support import probes
from support.alike import adam, assert_same_state
from support.layer_cases import CASES, C
from support.layer_model import model_of
from support.obstacle_models import Tied
from support.parity import BATCH, MANY, MANY_PLAN, STORE
from support.probes import (
    NAMED,
    PLAN,
    RIGHT,
    SERVED,
    Mean,
    Probe,
    make_model,
    plain_loss,
    runner_of,
)
from support.runners import sgd_runner
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import (
    GATConv,
    GCNConv,
    MFConv,
    SAGPooling,
    TopKPooling,
    dense_diff_pool,
    global_add_pool,
    global_mean_pool,
)
from torch_geometric.nn.aggr import SortAggregation
from torch_geometric.utils import to_dense_adj, to_dense_batch

import staticgraph as sg
from staticgraph.checking.comparison import RunOptions
from staticgraph.checking.padding_check import STEPS
from staticgraph.models import NAMES, build
from staticgraph.steps.tracing.obstacles import RESULTS

NO_EDGES = torch.zeros(2, 0, dtype=torch.int64)


@pytest.mark.parametrize("kind", [*SERVED, *RIGHT], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("known", [True, False], ids=["eager", "as compiled"])
def test_what_is_served_gives_plain_pygs_loss_and_statistics(kind, known):
    stock, model = make_model(kind), make_model(kind)
    batch = BATCH.clone()
    if not known:
        batch.real = None
    found = runner_of(model, check_padding=known).step(batch)
    assert float(found) == pytest.approx(plain_loss(stock), abs=1e-10)
    assert_same_state(model, stock, rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", NAMED, ids=lambda kind: kind.__name__)
def test_what_padding_reaches_is_an_error_that_names_it(kind):
    stock = make_model(kind)
    unchecked = runner_of(copy.deepcopy(stock), check_padding=False).step(BATCH)
    wrong = abs(float(unchecked) - plain_loss(copy.deepcopy(stock))) > 1e-6
    assert wrong or getattr(kind, "seldom", False)
    with pytest.raises(sg.errors.PaddingLeaks) as raised:
        runner_of(stock).step(BATCH)
    said, error = str(raised.value), raised.value
    assert "check_padding=False" in said
    name = getattr(kind, "layer_name", None)
    if name == "":
        return
    expected = [kind, *type(stock.layer).__mro__]
    marked = {
        f"{inspect.getsourcefile(k)}:{inspect.getsourcelines(k)[1] + number}"
        for k in expected
        if k.__module__ == probes.__name__ and k in vars(probes).values()
        for number, line in enumerate(inspect.getsourcelines(k)[0])
        if "# here" in line
    }
    assert error.where in marked, said
    assert error.module in ([name] if name else ["layer", ""]), said


@pytest.mark.sampled(24)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_supported_layer_is_flagged(case):
    for mode in ("eager",) if case.eager_only else ("eager", "default"):
        check = runner_of(model_of(case), mode=mode).preparation.padding
        check.check_batch(BATCH, "step")
        assert not check.wanted("step")


@pytest.fixture(scope="module")
def plan(hiv) -> sg.BucketPlan:
    return sg.plan_buckets(hiv, batch_size=16)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("name", NAMES)
def test_no_model_of_the_zoo_is_flagged(hiv, plan, name, dropout):
    model = build(name, hiv, hidden=16, layers=2, dropout=dropout)
    runner = sg.StaticGraphRunner(
        model,
        plan,
        mode="eager",
        loss=lambda out, batch: F.binary_cross_entropy_with_logits(
            out, batch.y.to(out.dtype), reduction="none"
        ),
        optimizer=adam(model),
    )
    runner.warmup(hiv)
    assert not runner.preparation.padding.wanted("step")


class TiedTwice(Tied):
    """Remembers what it computed, so that a second run shows more than the first."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(()))

    def forward(self, x, edge_index, batch, num_graphs):
        out = super().forward(x, edge_index, batch, num_graphs) + self.last
        self.last = out[0, 0].detach()
        return out


@pytest.mark.parametrize("kind", [Tied, TiedTwice])
def test_a_choice_among_equal_rows_is_a_warning_and_no_leak(kind):
    runner = runner_of(kind().double())
    with pytest.warns(UserWarning, match="Tied.* chooses among equal rows") as told:
        runner.step(BATCH)
    assert [warned.filename for warned in told] == [__file__]
    assert runner.preparation.padding._comparer.written == (
        {"last"} if kind is TiedTwice else set()
    )
    leaks = Tied(off=1.0).double()
    with pytest.raises(sg.errors.PaddingLeaks, match="number of padding rows"):
        runner_of(leaks).step(BATCH)
    hooks = [len(module._forward_hooks) for module in leaks.modules()]
    assert not any(hooks), "the noise is gone with the check"


class Crossing(nn.Module):
    """A ReLU of numbers within rounding of zero: a number that padding changes, added and taken
    away again, rounds them up or down."""

    def __init__(self, of_padding, leak: float = 0.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(2))
        self.of_padding, self.leak = of_padding, leak

    def forward(self, data):
        x = data.x[:, :2].float()
        large = 100.0 * self.of_padding(x)
        rounded = (self.scale * x + large) - large
        near_zero = (rounded - x + 1e-6 + self.leak * large).relu()
        return torch.zeros(data.num_graphs, 2).index_add_(0, data.batch, x + near_zero)


def spread(x):
    """From 1 to 257, by the digits of a sum over all rows."""
    return 1 + 256 * x.detach().abs().sum().frac()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("of_padding", "said"),
    [(len, "the number of padding rows changes the result"), (spread, "padding reaches real")],
)
def test_a_slope_that_rounding_alone_makes_jump_is_no_leak(of_padding, said):
    """Only float32 differs; what padding changes in exact arithmetic is a leak as before."""
    model = Crossing(of_padding)
    runner = runner_of(model)
    runner.step(BATCH)
    assert {value.dtype for value in (model.scale, model.scale.grad)} == {torch.float32}
    assert not runner.preparation.padding._comparer.written
    with pytest.raises(sg.errors.PaddingLeaks, match=said):
        runner_of(Crossing(of_padding, leak=1e-5)).step(BATCH)


class PooledTwice(nn.Module):
    """The best half of a molecule's atoms, of which many are symmetric, and of these the best."""

    def __init__(self):
        super().__init__()
        self.conv, self.pool = MFConv(9, 16), TopKPooling(16, 0.5)
        self.next_conv, self.next_pool = GCNConv(16, 16), SAGPooling(16, 0.8)
        self.sort, self.head = SortAggregation(3), nn.Linear(48, 2)

    def forward(self, x, edge_index, batch):
        h, edge_index, _, batch, _, _ = self.pool(
            self.conv(x.float(), edge_index).relu(), edge_index, None, batch
        )
        h = self.next_conv(h, edge_index).relu()
        h, _, _, batch, _, _ = self.next_pool(h, edge_index, None, batch)
        return self.head(self.sort(h, batch))


@pytest.mark.filterwarnings("ignore:PooledTwice chooses among equal rows")
@pytest.mark.parametrize("saturated", [False, True])
@pytest.mark.parametrize("mode", ["eager", "default"])
def test_pools_of_symmetric_molecules_are_not_flagged(esol, saturated, mode):
    """How the machine rounds decides whether any choice differs, and with it the warning. Scores
    near 1 are 1 to float32's tanh, and stay so whatever is added to the rows."""
    plan = sg.plan_buckets(esol, batch_size=32)
    batch = sg.StaticBatch.of(esol, range(30), plan.capacities[-1])
    for seed in range(3):
        torch.manual_seed(seed)
        model = PooledTwice()
        if saturated:
            for parameter in (*model.conv.parameters(), *model.next_conv.parameters()):
                parameter.data *= 10
        runner = sg.StaticGraphRunner(model, plan, mode=mode)
        runner.preparation.padding.check_batch(batch, "forward")
        assert not runner.preparation.padding.wanted("forward")


class Latent(Probe):
    """A drawn latent behind a BatchNorm, whose rows of padding do not depend on their values."""

    def make_layer(self):
        return nn.BatchNorm1d(C)

    def trick(self, h):
        mean = self.layer(h)
        self.kl = (mean.square() - 1 - mean.square().add(0.1).log()).mean()
        return mean + torch.randn_like(mean)


class Noisy(Probe):
    """Noise by the mean of all rows, beside dropout."""

    def make_layer(self):
        return nn.BatchNorm1d(C)

    def trick(self, h):
        h = F.dropout(self.layer(h), 0.3, self.training)
        return h + self.training * torch.randn_like(h) * h.abs().mean()


class Drawing(Probe):
    """Right: draws in all ways, over rows, graphs and a width of its own, in either mode; the
    attention over edges and loops, whose real rows do not come first."""

    def make_layer(self):
        return GATConv(C, C, dropout=0.5)

    def forward(self, x, edge_index, batch):
        h = F.dropout(self.conv(x, edge_index), 0.4, self.training) + 0.1 * torch.rand_like(x)
        h = h + self.layer(h, edge_index)
        h = h * torch.bernoulli(torch.full_like(h, 0.8)) + torch.empty_like(h).exponential_()
        h = h + torch.normal(torch.zeros_like(h), 0.1) + torch.randint_like(h, 3)
        h = h * torch.distributions.Beta(h.new_tensor(0.4), h.new_tensor(0.4)).sample()
        pooled = global_mean_pool(h, batch)
        return self.head(pooled + torch.randn_like(pooled) + torch.rand(C, dtype=h.dtype))


def kl_runner(model, weight):
    def kl_loss(out, batch):
        return (out - batch.y).square(), None, weight() * model.kl

    return sgd_runner(model, PLAN, loss=kl_loss)


def test_a_statistic_over_all_rows_beside_random_numbers_is_found():
    with pytest.raises(sg.errors.PaddingLeaks, match="number of padding rows"):
        runner_of(make_model(Noisy)).step(BATCH)


def test_random_numbers_alone_are_no_difference():
    check = runner_of(make_model(Drawing)).preparation.padding
    check.check_batch(BATCH, "step")
    parity = check._comparer.beside_plain(BATCH, RunOptions(training=True, gradients=True))
    assert parity.note == "in the model's own mode"
    assert parity.worst < 1e-12


class SinglePrecision(Probe):
    """Eigenvalues in float32, which round otherwise in a matrix with more rows of zeros."""

    def forward(self, x, edge_index, batch):
        real = batch < int(BATCH.graph_mask.sum())
        h = real[:, None] * self.trick(self.conv(x, edge_index))
        values = torch.linalg.eigvalsh((h @ h.T).float())[-C:].to(x.dtype)
        return self.head(global_mean_pool(h, batch) + values)


class SinglePrecisionMean(SinglePrecision, Mean):
    """The same, and padding reaches it."""


def test_rounding_of_a_part_in_single_precision_is_no_difference():
    stock, model = make_model(SinglePrecision), make_model(SinglePrecision)
    found = runner_of(model).step(BATCH)
    assert float(found) == pytest.approx(plain_loss(stock), rel=1e-6)
    with pytest.raises(sg.errors.PaddingLeaks, match="padding reaches real rows"):
        runner_of(make_model(SinglePrecisionMean)).step(BATCH)


def _run_steps(runner, count):
    for _ in range(count):
        runner.step(BATCH)


def test_a_term_that_is_annealed_from_zero_is_found_when_its_weight_grows():
    weight, model = [0.0], make_model(Latent)
    runner = kl_runner(model, lambda: weight[0])
    for _ in range(3):
        runner.step(BATCH)
    weight[0] = 0.5
    with pytest.raises(sg.errors.PaddingLeaks, match="the loss is off"):
        _run_steps(runner, STEPS)


class Later(Mean):
    """Mixes rows from the epoch on that a tensor says, which no attribute tells."""

    def __init__(self):
        super().__init__()
        self.register_buffer("since", torch.zeros(()))

    def trick(self, h):
        return torch.where(self.since > 0, super().trick(h), h)


class Annealed(Later):
    """Weighs a mean over all rows by a buffer that its forward raises from 0 itself."""

    def trick(self, h):
        out = h + self.since * h.mean(0)
        self.since = self.since + 0.1
        return out


@pytest.mark.parametrize(
    ("mode", "plan", "store"),
    [
        ("eager", PLAN, STORE),
        pytest.param("fused", PLAN, STORE, marks=pytest.mark.slow),
        ("eager", MANY_PLAN, sg.GraphStore.from_pyg(MANY)),  # looked at in a few of its graphs
    ],
    ids=["eager", "fused", "many"],
)
def test_a_part_that_begins_in_a_later_epoch_is_found_in_one_of_the_next(mode, plan, store):
    model = make_model(Later)
    runner = runner_of(model, plan=plan, mode=mode)
    loader = runner.loader(store, exact=False)
    [runner.step(batch) for batch in loader]
    model.since += 1
    with pytest.raises(sg.errors.PaddingLeaks, match="reaches real rows"):
        runner.step(next(iter(loader)))


def in_units_of_the_spread(out, batch):
    """Plain PyG's own loss is NaN where a label is missing, so that only other padding shows it."""
    return (out - batch.y).square() / batch.y.std()


def more_for_each_missing_label(out, batch):
    """Right over graphs whose labels are all there."""
    return (out - batch.y).square() * (1 + torch.isnan(batch.y).sum())


@pytest.mark.parametrize(
    ("later", "unlabelled"), [(in_units_of_the_spread, 0), (more_for_each_missing_label, -1)]
)
def test_a_loss_that_begins_to_read_missing_labels_is_found_among_a_few_graphs(later, unlabelled):
    model, molecules = make_model(Probe), [graph.clone() for graph in MANY]
    model.since = 0
    molecules[unlabelled].y[:, 0] = torch.nan

    def loss(out, batch):
        """A mean of squares, and from an epoch on the other one."""
        return later(out, batch) if model.since else (out - batch.y).square()

    runner = sgd_runner(model, MANY_PLAN, loss=loss)
    loader = runner.loader(sg.GraphStore.from_pyg(molecules), exact=False)
    [runner.step(batch) for batch in loader]
    model.since = 1
    with pytest.raises(sg.errors.PaddingLeaks, match="the loss"):
        runner.step(next(iter(loader)))


def test_a_part_that_begins_when_a_buffer_is_written_to_is_found_in_the_same_epoch():
    model = make_model(Later)
    runner = runner_of(model)
    _run_steps(runner, 3)
    model.since.fill_(1)
    with pytest.raises(sg.errors.PaddingLeaks):
        _run_steps(runner, STEPS)
    with pytest.raises(sg.errors.PaddingLeaks):  # and at once if it is the forward that writes
        runner_of(make_model(Annealed)).step(BATCH)


class Scored(nn.Module):
    """A score of each of three clusters for every node."""

    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(C, 3)


def test_a_mask_of_a_dense_pool_may_weigh_its_nodes():
    class Weighed(Scored):
        def forward(self, x, edge_index, batch):
            rows, mask = to_dense_batch(x, batch)
            adj = to_dense_adj(edge_index, batch).to(x.dtype)
            weights = mask * (1 + torch.arange(mask.size(1), dtype=x.dtype)) / 4
            return dense_diff_pool(rows, adj, self.scores(rows), weights)[0].sum((1, 2))[:, None]

    model = made_any(Weighed)
    expected = plain_loss(copy.deepcopy(model))
    assert float(runner_of(model).step(BATCH)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("mode", ["eager", "fused"])
def test_losses_of_a_dense_pool_are_over_a_block_as_wide_as_max_num_nodes(mode):
    class Clusters(Scored):
        def forward(self, x, edge_index, batch):
            rows, mask = to_dense_batch(x, batch, max_num_nodes=30)
            adj = to_dense_adj(edge_index, batch, max_num_nodes=30).to(x.dtype)
            pooled, _, link, entropy = dense_diff_pool(rows, adj, self.scores(rows), mask)
            return pooled.sum((1, 2))[:, None] + link + entropy

    model = made_any(Clusters)
    expected = plain_loss(copy.deepcopy(model))
    runner = runner_of(model, mode=mode, check_padding=False)
    assert float(runner.step(BATCH)) == pytest.approx(expected, rel=1e-9)


def test_a_table_that_a_forward_writes_to_is_compared():
    """An embedding with max_norm rescales the rows that are looked up, those of padding as well:
    padding holds values of real rows, but is in graphs of its own."""

    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(4, 2, max_norm=0.1)

        def forward(self, kind, batch, num_graphs):
            return global_mean_pool(self.table(kind + leaks * batch), batch, num_graphs)

    graphs = [
        Data(x=torch.ones(2, 1), kind=torch.tensor(kind), y=torch.zeros(1, 2), edge_index=NO_EDGES)
        for kind in ([0, 0], [0, 0])
    ]
    store = sg.GraphStore.from_pyg(graphs)
    batch = sg.StaticBatch.of(store, [0, 1], (9, 5, 4))
    leaks = True
    with pytest.raises(sg.errors.PaddingLeaks, match=r"the parameter table\.weight") as raised:
        runner_of(Table(), [batch.capacity]).step(batch)
    assert raised.value.module == "table"
    leaks = False
    runner_of(Table(), [batch.capacity]).step(batch)


def test_whole_floats_and_integers_stay_categories():
    """Garbage outside a table's range would raise an error of its own, fatal on a device."""

    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(3, C)
            self.head = nn.Linear(C, 2)

        def forward(self, x, edge_type, node_type, edge_index, batch):
            h = self.table(node_type) + self.table(node_type.double().long())
            return self.head(global_mean_pool(h, batch)).to(x.dtype)

    model = made_any(Table)
    check = runner_of(model).preparation.padding
    check.check_batch(BATCH, "step")
    assert not check.wanted("step")


def made_any(kind):
    torch.manual_seed(0)
    return kind().double()


class Lengths(nn.Module):
    """Finite on real rows in value and derivative, but not on zeros: in any field of the data."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1)

    def forward(self, R, mass, edge_attr, edge_index, cell, batch):
        src, dst = edge_index
        along = R[src] - R[dst]
        unit = along / along.norm(dim=1, keepdim=True)
        terms = torch.cat([unit, 1 / edge_attr], 1)
        h = torch.zeros(len(R), 4).to(R).index_add(0, dst, self.head.weight * terms)
        h = h + mass.log()[:, None] + (R / R.norm(dim=1, keepdim=True)).sum(1, keepdim=True)
        inverse = torch.linalg.inv(cell.view(-1, 3, 3)).sum((1, 2))
        return self.head(global_add_pool(h, batch)).squeeze(1) + inverse * self.head.bias


def lengths_store(**options) -> sg.GraphStore:
    random = torch.Generator().manual_seed(0)

    def real(*shape):
        return torch.rand(*shape, generator=random, dtype=torch.float64) + 0.5

    ring = torch.stack([torch.arange(4), torch.arange(1, 5) % 4])
    ring = torch.cat([ring, ring.flip(0)], 1)
    graphs = [
        Data(
            R=real(4, 3), mass=real(4), edge_attr=real(8, 1), edge_index=ring, cell=real(3, 3),
            y=real(1),
        )
        for _ in range(8)
    ]  # fmt: skip
    return sg.GraphStore.from_pyg(graphs, **options)


def test_what_is_finite_on_real_rows_is_finite_on_padding():
    store, model = lengths_store(), Lengths().double()
    plan = sg.plan_buckets(store, batch_size=3, margin=0.0)
    report = sg.check(model, plan, store)
    assert report.parity is not None
    assert report.parity < 1e-9
    assert not {each.kind for each in report.obstacles} & RESULTS
    runner = sgd_runner(model, plan, rate=1e-3)
    for batch in runner.loader(store):
        assert bool(torch.isfinite(runner.step(batch)))
        assert bool(torch.isfinite(model.head.weight.grad).all())


def test_a_number_that_is_not_finite_over_padding_is_named_with_field_and_line():
    class Apart(Lengths):
        def forward(self, R, mass, edge_attr, edge_index, cell, batch):
            return self.head(global_add_pool(R[:, [0, 1, 2, 0]], batch)).squeeze(1) + self.ratio(
                global_add_pool(mass, batch)
            )

        def ratio(self, total):
            return self.head.bias / total  # here

    store, model = lengths_store(), Apart().double()
    batch = sg.StaticBatch.of(store, [0, 1], (9, 20, 12))  # nine padding graphs of one node
    runner = sgd_runner(model, [(9, 20, 12)], rate=1e-3)
    with pytest.raises(
        sg.errors.PaddingLeaks, match=r"not finite.*test_padding_check.py:\d+: .*# here"
    ):
        runner.step(batch)


def log_of_size(x, batch, ptr):
    return ptr.diff().log()[:, None].expand(-1, x.size(1))


def deviation(x, batch, ptr):
    apart = x - global_mean_pool(x, batch)[batch]
    return global_mean_pool(apart.square(), batch).sqrt()


@pytest.mark.parametrize("feature", [log_of_size, deviation])
def test_padding_graphs_of_no_node_and_of_one_are_met_before_training(feature):
    class Featured(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.head = nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x, batch, ptr):
            return self.head(feature(self.lin(x), batch, ptr))

    ends = [torch.arange(n) for n in (3, 4, 5)]
    data = [
        Data(x=torch.randn(len(e), 4), edge_index=torch.stack([e, e.roll(1)]), y=torch.ones(1, 1))
        for e in ends
    ]
    model, plan = Featured(), [(14, 16, 4)]  # two padding nodes that differ, in one padding graph
    runner = sgd_runner(model, plan, rate=0.1)
    batch = sg.Padder(plan)(data)
    with pytest.raises(sg.errors.PaddingLeaks, match="padding graph may have no nodes"):
        runner.step(batch)


def test_padding_that_reaches_only_imaginary_parts_is_found():
    class Waves(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = GCNConv(C, 1)

        def forward(self, x, edge_index, batch, num_graphs):
            h = self.conv(x, edge_index)
            waves = torch.complex(h, h - h.mean(0))
            return waves.new_zeros(num_graphs, 1).index_add(0, batch, waves)

    runner = sg.StaticGraphRunner(make_model(Waves), PLAN, "eager")
    with pytest.raises(sg.errors.PaddingLeaks, match="the output changes"):
        runner.eval_step(BATCH.clone())


def test_a_number_within_a_graph_that_leaves_the_batch_on_padding_says_what_to_do():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 1)

        def forward(self, x, root, ptr):
            return self.lin(x)[root + ptr[:-1]]

    data = [
        Data(x=torch.randn(4, 4), edge_index=NO_EDGES, root=torch.tensor([3]), y=torch.ones(1, 1))
    ]
    model, plan = Root(), [(6, 0, 4)]
    runner = sgd_runner(model, plan, rate=0.1)
    with pytest.raises(IndexError) as raised:
        runner.step(sg.Padder(plan)(data))
    assert "root_index" in raised.value.__notes__[0]


def test_what_is_set_on_a_batch_is_beside_plain_pyg_too():
    runner = sg.StaticGraphRunner(
        nn.Linear(C, 1).double(),
        PLAN,
        forward=lambda model, batch: model(batch.x) * hasattr(batch, "weight"),
    )
    runner.eval_step(BATCH.replace(weight=torch.ones(len(BATCH.edge_index[0]))))
