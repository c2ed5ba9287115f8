"""Losses with weights, or with a term added once, equal plain PyG with torch's own means, in value
and gradients, in every mode; where the two means would differ silently, a warning says so."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from support.alike import assert_same_gradients, warned_of
from support.graphs import LABELLED_CAPACITY as CAPACITY
from support.graphs import labelled_batch, labelled_graphs
from support.parity import BATCH
from support.places import mode_of
from support.runners import sgd_runner
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_add_pool

import staticgraph as sg
from staticgraph.steps.loss.mean_loss import LossTerms, masked_mean, mean_loss

MODES = ["traced", "cuda-graph"]
CLASSES = torch.tensor([0.2, 1.0, 3.0], dtype=torch.float64)
TASKS = torch.tensor([1.0, 0.5, 4.0], dtype=torch.float64)


class Net(nn.Module):
    """Outputs a row of three values per graph, and one per node."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lin = nn.Linear(3, 3).double()

    def forward(self, x, batch, batch_size):
        nodes = self.lin(x)
        return global_add_pool(nodes, batch, batch_size), nodes


def real(batch):
    """``[G]`` bool for static and plain batches; plain PyG has only real graphs."""
    return getattr(batch, "graph_mask", torch.ones(10, dtype=torch.bool))


def weights_and_ignored(out, batch):
    values = F.cross_entropy(out[0], batch.kind, reduction="none")
    return values, CLASSES[batch.kind] * (batch.kind != 2)


def train_mask(out, batch):
    return F.cross_entropy(out[1], batch.colour, reduction="none"), batch.train_mask


def task_weights(out, batch):
    return F.mse_loss(out[0], batch.tasks, reduction="none"), TASKS[None]


def penalty(out, batch):
    values = F.cross_entropy(out[0], batch.kind, reduction="none")
    return LossTerms(values, added=0.1 * CLASSES.sum())


def kl_term(out, batch):
    values = F.cross_entropy(out[0], batch.kind, reduction="none")
    nodes = 0.5 * out[1].square().sum(-1)
    mean = sg.masked_mean(nodes, batch) if isinstance(batch, sg.StaticBatch) else nodes.mean()
    return values, CLASSES[batch.kind], 0.3 * mean


def ranking(out, batch):
    score = out[0][:, 0]
    wanted = batch.kind[:, None] > batch.kind[None]
    pairs = wanted & real(batch)[None]
    return F.relu(1 - score[:, None] + score[None]), pairs


def plain_of(loss, out, data):
    """The same loss in plain PyG, with torch's own means."""
    if loss is weights_and_ignored:
        return F.cross_entropy(out[0], data.kind, weight=CLASSES, ignore_index=2)
    if loss is train_mask:
        return F.cross_entropy(out[1][data.train_mask], data.colour[data.train_mask])
    if loss is task_weights:
        is_labeled = data.tasks == data.tasks
        errors = (out[0][is_labeled] - data.tasks[is_labeled]).square()
        shares = TASKS.expand(10, 3)[is_labeled]
        return (errors * shares).sum() / shares.sum()
    if loss is penalty:
        return F.cross_entropy(out[0], data.kind) + 0.1 * CLASSES.sum()
    if loss is kl_term:
        kl = 0.5 * out[1].square().sum(-1).mean()
        return F.cross_entropy(out[0], data.kind, weight=CLASSES) + 0.3 * kl
    values, pairs = loss(out, data)
    return values[pairs].mean()


RECIPES = [
    weights_and_ignored,
    train_mask,
    task_weights,
    penalty,
    kl_term,
    ranking,
]


@pytest.mark.filterwarnings("error:.*its own mean divides")
@pytest.mark.parametrize(
    ("loss", "mode"),
    [(loss, "eager") for loss in RECIPES]
    + [(loss, mode) for loss in (train_mask, kl_term, ranking) for mode in MODES],
)
def test_loss_and_gradients_are_those_of_plain_pyg(loss, mode, monkeypatch):
    model = Net()
    plain = copy.deepcopy(model)
    runner = runner_of(loss, model, mode_of(mode, monkeypatch))
    data = Batch.from_data_list(labelled_graphs())
    expected = plain_of(loss, plain(data.x, data.batch, 10), data)
    expected.backward()
    found = runner.step(labelled_batch())
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    assert_same_gradients(model, plain, rtol=0, atol=1e-10)


def runner_of(loss, model, mode="eager"):
    return sgd_runner(model, [CAPACITY], mode, loss=loss, scope="forward_backward")


