"""Attention among neighbours in mode ``fused``, however it is written and scored, gives what plain
PyG computes, as one program where a softmax weighs a sum of rows."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F
from support.random_forward import RandomForward
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
from torch_geometric.nn import GATConv, GATv2Conv, TransformerConv, global_add_pool

import staticgraph as sg
from staticgraph.kernels.neighbours import neighbours_of
from staticgraph.kernels.neighbours.program import program_of
from staticgraph.rewrites.layers import dropout

HEADS = 3  # as many as columns per head, so a sum over the other has the same shape
WIDTH = HEADS**2


class Model(nn.Module):
    """A node encoder, an encoder of edge categories, the layers, and a sum."""

    def __init__(self, conv, edges=True):
        super().__init__()
        self.atoms = nn.Linear(9, WIDTH)
        self.bonds = Tables(BONDS, WIDTH) if edges else None
        self.convs = nn.ModuleList([conv(), conv()])
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

# Steps of a forward, as in test_rewrites_random.py: rows of 16 columns, or of four heads of four,
# and two results of eight.
PROJECTED = """
q, k, v = self.extra(h0).chunk(3, dim=-1)
edge = torch.cat([e0, e0.tanh()], 1)"""
IN_HEADS = (
    PROJECTED
    + """
q, k, v, edge = (rows.view(-1, 4, 4) for rows in (q, k, v, edge))"""
)
RESULTS = """
h1, h2 = out[:, :8], out[:, 8:]"""
# Forms whose softmax and the sum that it weighs are one program.
WHOLE = {
    "one head": PROJECTED
    + """
weights = softmax((q[dst] * k[src]).sum(-1) / 4.0, dst, num_nodes=n)
out = scatter(weights.unsqueeze(-1) * v[src], dst, 0, n)""",
    "a kept dimension": PROJECTED
    + """
scores = torch.sum(q[dst] * (k[src] + edge), dim=-1, keepdim=True) * 16**-0.5
out = scatter(softmax(scores, dst, num_nodes=n) * (edge + v[src]), dst, 0, n)""",
    "heads in the message only": PROJECTED
    + """
q, k, v = (rows.view(-1, 4, 4) for rows in (q[dst], k[src] + edge, v[src]))
weights = softmax(torch.einsum('ehc, ehc -> eh', q, k) / 4**0.5, dst, num_nodes=n)
out = scatter((v * weights[..., None]).reshape(-1, 16), dst, 0, n)""",
    "a matrix product with a scaled operand": PROJECTED
    + """
q, k = (rows.unflatten(-1, (4, 4)) for rows in (q[dst] / 4**0.5, k[src]))
scores = (q.unsqueeze(-2) @ k.unsqueeze(-1)).squeeze(-1).squeeze(-1)
weights = softmax(scores, dst, num_nodes=n).view(-1, 4, 1)
out = scatter((weights * (v[src] + edge).view(-1, 4, 4)).flatten(1), dst, 0, n)""",
    "heads of nodes": IN_HEADS
    + """
scores = ((k[src] + edge) * q[dst] * 4**-0.5).sum(dim=2)
weights = softmax(scores, dst, num_nodes=n)
out = torch.zeros_like(v).index_add(0, dst, weights.unsqueeze(2) * v[src]).view(n, 16)""",
    "a sum over the wrong one of two dimensions of equal size": IN_HEADS
    + """
weights = softmax((q[dst] * k[src]).sum(1), dst, num_nodes=n)
out = scatter(weights.unsqueeze(-1) * v[src], dst, 0, n).flatten(1)""",
}
APART = {
    "one weight per column, shared by all heads": IN_HEADS
    + """
weights = softmax((q[dst] * k[src]).sum(-1), dst, num_nodes=n)
out = scatter(weights.unsqueeze(1) * v[src], dst, 0, n).flatten(1)""",
    "a mean": PROJECTED
    + """
weights = softmax((q[dst] * k[src]).sum(-1) / 4.0, dst, num_nodes=n)
out = scatter(weights.unsqueeze(-1) * v[src], dst, 0, n, 'mean')""",
    "weights that are read again": PROJECTED
    + """
