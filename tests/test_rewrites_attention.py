"""Attention among neighbours in mode ``fused``, however it is written and scored, gives what plain
PyG computes, as one program where a softmax weighs a sum of rows."""

from __future__ import annotations

import math
import sys

import pytest
import torch
import torch.nn.functional as F
from support.rewritten import (
    CAPACITY,
    IDS,
    assert_as_in_plain_pyg,
    captured,
    fired,
    missed,
    seeded,
)
from support.runners import made_runner
from support.written_by_hand import BONDS, Tables
from torch import nn
from torch_geometric.nn import GATConv, MessagePassing, TransformerConv, global_add_pool
from torch_geometric.nn.aggr import MeanAggregation
from torch_geometric.utils import scatter, softmax

import staticgraph as sg
from staticgraph.kernels.neighbours import neighbours_of
from staticgraph.kernels.neighbours.program import program_of
from staticgraph.rewrites.layers import dropout

HEADS = 3  # as many as columns per head, so a sum over the other has the same shape
WIDTH = HEADS**2


class Model(nn.Module):
    """A node encoder, an encoder of edge categories, the layers, and a sum."""

    def __init__(self, conv, edges=True, layers=2):
        super().__init__()
        self.atoms = nn.Linear(9, WIDTH)
        self.bonds = Tables(BONDS, WIDTH) if edges else None
        self.convs = nn.ModuleList(conv() for _ in range(layers))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x, edge_index, edge_attr, batch):
        h = self.atoms(x.to(self.atoms.weight) / 8)
        more = () if self.bonds is None else (self.bonds(edge_attr),)
        for conv in self.convs:
            h = h + F.elu(conv(h, edge_index, *more))
        return self.head(global_add_pool(h, batch))


def layer(**options):
    """PyG's own layer; with ``concat=False`` each head has the full width."""
    columns = HEADS if options.get("concat", True) else WIDTH
    return lambda: TransformerConv(WIDTH, columns, **{"heads": HEADS, **options})


LAYERS = {
    "edges": (layer(edge_dim=WIDTH), True),
    "no edges": (layer(), False),
    "averaged": (layer(concat=False, edge_dim=WIDTH), True),
    "gated": (layer(beta=True, edge_dim=WIDTH), True),
    "averaged, gated": (layer(beta=True, concat=False), False),
    "no root": (layer(root_weight=False, bias=False), False),
    "one head": (lambda: TransformerConv(WIDTH, WIDTH, edge_dim=WIDTH), True),
}


# ---------------------------------------------------------------------- written by hand


class OneHead(MessagePassing):
    """Two-dimensional, as in textbooks."""

    def __init__(self):
        super().__init__(aggr="add")
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x, edge_index, edge_attr):
        given = {"q": self.q(x), "k": self.k(x), "v": self.v(x), "edge_attr": edge_attr}
        return self.propagate(edge_index, **given)

    def message(self, q_i, k_j, v_j, edge_attr, index, ptr, size_i):
        alpha = (q_i * k_j).sum(-1) / math.sqrt(q_i.size(-1))
        return softmax(alpha, index, ptr, size_i).unsqueeze(-1) * v_j


class KeptDimension(OneHead):
    def message(self, q_i, k_j, v_j, edge_attr, index, ptr, size_i):
        alpha = torch.sum(q_i * (k_j + edge_attr), dim=-1, keepdim=True) * WIDTH**-0.5
        return softmax(alpha, index, ptr, size_i) * (edge_attr + v_j)


class Flattened(OneHead):
    """Heads in the message only."""

    def message(self, q_i, k_j, v_j, edge_attr, index, ptr, size_i):
        q, k, v = (one.view(-1, HEADS, HEADS) for one in (q_i, k_j + edge_attr, v_j))
        alpha = softmax(torch.einsum("ehc, ehc -> eh", q, k) / HEADS**0.5, index, ptr, size_i)
        return (v * alpha[..., None]).reshape(-1, WIDTH)


class Multiplied(OneHead):
    """The product as a matrix product, with a scaled operand."""

    def message(self, q_i, k_j, v_j, edge_attr, index, ptr, size_i):
        q, k = (one.unflatten(-1, (HEADS, HEADS)) for one in (q_i / math.sqrt(HEADS), k_j))
        alpha = (q.unsqueeze(-2) @ k.unsqueeze(-1)).squeeze(-1).squeeze(-1)
        alpha = softmax(alpha, index, ptr, size_i).view(-1, HEADS, 1)
        return (alpha * (v_j + edge_attr).view(-1, HEADS, HEADS)).flatten(1)


