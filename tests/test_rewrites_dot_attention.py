"""Dot-product attention among neighbours in mode ``fused``, however it is written, gives what plain
PyG computes as one operator; other attention is left to torch."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from support.rewritten import CAPACITY, IDS, assert_as_in_plain_pyg, fired, missed, seeded
from support.written_by_hand import BONDS, Tables
from torch import nn
from torch_geometric.nn import MessagePassing, TransformerConv, global_add_pool
from torch_geometric.utils import scatter, softmax

import staticgraph as sg

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
    "with dropout": (layer(dropout=0.3, edge_dim=WIDTH), True),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name in LAYERS if name != "with dropout"])
def test_a_layer_of_pygs_is_one_operator(name, esol):
    conv, edges = LAYERS[name]
    found = fired(assert_as_in_plain_pyg(seeded(lambda: Model(conv, edges)), esol))
    assert found["dot_attention"] == 2
    assert not {"neighbours", "neighbour_attention"} & set(found)


def test_dropped_weights_keep_it_as_it_was_in_training_alone(esol):
    conv, edges = LAYERS["with dropout"]
    model = seeded(lambda: Model(conv, edges))
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY)
    runner = sg.StaticGraphRunner(model, [CAPACITY], "fused")
    runner(batch)
    assert not fired(runner)["dot_attention"]
    assert "dot_attention: convs.0" in missed(runner)
    assert "attention weights are dropped in training" in missed(runner)
    found = fired(assert_as_in_plain_pyg(model.eval(), esol))
    assert found["dot_attention"] == 2


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

    def forward(self, x, edge_index, edge_attr):
        src, dst = edge_index
        q, k, v = (one.view(-1, HEADS, HEADS) for one in self.qkv(x).chunk(3, dim=-1))
        edge = self.edges(edge_attr).view(-1, HEADS, HEADS)
        scores = ((k[src] + edge) * q[dst] * HEADS**-0.5).sum(dim=2)
        weights = softmax(scores, dst, num_nodes=len(x))
        out = torch.zeros_like(v).index_add(0, dst, weights.unsqueeze(2) * v[src])
        return out.view(len(x), WIDTH)


class FromTheOtherEnd(OneHead):
    """Keys of the node, queries of its neighbours: the same product."""

    def message(self, q_j, k_i, v_j, edge_attr, index, ptr, size_i):
        alpha = (q_j * k_i).sum(-1)
        return v_j * softmax(alpha, index, ptr, size_i).view(-1, 1)


BY_HAND = [OneHead, KeptDimension, Flattened, Multiplied, NoLayer, FromTheOtherEnd]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("conv", BY_HAND)
def test_a_layer_written_by_hand_is_one_operator(conv, esol):
    found = fired(assert_as_in_plain_pyg(seeded(lambda: Model(conv, layers=1)), esol))
    assert found["dot_attention"] == 1, found


# ---------------------------------------------------------------------- nearly


class OverHeads(NoLayer):
    """Sums over the wrong one of two dimensions of equal size."""

    def forward(self, x, edge_index, edge_attr):
        src, dst = edge_index
        q, k, v = (one.view(-1, HEADS, HEADS) for one in self.qkv(x).chunk(3, dim=-1))
        weights = softmax((q[dst] * k[src]).sum(1), dst, num_nodes=len(x))
        return scatter(self.weighed(weights, v[src]), dst, 0, len(x)).flatten(1)

    def weighed(self, weights, rows):
        return weights.unsqueeze(-1) * rows


class ByColumns(OverHeads):
    """One weight per column, shared by all heads."""

    def forward(self, x, edge_index, edge_attr):
        src, dst = edge_index
        q, k, v = (one.view(-1, HEADS, HEADS) for one in self.qkv(x).chunk(3, dim=-1))
        weights = softmax((q[dst] * k[src]).sum(-1), dst, num_nodes=len(x))
        return scatter(weights.unsqueeze(1) * v[src], dst, 0, len(x)).flatten(1)


class Biased(OneHead):
    """A value of the edge is added to the scores."""

    def message(self, q_i, k_j, v_j, edge_attr, index, ptr, size_i):
        alpha = (q_i * k_j).sum(-1) / WIDTH**0.5 + edge_attr.mean(-1)
        return softmax(alpha, index, ptr, size_i).unsqueeze(-1) * v_j


class Gated(OneHead):
    """Keys are multiplied by an edge feature."""

    def message(self, q_i, k_j, v_j, edge_attr, index, ptr, size_i):
        alpha = (q_i * (k_j * edge_attr)).sum(-1)
        return softmax(alpha, index, ptr, size_i).unsqueeze(-1) * v_j


class TwoEdges(OneHead):
    """Keys and values use different rows of the edges."""

    def message(self, q_i, k_j, v_j, edge_attr, index, ptr, size_i):
        alpha = (q_i * (k_j + edge_attr)).sum(-1)
        return softmax(alpha, index, ptr, size_i).unsqueeze(-1) * (v_j + edge_attr.tanh())


class OwnValues(OneHead):
    """Values computed from a node and its neighbour."""

    def message(self, q_i, k_j, v_i, v_j, edge_attr, index, ptr, size_i):
        alpha = (q_i * k_j).sum(-1)
        return softmax(alpha, index, ptr, size_i).unsqueeze(-1) * (v_j - v_i)


class Averaged(OneHead):
    def __init__(self):
        super().__init__()
        self.aggr_module = self._aggregation("mean")

    def _aggregation(self, name):
        from torch_geometric.nn.aggr import MeanAggregation

        return MeanAggregation()


class Kept(OneHead):
    """Its weights are read again."""

    def forward(self, x, edge_index, edge_attr):
        found = super().forward(x, edge_index, edge_attr)
        return found * scatter(self.alpha.square(), edge_index[1], 0, len(x)).unsqueeze(-1)

    def message(self, q_i, k_j, v_j, edge_attr, index, ptr, size_i):
        self.alpha = softmax((q_i * k_j).sum(-1), index, ptr, size_i)
        return self.alpha.unsqueeze(-1) * v_j


# By default every second: not those with a reason like that of the one before.
NEARLY = {
    OverHeads: None,
    ByColumns: None,
    TwoEdges: "keys and values have different rows of the edges",
    Gated: "keys are no rows of neighbours, nor these and rows of the edges",
    Averaged: "an aggregation other than a sum by destination",
    OwnValues: "what is weighed is no row of a neighbour, nor that and one of the edge",
    Kept: "the attention weights are used elsewhere",
    Biased: None,
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("conv", NEARLY, ids=lambda conv: conv.__name__)
def test_another_attention_is_left_and_says_why(conv, esol):
    runner = assert_as_in_plain_pyg(seeded(lambda: Model(conv, layers=1)), esol)
    assert not fired(runner)["dot_attention"]
    reason = NEARLY[conv]
    assert reason is None or f"dot_attention: convs.0, {__name__}.py" in missed(runner)
    assert (reason or "") in missed(runner)


def test_half_precision_gives_the_dtype_of_the_trace(esol):
    """Under autocast, sums are in float32 and the result is as accurate as PyG's own."""
    torch.manual_seed(0)
    model = Model(layer(edge_dim=WIDTH))
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY)
    outs = {}
    for mode, dtype in (("eager", None), ("eager half", torch.bfloat16), ("fused", torch.bfloat16)):
        runner = sg.StaticGraphRunner(model, [CAPACITY], mode.split()[0], autocast=dtype)
        outs[mode] = runner(batch)[batch.graph_mask].detach()
    assert fired(runner)["dot_attention"] == 2
    assert outs["fused"].dtype == outs["eager half"].dtype
    error = (outs["eager half"].float() - outs["eager"]).abs().max()
    assert (outs["fused"].float() - outs["eager"]).abs().max() <= 2 * error