weights = softmax((q[dst] * k[src]).sum(-1), dst, num_nodes=n)
out = scatter(weights.unsqueeze(-1) * v[src], dst, 0, n)
out = out * scatter(weights.square(), dst, 0, n).unsqueeze(-1)""",
}
# They must be the ones that weigh the sum.
DROPPED_AND_KEPT = (
    PROJECTED
    + """
weights = F.dropout(softmax((q[dst] * k[src]).sum(-1), dst, num_nodes=n), 0.3).unsqueeze(-1)
out = scatter(weights * v[src], dst, 0, n) + scatter(weights, dst, 0, n)"""
)


def of_steps(steps):
    return RandomForward((steps + RESULTS).strip(), nn.Linear(8, 3 * 16))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", LAYERS)
def test_attention_of_a_layer_is_that_of_plain_pyg_as_one_program(name, esol):
    runner = assert_as_in_plain_pyg(seeded(lambda: Model(*LAYERS[name])), esol)
    assert fired(runner)["softmax"] == _softmaxes(runner) == 2
    assert not missed(runner)


@pytest.mark.sampled(
    4,
    always=[
        "a matrix product with a scaled operand",
        "one weight per column, shared by all heads",
    ],
)
@pytest.mark.parametrize("form", [*WHOLE, *APART])
def test_attention_by_hand_is_that_of_plain_pyg_as_one_program_where_it_weighs_rows(form, esol):
    runner = assert_as_in_plain_pyg(seeded(lambda: of_steps((WHOLE | APART)[form])), esol)
    assert fired(runner)["softmax"] == 1
    assert _softmaxes(runner) == (form in WHOLE)
    assert not missed(runner)


def _softmaxes(runner):
    """How many programs weigh sums by a softmax."""
    keys = [node.args[0] for node in captured(runner).graph.nodes if node.target is neighbours_of]
    results = [result for key in keys for result in program_of(key).results]
    return sum(result.reduction == "softmax" for result in results)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["transformer", "gat", "kept"])
def test_dropped_weights_are_those_of_torch(name, esol, monkeypatch):
    """The program multiplies rows by a dropout of ones: torch's own draws the same numbers."""
    rewrites = sys.modules["staticgraph.rewrites.rewrite"]
    order = [one for one in rewrites.ORDER if one is not dropout.rewrite]
    monkeypatch.setattr(rewrites, "ORDER", order)
    build = {
        "transformer": lambda: Model(layer(dropout=0.3, edge_dim=WIDTH)),
        "gat": lambda: Model(lambda: GATConv(WIDTH, HEADS, HEADS, edge_dim=WIDTH, dropout=0.3)),
        "kept": lambda: of_steps(DROPPED_AND_KEPT),
    }[name]
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY)
    found = []
    for mode in ("eager", "fused"):
        model = seeded(build)
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


# Rows of as many heads as columns, so that a sum over the other has the same shape; those of edges
# have a bias, with which their score is no product with a weight.
ROWS = """
rows, att = self.extra.lin_l(h0).view(-1, 4, 4), self.extra.att
edges = self.extra.lin_r(e0).view(-1, 4, 4)
"""
WEIGHED = """
weight = softmax({score}, dst, num_nodes=n)
out = scatter(rows[src] * weight.unsqueeze(-1), dst, 0, n).flatten(1)"""
SCORES = {
    "of pairs": "(F.leaky_relu(rows[src] + rows[dst] + edges, 0.2) * att).sum(-1)",
    "over heads": "(F.leaky_relu(rows[src] + rows[dst] + edges, 0.2) * att).sum(1)",
    "of one row of all edges": "(F.leaky_relu(rows[src] + rows[dst] + att, 0.2) * att).sum(-1)",
    "of nodes": """F.leaky_relu(
    (rows * att).sum(-1)[src] + (rows * att).sum(dim=-1)[dst] + (edges * att).sum(-1), 0.2)""",
    "of nodes over heads": """F.leaky_relu(
    (rows * att).sum(1)[src] + (rows * att).sum(-1)[dst] + (edges * att).sum(1), 0.2)""",
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("score", SCORES)
def test_scores_are_added_up_as_the_model_says(score, esol):
    steps = (ROWS + WEIGHED.format(score=SCORES[score]) + RESULTS).strip()
    model = seeded(lambda: RandomForward(steps, GATv2Conv(8, 4, heads=4)))
    runner = assert_as_in_plain_pyg(model, esol)
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