class NoLayer(OneHead):
    """Gathers and sums written out, from a single projection."""

    def __init__(self):
        super().__init__()
        self.qkv, self.edges = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)

    def projected(self, x):
        return (one.view(-1, HEADS, HEADS) for one in self.qkv(x).chunk(3, dim=-1))

    def forward(self, x, edge_index, edge_attr):
        src, dst = edge_index
        q, k, v = self.projected(x)
        edge = self.edges(edge_attr).view(-1, HEADS, HEADS)
        scores = ((k[src] + edge) * q[dst] * HEADS**-0.5).sum(dim=2)
        weights = softmax(scores, dst, num_nodes=len(x))
        out = torch.zeros_like(v).index_add(0, dst, weights.unsqueeze(2) * v[src])
        return out.view(len(x), WIDTH)


class OverHeads(NoLayer):
    """Sums over the wrong one of two dimensions of equal size."""

    def forward(self, x, edge_index, edge_attr):
        src, dst = edge_index
        q, k, v = self.projected(x)
        weights = softmax((q[dst] * k[src]).sum(1), dst, num_nodes=len(x))
        return scatter(self.weighed(weights, v[src]), dst, 0, len(x)).flatten(1)

    def weighed(self, weights, rows):
        return weights.unsqueeze(-1) * rows


class ByColumns(OverHeads):
    """One weight per column, shared by all heads."""

    def forward(self, x, edge_index, edge_attr):
        src, dst = edge_index
        q, k, v = self.projected(x)
        weights = softmax((q[dst] * k[src]).sum(-1), dst, num_nodes=len(x))
        return scatter(weights.unsqueeze(1) * v[src], dst, 0, len(x)).flatten(1)


class Averaged(OneHead):
    def __init__(self):
        super().__init__()
        self.aggr_module = MeanAggregation()


class Kept(OneHead):
    """Its weights are read again."""

    def forward(self, x, edge_index, edge_attr):
        found = super().forward(x, edge_index, edge_attr)
        return found * scatter(self.alpha.square(), edge_index[1], 0, len(x)).unsqueeze(-1)

    def message(self, q_i, k_j, v_j, edge_attr, index, ptr, size_i):
        self.alpha = softmax((q_i * k_j).sum(-1), index, ptr, size_i)
        return self.alpha.unsqueeze(-1) * v_j


# Whether the softmax and the sum that it weighs are one program; by default every third case.
BY_HAND = {
    **dict.fromkeys((OneHead, KeptDimension, Flattened, Multiplied, NoLayer, OverHeads), True),
    **dict.fromkeys((ByColumns, Averaged, Kept), False),
}
CASES = {
    **{name: (*given, True, 2) for name, given in LAYERS.items()},
    **{conv.__name__: (conv, True, whole, 1) for conv, whole in BY_HAND.items()},
}


@pytest.mark.sampled(4, always=["Multiplied", "ByColumns"])
@pytest.mark.parametrize("name", CASES)
def test_attention_is_that_of_plain_pyg_as_one_program(name, esol):
    conv, edges, whole, layers = CASES[name]
    runner = assert_as_in_plain_pyg(seeded(lambda: Model(conv, edges, layers)), esol)
    assert fired(runner)["softmax"] == layers
    assert _softmaxes(runner) == layers * whole
    assert not missed(runner)


def _softmaxes(runner):
    """How many programs weigh sums by a softmax."""
    keys = [node.args[0] for node in captured(runner).graph.nodes if node.target is neighbours_of]
    results = [result for key in keys for result in program_of(key).results]
    return sum(result.reduction == "softmax" for result in results)


