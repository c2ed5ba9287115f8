"""Functions in all their forms: one form is canonical, and the others keep their meaning."""

from __future__ import annotations

import pytest
import torch
from support.random_forward import RandomForward
from support.rewritten import CAPACITY, IDS, difference, fired, seeded
from support.runners import made_runner
from torch_geometric.nn import GCNConv

import staticgraph as sg
from staticgraph.rewrites import RewriteTarget, rewrite
from staticgraph.rewrites.captured_graph.canonical_ops import is_method

# Steps of a forward, as in test_rewrites_random.py.
FORMS = {
    "alpha of a norm": "h1 = torch.add(self.norm(self.product(h0)), h0, alpha=0.5)",
    "alpha of ends": "h1 = scatter(torch.add(h0[src], h0[dst], alpha=-1).relu(), dst, 0, n)",
    "alpha of a sum": "h1 = torch.zeros_like(h0).index_add(0, dst, h0[src], alpha=0.5)",
    "a quotient that is rounded": """
e1 = h0[src] * 10
h1 = scatter(torch.div(e1, 3, rounding_mode='floor') + e1, dst, 0, n)""",
    "a gather from a matrix with one column per node": """
h1 = scatter(torch.index_select(h0.T, 1, src).T, dst, 0, n)""",
    "ends selected by name": """
first, second = edge_index.select(dim=0, index=0), edge_index.select(0, index=1)
h1 = scatter(h0[first], second, 0, n) + h0.select(dim=1, index=3)[:, None]""",
    "ends that are stacked and unpacked again": """
row, col = torch.stack((src, dst), dim=0)
h1 = scatter(h0[row], col, 0, n)""",
    "ends stacked the other way round, which are not the batch's own pair": """
turned = torch.stack([dst, src])
h1 = scatter(h0[turned[0]], turned[-1], 0, n)""",
    "a layer that gets the stacked pair": "h1 = self.extra(h0, torch.stack([src, dst]))",
    "a gather by ends that are expanded to every column": """
e1 = torch.gather(h0, 0, src.unsqueeze(-1).expand(-1, h0.size(1)))
e2 = h0.gather(0, src[:, None].expand(-1, 8)) * 2
e3 = torch.gather(h0, 0, torch.stack([src, dst] * 4, 1))
h1 = scatter(e1, dst, 0, n) + scatter(e2 + e3, dst, 0, n)""",
    # Along another dimension than that of the stack it is not a sum of its parts.
    "tables by column, summed as a stack": """
rows = [F.embedding(kind[:, i] % 8, self.product.weight) for i in range(3)]
h1 = torch.stack(rows, dim=-1).sum(dim=-1) + torch.stack(rows).sum(-1).T.mean(1)[:, None]""",
    "means that exclude the tensor they are written into, and one that includes it": """
rows = h0[src]
index, zeros = dst.view(-1, 1).expand_as(rows), torch.zeros_like(h0)
h1 = zeros.scatter_reduce(0, index, rows, 'mean', include_self=False)
h2 = torch.zeros_like(h0).scatter_reduce(0, index, rows, 'amax', include_self=False)
h3 = torch.zeros_like(h0).scatter_reduce(0, index, rows, 'mean')""",
    "a gather without a gradient": """
h1 = self.product(h0)
with torch.no_grad():
    rows = h1[src]
h2 = scatter(rows, dst, 0, n) + scatter(h1[src], dst, 0, n) * 2""",
    # The program that computes it belongs before the region, in which it would have no gradient.
    "a message that is first read without a gradient": """
rows = h0[src].tanh()
with torch.no_grad():
    share = self.product(rows).abs().mean(-1, keepdim=True)
h1 = scatter(rows * share, dst, 0, n) + scatter(self.product(rows), dst, 0, n)""",
    # What a program reads stays in its region, though another program of them comes first.
    "rows without a gradient": """
rows = h0[src] * 0.5
first = scatter(rows, dst, 0, n, 'max')
with torch.no_grad():
    fixed = h0.tanh() * 2
h1 = first + scatter(fixed[src] * rows, dst, 0, n)""",
}
FIRES = {
    "ends selected by name": 1,
    "means that exclude the tensor they are written into, and one that includes it": 3,
}


def of_steps(steps):
    return seeded(lambda: RandomForward(steps.strip(), GCNConv(8, 8)))


@pytest.mark.sampled(3, always=FIRES)
@pytest.mark.parametrize("form", FORMS)
def test_outputs_and_gradients_are_those_of_plain_pyg(form, esol):
    largest, runner = difference(of_steps(FORMS[form]), esol)
    assert largest <= 1e-10
    if form in FIRES:
        assert fired(runner)["neighbours"] == FIRES[form]


def test_a_region_of_autocast_keeps_its_own_dtype(esol):
    """Part of the forward in bfloat16, with its activation outside that region."""
    steps = """
narrow = h0.float()
with torch.autocast('cpu', torch.bfloat16):
    wide = F.linear(narrow, self.product.weight.float(), self.product.bias.float())
h1 = wide.relu().double() + scatter(narrow[src], dst, 0, n).double()"""
    assert difference(of_steps(steps), esol)[0] <= 1e-4


def test_a_model_in_half_precision_keeps_its_casts_inside_messages(esol):
    """A message of float32 rows, rounded to what the layer is kept in."""
    model = of_steps("h1 = scatter(h0[src].float().tanh().to(h0.dtype), dst, 0, n)").bfloat16()
    runner = made_runner(model, [CAPACITY], "fused", check_padding=False)
    runner(sg.StaticBatch.of(esol, IDS, CAPACITY))
    assert fired(runner)["neighbours"] == 1


def unread(x):
    """Draws random numbers, and writes running statistics, which no schema says."""
    statistics = torch.zeros(3), torch.ones(3)
    return torch.rand(1), torch.native_batch_norm(x, None, None, *statistics, True, 0.1, 1e-5)


NEW_DIMENSIONS = {
    "behind all": lambda x: (x.max(), *unread(x), x[..., None])[-1],
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
    only what has an effect stays."""
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
    effects = {torch.rand, torch.native_batch_norm}
    assert targets & effects == (effects if name == "behind all" else set())
