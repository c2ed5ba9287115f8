"""Functions in all their forms: one form is canonical, and the others keep their meaning."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from support.rewritten import (
    CAPACITY,
    IDS,
    OfNodes,
    difference,
    fired,
    seeded,
    summed,
)
from support.runners import made_runner
from torch import nn
from torch_geometric.nn import GCNConv, global_add_pool
from torch_geometric.utils import scatter

import staticgraph as sg
from staticgraph.rewrites import RewriteTarget, rewrite
from staticgraph.rewrites.captured_graph.canonical_ops import is_method


class AlphaOfNorm(OfNodes):
    def nodes(self, h, edge_index):
        return torch.add(self.norm(self.second(h)), h, alpha=0.5)


class AlphaOfEnds(OfNodes):
    def nodes(self, h, edge_index):
        m = torch.add(h[edge_index[0]], h[edge_index[1]], alpha=-1).relu()
        return summed(m, edge_index, h)


class AlphaOfSum(OfNodes):
    def nodes(self, h, edge_index):
        return torch.zeros_like(h).index_add(0, edge_index[1], h[edge_index[0]], alpha=0.5)


class Rounded(OfNodes):
    def nodes(self, h, edge_index):
        gathered = h[edge_index[0]] * 10
        return summed(torch.div(gathered, 3, rounding_mode="floor") + gathered, edge_index, h)


class ColumnsBySource(OfNodes):
    """A gather from a matrix with one column per node."""

    def nodes(self, h, edge_index):
        rows = torch.index_select(h.T, 1, edge_index[0]).T
        return summed(rows, edge_index, h)


class SelectByName(OfNodes):
    def nodes(self, h, edge_index):
        src, dst = edge_index.select(dim=0, index=0), edge_index.select(0, index=1)
        return scatter(h[src], dst, 0, h.size(0)) + h.select(dim=1, index=3)[:, None]


class StackedEnds(OfNodes):
    """Both ends of the edges are unpacked, stacked and unpacked again."""

    def nodes(self, h, edge_index):
        row, col = edge_index
        row, col = torch.stack((row, col), dim=0)
        return scatter(h[row], col, 0, h.size(0))


class StackedAgain(OfNodes):
    """The same with each edge reversed, which is not the batch's own pair."""

    def nodes(self, h, edge_index):
        row, col = edge_index
        turned = torch.stack([col, row])
        return scatter(h[turned[0]], turned[-1], 0, h.size(0))


class StackedPair(OfNodes):
    """A PyG layer receives the stacked pair."""

    def __init__(self):
        super().__init__()
        self.conv = GCNConv(16, 16)

    def nodes(self, h, edge_index):
        return self.conv(h, torch.stack([edge_index[0], edge_index[1]]))


class StackedSum(OfNodes):
    """Tables by column, summed as a stack; along another dimension it is not a sum of its parts."""

    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(120, 16) for _ in range(3))

    def forward(self, x, edge_index, batch, batch_size):
        found = [table(x[:, i]) for i, table in enumerate(self.tables)]
        h = torch.stack(found, dim=-1).sum(dim=-1) + torch.stack(found).sum(-1).T.mean(1)[:, None]
        return global_add_pool(h, batch, batch_size)


class ExpandedGather(OfNodes):
    """Rows by ``gather``, with the ends of the edges expanded to every column as index."""

    def nodes(self, h, edge_index):
        src, dst = edge_index.unbind(0)
        first = torch.gather(h, 0, src.unsqueeze(-1).expand(-1, h.size(1)))
        second = h.gather(0, src[:, None].expand(-1, 16))
        diagonal = torch.gather(h, 0, torch.stack([src, dst] * 8, 1))
        return summed(first, edge_index, h) + summed(second * 2 + diagonal, edge_index, h)


class MeanOfOthers(OfNodes):
    """One mean that excludes the tensor it is written into, and one that includes it."""

    def nodes(self, h, edge_index):
        rows = h[edge_index[0]]
        index = edge_index[1].view(-1, 1).expand_as(rows)
        into = torch.zeros_like(h)
        first = into.scatter_reduce(0, index, rows, "mean", include_self=False)
        largest = torch.zeros_like(h).scatter_reduce(0, index, rows, "amax", include_self=False)
        return first + largest + torch.zeros_like(h).scatter_reduce(0, index, rows, "mean")


class GatherWithoutGradient(OfNodes):
    def nodes(self, h, edge_index):
        h = self.second(h)
        with torch.no_grad():
            rows = h[edge_index[0]]
        return summed(rows, edge_index, h) + summed(h[edge_index[0]], edge_index, h) * 2