def test_a_weight_of_zero_leaves_infinity_out_of_loss_and_gradient():
    def loss(out, batch):
        return 1 / (out[0][:, 0] * (batch.kind != 2)), batch.kind != 2

    model = Net()
    runner = runner_of(loss, model)
    store = sg.GraphStore.from_pyg(labelled_graphs())
    assert torch.isfinite(runner.step(sg.StaticBatch.of(store, range(10), CAPACITY)))
    only = [number for number in range(10) if number % 3 == 2]
    assert runner.step(sg.StaticBatch.of(store, only, CAPACITY)).item() == 0.0


# ---------------------------------------------------------------- differences are reported


def silent(out, batch):
    return F.cross_entropy(out[0], batch.kind, weight=CLASSES, reduction="none")


def silent_index(out, batch):
    return 2 * F.nll_loss(out[0].log_softmax(-1), batch.kind, ignore_index=2, reduction="none")


def weights_twice(out, batch):
    return silent(out, batch), CLASSES[batch.kind]


def silent_with_penalty(out, batch):
    return silent(out, batch), None, 1.0


def tasks_twice(out, batch):
    weight = TASKS.expand_as(out[0])
    return F.mse_loss(out[0], 0 * out[0], weight=weight, reduction="none"), weight


def mean_over_rows(out, batch):
    values = silent(out, batch)
    return values, torch.ones_like(values)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (weights_twice, "they count twice"),
        (tasks_twice, "they count twice"),
        (silent_with_penalty, "its own mean divides"),
        (mean_over_rows, ""),
    ],
)
def test_weights_of_a_tuple_that_are_counted_twice_or_not_at_all_are_said(loss, words):
    with warned_of("is given weights") as texts:
        runner_of(loss, Net()).step(labelled_batch())
    assert [words in text for text in texts] == [True] * bool(words)


@pytest.mark.parametrize("loss", [silent, silent_index])
def test_a_mean_by_rows_of_what_torch_averages_by_weights_is_said(loss):
    store = sg.GraphStore.from_pyg(labelled_graphs())
    runner = runner_of(loss, Net())
    with pytest.warns(UserWarning, match=rf"F\.\w+ is given weights .* the loss {loss.__name__}"):
        runner.step(sg.StaticBatch.of(store, range(10), CAPACITY))
    report = sg.check(Net(), [CAPACITY], store, loss=loss)
    (obstacle,) = report.obstacles
    assert obstacle.kind == "the mean of the loss"
    assert "test_losses.py" in obstacle.where
    assert "return (values, weights)" in str(report)


@pytest.mark.filterwarnings("error")
def test_targets_that_the_default_ignore_index_leaves_out_are_said():
    data = labelled_graphs()
    data[3].kind[:] = -100
    batch = sg.StaticBatch.of(sg.GraphStore.from_pyg(data), range(10), CAPACITY)
    words = r"F\.cross_entropy is given .* \(-100 unless passed\) .* its own mean divides"

    def plain(out, batch):
        return F.cross_entropy(out[0], batch.kind, reduction="none")

    with pytest.warns(UserWarning, match=words):
        runner_of(plain, Net()).step(batch)
    runner_of(lambda out, batch: (plain(out, batch), batch.kind != -100), Net()).step(batch)


@pytest.mark.parametrize(
    ("loss", "match"),
    [
        (lambda out, batch: (out[0], CLASSES), r"weights of shape \[3\] .* weights\[None\]"),
        (lambda out, batch: (out[0], 3.0), "weights of type float"),
        (lambda out, batch: (out[0], None, out[0].new_ones(7)), "whose rows are not the batch's"),
        (lambda out, batch: out[0].sum(), r"return .*\(loss, None, scalar\)"),
        (lambda out, batch: out[0].sum(), "^the loss is a scalar, so padded rows are already"),
        (lambda out, batch: torch.cat([out[0][:, 0], out[1][:, 0]]), r"12 graph rows.* two kinds"),
        (lambda out, batch: [1.0], r"the loss gives a list.*\(values, weights\)"),
        (lambda out, batch: out[1][batch.train_mask], r"\(loss, mask\)|\(values, mask\)"),
    ],
)
def test_what_is_no_loss_says_what_would_be(loss, match):
    with pytest.raises((TypeError, ValueError), match=match):
        runner_of(loss, Net()).step(labelled_batch())


