"""Random forwards in mode ``fused`` against plain PyG: gathers, sums, norms, in-place changes,
views and regions without gradients, in all of torch's spellings."""

from __future__ import annotations

import pytest
from support.random_forward import RandomForward
from support.rewritten import difference, runs, seeded

# Forwards that once gave other numbers: a shared norm with statistics updated out of order, a
# dropout that drops nothing and so returns its operand, an in-place change removed as unread.
FOUND = (67, 73, 76, 203, 263, 274, 284, 292, 305, 368, 381, 392, 4290278, 11072)


def check(seed, store):
    model = seeded(lambda: RandomForward(seed))
    if not runs(model, store):
        pytest.skip("plain PyG does not differentiate this forward")
    largest, _ = difference(model, store)
    assert largest <= 1e-9, model.steps


# Forwards that an earlier version computed wrongly, one line for each cause.
CAUSES = {
    "a matrix per edge, of a row of the edge's own": """
e1 = e0[:, :, None] * e0[:, None].tanh()
h1 = h0 + scatter(h0[src] * torch.einsum('ei,eij->ej', e0.sigmoid(), e1), dst, 0, n)
h2 = h0 + scatter(h0[src] * torch.einsum('eij,ei->ej', e1, e0) + e1.sum(1), dst, 0, n, 'max')""",
    "a node's row that broadcasts": """
one = h0[:, :1]
h2 = scatter(one[src] * e0, dst, 0, n) + scatter(one[src] * (e0 + 1), dst, 0, n, 'mean')
h3 = scatter((one[src] + e0).relu(), dst, 0, n, 'max')
h4 = scatter((one[src] + e0 * 2).relu() * e0[:, :1].detach(), dst, 0, n)""",
    "means of integers and booleans": """
h1 = h0 * scatter(kind[src], dst, 0, n, 'mean')
h2 = h0 * scatter(kind[src] - kind[dst], dst, 0, n, 'mean')
h3 = h0 * scatter(F.one_hot(kind[:, 0] % 3, WIDTH), batch, 0, batch_size, 'mean')[batch]
h4 = h0 * kind.new_zeros(batch_size, WIDTH).scatter_reduce(
    0, batch[:, None].expand(-1, WIDTH), kind, 'mean', include_self=False)[batch]
h5 = h0 * scatter(kind[src] > 1, dst, 0, n, 'mean')""",
    "an index narrower than its rows": """
e1 = e0.detach()
h1 = h0 * h0.new_zeros(n, WIDTH).scatter_add(0, dst[:, None].expand(-1, 4), e1)
h2 = h0 * h0.new_zeros(n, WIDTH).scatter_add(0, dst[:, None], e1)
h3 = h0 * h0.new_zeros(n, WIDTH).scatter_add(0, dst[:50, None].expand(-1, WIDTH), e1)""",
    "rows that are picked before their index is known": """
pick = torch.arange(0, n, 2)
rows = h0[pick].tanh()
more = F.relu(rows @ rows.new_ones(WIDTH, WIDTH)) * rows
h1 = h0 + scatter(more, batch[pick], 0, batch_size)[batch]
h2 = h1 * scatter(rows, batch[pick], 0, batch_size, 'max')[batch]""",
    "casts that ask for rounding": """
h1 = h0 + scatter((h0[src] * e0).bfloat16().double() * e0, dst, 0, n)
h2 = h0 + scatter((h0[src] * e0).float().double() * e0, dst, 0, n)
narrow = h0.detach().float()
h3 = h0 + scatter((narrow[src].bfloat16() * e0.bfloat16()).double(), dst, 0, n)
h4 = h0 + scatter((narrow[src] * (narrow * 3)[dst].half().float()).double() * e0, dst, 0, n)""",
    "rows of a single number": """
h1 = h0 * h0[0, 0].index_select(0, batch.new_zeros(1))
h2 = h0 + torch.zeros_like(h0[0, 0]).index_add(0, batch.new_zeros(1), h0[0, 0])""",
    "a hook on rows that a message reads before": """
h0.tanh_()
h2 = scatter((h0[src] + e0).relu(), dst, 0, n) + h0
h0.register_hook(lambda slope: slope * 0.5)""",
    "a hook on rows without a gradient": """
h1 = h0 - 2 * (h0 + F.relu(h0))
e1 = h0[src]
e2 = h0[dst] + e1
h2 = e2.new_zeros(n, WIDTH).scatter_add(0, dst[:, None], e2.detach())
e1.register_hook(lambda slope: slope * 0.5)""",
    "a hook on rows that were changed in place": """
e0.mul_(0.5)
h1 = scatter((e0 + h0[src]).relu(), dst, 0, n)
e0.register_hook(lambda slope: slope * 0.5)
h2 = scatter((h0[src] + e0).relu(), dst, 0, n, 'max')""",
    "a hook right behind a region without gradients": """
e1 = e0 + self.norm.running_mean
with torch.no_grad():
    e2 = h0[src]
h3 = scatter(e1, dst, 0, n)
h4 = scatter(e1, dst, 0, n, 'mean')
h5 = h3.relu() * h4
h3.register_hook(lambda slope: slope * 0.5)""",
    "twins, of which a hook changes one": """
h1 = self.product(h0)
h1.register_hook(lambda slope: slope * 0.5)
h2 = self.product(h0).tanh()
h3 = scatter(h1[src], dst, 0, n) + h1""",
    "zeros of both signs": """
h1 = h0 * torch.signbit(h0.relu() * 0.0)
h2 = h0 * torch.signbit(h0.relu() * -0.0)
h3 = h0 * torch.signbit(h0.relu() * -0.0 + 0)""",
    "zeros of both signs in one message": """
e1 = h0[src] - e0
h1 = scatter(F.leaky_relu(e1, 0.2), dst, 0, n, 'max')
h2 = scatter(e1 * torch.signbit(e1 * -0.0), dst, 0, n)""",
    "comparisons that multiply": """
e1 = h0[src] - e0
h1 = scatter(e1 * (e1 > 0), dst, 0, n)
h2 = scatter((e1[:, :1] > 0).double() * e1.tanh() + (e1 < h0[dst]), dst, 0, n, 'max')
h3 = scatter(torch.where(~(e1 > 0.5) | (e1 == e0), e1, e1 > 0.7), dst, 0, n, 'mean')
h4 = scatter(torch.cat([e1[:, :4], e1[:, 4:] > 0], 1) * (e1 > 0).sum(1, True), dst, 0, n)""",
    "conditions that are multiplied, added or chosen among": """
e1, e2 = h0[src] > 0, e0 > h0[dst]
h1 = h0 + scatter(torch.where(torch.isfinite(h0[src]) * e2, h0[dst], e0), dst, 0, n)
h2 = h0 * scatter((e1 + e2) * e0 + torch.maximum(e1, e2), dst, 0, n)
h3 = h0 + scatter(torch.where(torch.where(e2, e1, e0 > 0), e0, h0[src]), dst, 0, n, 'max')""",
    "rows that a message alone reads, of rows that a linear layer reads, too": """
e1 = h0[src].tanh()
h1 = h0 + scatter(torch.maximum(e1, e0), dst, 0, n) + scatter(self.product(e1), dst, 0, n)
e2, e3 = (e1 * h0[dst]).chunk(2, 1)
h2 = scatter(torch.cat([e3 * e2.neg(), e2], 1), dst, 0, n) + scatter(self.lone(e1), dst, 0, n)""",
    "a part of a message that a linear layer reads, which weighs the rest": """
e1, e2 = (h0[src] * e0).chunk(2, 1)
e3 = F.linear(e1, self.lone.weight[:4, :4]) * e2.sigmoid()
h1 = h0 + scatter(torch.cat([e3, e2], 1), dst, 0, n)""",
    "rows that are counted from the end": """
h1 = h0 + self.product.weight[(kind[:, 0] % 3 - 5).clamp(max=-4)]
h2 = h0 + scatter(h0[src] * self.product.weight[-1 - (kind[:, 0] % 3)[src]], dst, 0, n)
h3 = h0 * self.product.weight[torch.where(kind[:, 0] > 2, 1, -1)]""",
    "statistics read between a norm and its ReLU": """
normed = self.norm(h0)
h2 = h0 * self.norm.running_mean
h3 = normed.relu() + h0""",
    "statistics read before a norm": """
mean = self.norm.running_mean.expand_as(h0)
h1 = self.norm(h0 + mean).relu() + h0
h2 = self.norm(h1 * 2).relu() + mean * 1.0""",
    "statistics copied between a norm and its residual": """
normed = self.norm(h0)
self.eps.copy_(self.norm.running_mean[0])
h2 = normed + h0""",
    "a gather that is written to": """
e1 = h0[src]
e1[:, 1:3] *= 2
e2 = h0[dst]
e2[:, 0] = 0
h1 = scatter(e1, dst, 0, n) + scatter(e2 + e0, dst, 0, n)""",
    "a copy that is written to": """
h1 = e0.new_zeros(n, WIDTH).scatter_add(0, dst[:, None].expand(-1, 4), e0.detach())
h2 = scatter((h1[src] + self.product(h0)[src]).relu(), dst, 0, n) + h1
torch.add(h1, 1.0, out=h1)
h3 = scatter(h1[src] + e0, dst, 0, n)""",
    "ends that a refused message read first": """
loops, edges = utils.add_self_loops(torch.stack([src, dst]), e0, fill_value=0.0, num_nodes=n)
h1 = scatter((h0[loops[0]] + edges.erf()).relu(), loops[1], 0, n)
h2 = scatter((h1[src] + e0).relu(), dst, 0, n)""",
}


@pytest.mark.sampled(
    4,
    always=[
        "rows that a message alone reads, of rows that a linear layer reads, too",
        "comparisons that multiply",
    ],
)
@pytest.mark.parametrize("cause", CAUSES)
def test_causes_that_once_failed(cause, esol):
    check(CAUSES[cause].strip(), esol)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("seed", FOUND)
def test_forwards_that_once_failed(seed, esol):
    check(seed, esol)