FORMS = [
    AlphaOfNorm,
    AlphaOfEnds,
    AlphaOfSum,
    Rounded,
    ColumnsBySource,
    SelectByName,
    StackedEnds,
    StackedAgain,
    StackedPair,
    StackedSum,
    ExpandedGather,
    MeanOfOthers,
]


class MessageReadWithoutGradientFirst(OfNodes):
    """The program that computes it belongs before the region, in which it would have no
    gradient."""

    def nodes(self, h, edge_index):
        rows = torch.tanh(h[edge_index[0]])
        with torch.no_grad():
            share = self.second(rows).abs().mean(-1, keepdim=True)
        return summed(rows * share, edge_index, h) + summed(self.second(rows), edge_index, h)


class RowsWithoutGradient(OfNodes):
    """What a program reads stays in its region, though another program of them comes first."""

    def nodes(self, h, edge_index):
        rows = h[edge_index[0]] * 0.5
        first = scatter(rows, edge_index[1], 0, h.size(0), "max")
        with torch.no_grad():
            fixed = h.tanh() * 2
        return first + summed(fixed[edge_index[0]] * rows, edge_index, h)


REGIONS = [GatherWithoutGradient, MessageReadWithoutGradientFirst, RowsWithoutGradient]


@pytest.fixture(scope="module")
def compared(esol):
    """The difference of a model from plain PyG and what was rewritten in it, made on first use."""

    @functools.cache
    def of(build):
        largest, runner = difference(seeded(build), esol)
        return largest, fired(runner)

    return of


@pytest.mark.sampled(3)
@pytest.mark.parametrize("build", FORMS + REGIONS)
def test_outputs_and_gradients_are_those_of_plain_pyg(build, compared):
    largest, _ = compared(build)
    assert largest <= 1e-10


@pytest.mark.parametrize(
    ("build", "rewrite", "times"),
    [
        (SelectByName, "neighbours", 1),
        (MeanOfOthers, "neighbours", 3),
    ],
)
def test_another_form_of_ends_and_means_is_rewritten(build, rewrite, times, compared):
    _, rewritten = compared(build)
    assert rewritten[rewrite] == times


class Cast(OfNodes):
    """Part of the forward in bfloat16, with its activation outside that region."""

    def nodes(self, h, edge_index):
        h = h.float()
        with torch.autocast("cpu", torch.bfloat16):
            wide = F.linear(h, self.second.weight.float(), self.second.bias.float())
        return wide.relu().double() + summed(h[edge_index[0]], edge_index, h).double()


def test_a_region_of_autocast_keeps_its_own_dtype(esol):
    largest, _ = difference(seeded(Cast), esol)
    assert largest <= 1e-4


class CastBack(OfNodes):
    """A message of float32 rows, rounded to what the layer is kept in."""

    def forward(self, x, edge_index, batch, batch_size):
        h = self.first(x.to(self.first.weight))
        message = h[edge_index[0]].float().tanh().to(h.dtype)
        return global_add_pool(summed(message, edge_index, h), batch, batch_size)


def test_a_model_in_half_precision_keeps_its_casts_inside_messages(esol):
    runner = made_runner(seeded(CastBack).bfloat16(), [CAPACITY], "fused", check_padding=False)
    runner(sg.StaticBatch.of(esol, IDS, CAPACITY))
    assert fired(runner)["neighbours"] == 1


NEW_DIMENSIONS = {
    "behind all": lambda x: (x.max(), torch.rand(1), x[..., None])[-1],
    "behind one": lambda x: x[:, None],
    "before the last": lambda x: x[..., None, :],
    "before all": lambda x: x[None, :],
    "two": lambda x: x[:, None, None],
    "of a part": lambda x: x[1:, None],
    "and all of it": lambda x: x[:, :, None],
}


@pytest.mark.parametrize("name", NEW_DIMENSIONS)
def test_a_new_dimension_stands_where_the_index_puts_it(name):
    """``x[..., None]`` is spelled as ``unsqueeze`` and gives the same result; of what nobody reads
    only what draws random numbers stays."""
    found = []

    def backend(graph, inputs):
        found.append(rewrite(graph, RewriteTarget("cpu", compiled=False), inputs))
        return graph.forward

    x = torch.arange(6.0).view(2, 3)
    function = torch.compile(NEW_DIMENSIONS[name], backend=backend, fullgraph=True)
    assert torch.equal(function(x), NEW_DIMENSIONS[name](x))
    spelled = [node for node in found[0].graph.nodes if is_method(node, "unsqueeze")]
    assert len(spelled) == (name not in ("two", "of a part"))
    targets = {node.target for node in found[0].graph.nodes}
    assert "max" not in targets
    assert (torch.rand in targets) == (name == "behind all")