def test_a_mean_in_a_loss_is_told_from_plain_pygs_with_what_to_write():
    """``masked_mean`` and the real counts also work on PyG's batches, so losses are compared."""
    batch = labelled_batch()

    def squared(out):
        return out[0].square()

    def by_hand(out, batch):
        return squared(out), None, squared(out).mean()

    def by_count(out, batch):
        return squared(out) / batch.num_graphs

    def masked(out, batch):
        return squared(out), None, sg.masked_mean(squared(out), batch)

    def by_real_count(out, batch):
        return squared(out) / batch.num_real_graphs

    for loss, said in (
        (by_hand, r"sg\.masked_mean\(values, batch\)"),
        (by_count, "num_real_graphs"),
    ):
        with pytest.raises(sg.errors.PaddingLeaks, match=said):
            runner_of(loss, Net()).step(batch)
    for loss in (masked, by_real_count):
        runner_of(loss, Net()).step(batch)

    def beside_it(out, batch):
        """Wrong values with a correct mean: they are compared with plain PyG all the same."""
        return squared(out) / batch.num_graphs, None, sg.masked_mean(squared(out), batch)

    with pytest.raises(sg.errors.PaddingLeaks, match="number of padding rows changes the result"):
        runner_of(beside_it, Net()).step(batch)


@pytest.mark.filterwarnings("error")
def test_a_mean_of_pairs_is_warned_of_and_a_width_that_is_the_number_of_rows_is_not():
    """Ten targets per graph in a bucket of ten graphs are ``[10, 10]`` on purpose."""
    store = sg.GraphStore.from_pyg(
        [
            Data(x=torch.ones(3, 10), edge_index=torch.zeros(2, 1).long(), y=torch.ones(1, 10))
            for _ in range(9)
        ]
    )
    batch = sg.StaticBatch.of(store, range(9), (40, 20, 10))
    wide, one = torch.nn.Linear(10, 10), torch.nn.Linear(10, 1)
    sg.masked_mean((wide(batch.y) - batch.y).square(), batch).backward()
    sg.masked_mean(F.mse_loss(wide(batch.y), batch.y, reduction="none"), batch)
    with torch.no_grad():
        sg.masked_mean((wide(batch.y) - batch.y).square(), batch)
    flat, out = batch.y[:, 0], one(batch.y)
    pairs = (
        (out - flat).square(),
        F.l1_loss(out.expand(10, 10), flat.expand(10, 10), reduction="none"),
        F.softplus(out * flat),
        (out[:, 0] - batch.y[:, :1]).square(),
    )
    for values in pairs:
        with pytest.warns(UserWarning, match=r"values of shape \[10, 10\]: if an output \[R, 1\]"):
            sg.masked_mean(values, batch)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_mean_in_half_precision_is_torchs_where_its_sum_is_more_than_that_holds(dtype):
    """1,200 values of 225 add up to four times the maximum of float16."""
    many = [Data(x=torch.zeros(300, 1), edge_index=torch.zeros(2, 1).long()) for _ in range(4)]
    batch = sg.StaticBatch.of(sg.GraphStore.from_pyg(many), range(4), (1300, 20, 5))
    values = torch.where(batch.node_mask, 225, 0)[:, None].to(dtype).requires_grad_()
    plain = torch.full((1200, 1), 225, dtype=dtype, requires_grad=True)
    found, expected = sg.masked_mean(values, batch), plain.mean()
    assert (found.item(), found.dtype) == (expected.item(), dtype)
    found.backward()
    expected.backward()
    assert torch.equal(values.grad[:1200], plain.grad)
    weights = torch.full((1300, 1), 3.0)
    assert sg.masked_mean(values, batch, weights=weights).item() == 225
    assert LossTerms(plain, weights[:1200]).mean().item() == 225


@pytest.mark.parametrize("total", [0.0, 0.25, 1.0, 3.0])
def test_a_mean_divides_by_the_sum_of_its_weights_however_small(total):
    random = torch.Generator().manual_seed(0)
    values, weights = torch.rand(2, len(BATCH.graph_mask), 1, generator=random).double()
    real = BATCH.graph_mask
    weights *= total / weights[real].sum()
    expected = (values * weights)[real].sum() / (total or 1.0)
    found = masked_mean(values, BATCH, weights=weights)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    added = mean_loss(lambda out, _: (out, weights, 2.0), values, BATCH)
    assert torch.allclose(added, expected + 2.0, rtol=0, atol=1e-12)
    rows = torch.rand(len(BATCH.node_mask), generator=random).double()
    added = mean_loss(lambda out, _: (out, weights, rows), values, BATCH)
    expected = expected + rows[BATCH.node_mask].mean()
    assert torch.allclose(added, expected, rtol=0, atol=1e-12)