class DroppedAndKept(OneHead):
    """Its dropped weights are read again: they must be the ones that weigh the sum."""

    def forward(self, x, edge_index, edge_attr):
        found = super().forward(x, edge_index, edge_attr)
        return found + scatter(self.alpha, edge_index[1], 0, len(x))

    def message(self, q_i, k_j, v_j, edge_attr, index, ptr, size_i):
        alpha = softmax((q_i * k_j).sum(-1), index, ptr, size_i)
        self.alpha = F.dropout(alpha, 0.3).unsqueeze(-1)
        return self.alpha * v_j


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["transformer", "gat", "kept"])
def test_dropped_weights_are_those_of_torch(name, esol, monkeypatch):
    """The program multiplies rows by a dropout of ones: torch's own draws the same numbers."""
    rewrites = sys.modules["staticgraph.rewrites.rewrite"]
    order = [one for one in rewrites.ORDER if one is not dropout.rewrite]
    monkeypatch.setattr(rewrites, "ORDER", order)
    conv = layer(dropout=0.3, edge_dim=WIDTH)
    if name == "gat":
        conv = lambda: GATConv(WIDTH, HEADS, HEADS, edge_dim=WIDTH, dropout=0.3)  # noqa: E731
    conv = DroppedAndKept if name == "kept" else conv
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY)
    found = []
    for mode in ("eager", "fused"):
        model = seeded(lambda: Model(conv))
        runner = made_runner(model, [CAPACITY], mode, check_padding=False)
        runner(batch)
        torch.manual_seed(3)
        out = runner(batch)[batch.graph_mask]
        out.sin().sum().backward()
        found.append([out, *(one.grad for one in model.parameters())])
    assert _softmaxes(runner) == (0 if name == "kept" else 2)
    torch.testing.assert_close(*found, rtol=1e-9, atol=1e-11)
    assert found[1][0].std() > 0


# ---------------------------------------------------------------------- scores


class Attending(nn.Module):
    """Softmax over neighbours of a score that ``score`` computes from rows at both ends."""

    def __init__(self, score):
        super().__init__()
        self.score = score
        self.atoms, self.bonds = nn.Linear(9, HEADS**2), nn.Linear(3, HEADS**2)
        self.att = nn.Parameter(torch.randn(1, HEADS, HEADS))
        self.bias, self.head = nn.Parameter(torch.randn(1, HEADS)), nn.Linear(HEADS**2, 1)

    def forward(self, x, edge_index, edge_attr, batch):
        rows = self.atoms(x.to(self.bias.dtype)).view(-1, HEADS, HEADS)
        edges = self.bonds(edge_attr.to(self.bias.dtype)).view(-1, HEADS, HEADS)
        src, dst = edge_index
        score = self.score(self, rows, edges, src, dst)
        weight = softmax(score, dst, num_nodes=len(x))
        summed = scatter(rows[src] * weight.unsqueeze(-1), dst, 0, len(x))
        return self.head(global_add_pool(F.elu(summed.flatten(1)), batch))


def of_pairs(model, rows, edges, src, dst):
    return (F.leaky_relu(rows[src] + rows[dst] + edges, 0.2) * model.att).sum(-1)


def over_heads(model, rows, edges, src, dst):
    return (F.leaky_relu(rows[src] + rows[dst] + edges, 0.2) * model.att).sum(1)


def one_row_of_all_edges(model, rows, edges, src, dst):
    return (F.leaky_relu(rows[src] + rows[dst] + model.att, 0.2) * model.att).sum(-1)


def of_nodes(model, rows, edges, src, dst):
    one, other = (rows * model.att).sum(-1), (rows * model.att).sum(dim=-1)
    return F.leaky_relu(one[src] + other[dst] + (edges * model.att).sum(-1), 0.2)


def of_nodes_over_heads(model, rows, edges, src, dst):
    one, other = (rows * model.att).sum(1), (rows * model.att).sum(-1)
    return F.leaky_relu(one[src] + other[dst] + (edges * model.att).sum(1), 0.2)


SCORES = [of_pairs, over_heads, one_row_of_all_edges, of_nodes, of_nodes_over_heads]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("score", SCORES, ids=lambda score: score.__name__)
def test_scores_are_added_up_as_the_model_says(score, esol):
    runner = assert_as_in_plain_pyg(seeded(lambda: Attending(score)), esol)
    assert _softmaxes(runner) == 1
    assert not fired(runner)["score_products"]


def test_half_precision_gives_the_dtype_of_the_trace(esol):
    """Under autocast, sums are in float32 and the result is as accurate as PyG's own."""
    model = Model(layer(edge_dim=WIDTH))
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY)
    outs = {}
    for mode, dtype in (("eager", None), ("eager half", torch.bfloat16), ("fused", torch.bfloat16)):
        runner = sg.StaticGraphRunner(model, [CAPACITY], mode.split()[0], autocast=dtype)
        outs[mode] = runner(batch)[batch.graph_mask].detach()
    assert _softmaxes(runner) == 2
    assert outs["fused"].dtype == outs["eager half"].dtype
    error = (outs["eager half"].float() - outs["eager"]).abs().max()
    assert (outs["fused"].float() - outs["eager"]).abs().max() <= 2 * error
