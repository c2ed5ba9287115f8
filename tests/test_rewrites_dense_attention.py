"""Hand-written attention over ``to_dense_batch`` runs graph by graph, as plain PyG computes it."""

from __future__ import annotations

import pytest
from support.random_forward import RandomForward
from support.rewritten import (
    CAPACITY,
    IDS,
    assert_as_in_plain_pyg,
    assert_drawn_by_seed,
    captured,
    fired,
    seeded,
)
from torch import nn

import staticgraph as sg
from staticgraph.checking.explain import explain
from staticgraph.rewrites.captured_graph.canonical_ops import shape

# Steps of a forward, as in test_rewrites_random.py: queries, keys and values of one head and of
# two, and the mask of keys.
BLOCK = """
block, mask = utils.to_dense_batch(h0, batch)
q, k, v = self.product(block), self.lone(block), self.extra[0](block)
keys = mask[:, None, None, :]"""
HEADS = (
    BLOCK
    + """
q, k, v = (rows.view(*mask.shape, 2, 4).transpose(1, 2) for rows in (q, k, v))"""
)
FORMS = {
    "torch's operator": HEADS
    + """
out = F.scaled_dot_product_attention(q, k, v, attn_mask=keys)
h1 = self.product(out.transpose(1, 2).reshape(*mask.shape, 8))[mask]""",
    "rows that are projected, then laid out, and projected again": """
q, mask = utils.to_dense_batch(self.product(h0).view(-1, 2, 4), batch)
k, _ = utils.to_dense_batch(self.lone(h0).view(-1, 2, 4), batch)
v, _ = utils.to_dense_batch(self.extra[0](h0).view(-1, 2, 4), batch)
q, k, v = (part.permute(0, 2, 1, 3) for part in (q, k, v))
added = torch.zeros_like(mask, dtype=h0.dtype).masked_fill(~mask, float('-inf'))
out = F.scaled_dot_product_attention(q, k, v, attn_mask=added[:, None, None])
h1 = self.product(out.transpose(1, 2).flatten(2)[mask])""",
    "one linear layer for all, with a scale of its own": """
block, mask = utils.to_dense_batch(h0, batch)
q, k, v = self.extra[1](block).chunk(3, dim=-1)
q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in (q, k, v))
keys = mask[:, None, None, :].expand(-1, 2, block.size(1), -1)
out = F.scaled_dot_product_attention(q * 2, k, v, attn_mask=keys, scale=0.25)
h1 = out.transpose(1, 2).flatten(2)[mask]""",
    "a softmax written out, with minus infinity": HEADS
    + """
scores = (q @ k.transpose(-2, -1) / q.size(-1) ** 0.5).masked_fill(~keys, float('-inf'))
out = F.dropout(scores.softmax(dim=-1), 0.0, training=self.training) @ v
h1 = self.product(out.transpose(1, 2).contiguous().view(*mask.shape, 8))[mask]""",
    "one head, no scale, a large negative number, a mask of pairs": BLOCK
    + """
pairs = mask.unsqueeze(1) & mask.unsqueeze(2)
weights = torch.softmax(torch.where(pairs, torch.bmm(q, k.transpose(1, 2)), -1e9), -1)
h1 = self.product(torch.bmm(weights, v))[mask]""",
    "einsum of scaled queries, with a mask by == 0": BLOCK
    + """
q, k, v = (rows.unflatten(-1, (2, -1)) for rows in (q, k, v))
scores = torch.einsum('bihd,bjhd->bhij', q * q.size(-1) ** -0.5, k)
scores = scores.masked_fill(mask[:, None, None] == 0, -1e9)
out = torch.einsum('bhij,bjhd->bihd', scores.softmax(-1), v)
h1 = self.product(out.flatten(2))[mask]""",
    "torch's module": BLOCK
    + """
out, _ = self.extra[2](block, block, block, key_padding_mask=~mask, need_weights=False)
h1 = out[mask]""",
    "torch's module with weights that nothing reads": BLOCK
    + """
h1 = self.extra[2](block, block, block, key_padding_mask=~mask)[0][mask]""",
    "slices of one layer, of which some entries are picked": """
block, mask = utils.to_dense_batch(h0, batch)
rows = self.extra[1](block)
q, k, v = rows[..., :8], rows.narrow(2, 8, 8), rows.view(*mask.shape, 3, 8)[:, :, -1]
scores = (q @ k.mT).masked_fill(~mask[:, None], -1e9)
h1 = (scores.softmax(-1) @ v)[mask]""",
    "rows of one layer apart in a dimension of their own": """
block, mask = utils.to_dense_batch(h0, batch)
q, k, v = self.extra[1](block).view(*mask.shape, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind()
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None].expand(-1, 2, 1, -1))
h1 = out.transpose(1, 2).flatten(2)[mask]""",
    # Two, of which one stays: the operand of its softmax is not positional.
    "arguments by name": """
block, mask = utils.to_dense_batch(h0, batch)
q, k, v = (layer(input=block) for layer in (self.product, self.lone, self.extra[0]))
q, k, v = (rows.view(*mask.shape, 2, 4).transpose(1, 2) for rows in (q, k, v))
scores = torch.matmul(input=q, other=k.transpose(dim0=-2, dim1=-1)) * q.size(-1) ** -0.5
scores = scores.masked_fill(mask=~mask[:, None, None, :], value=float('-inf'))
out = torch.matmul(torch.softmax(input=scores, dim=-1), other=v)
other = F.scaled_dot_product_attention(query=q, key=k, value=v, attn_mask=mask[:, None, None, :])
rows = other.permute(dims=(0, 2, 1, 3)).flatten(start_dim=2)
h1 = self.product(rows)[mask] + out.transpose(1, 2).flatten(2)[mask]""",
}
DROPPING = (
    HEADS
    + """
out = F.scaled_dot_product_attention(q, k, v, attn_mask=keys, dropout_p=0.5 * self.training)
h1 = self.product(out.transpose(1, 2).reshape(*mask.shape, 8))[mask]"""
)
OF_ONE_HEAD = "\nh1 = torch.bmm(scores.softmax(-1), v)[mask]"
# Forms that stay, and why.
REFUSED = {
    "no mask": BLOCK
    + """
h1 = F.scaled_dot_product_attention(q, k, v)[mask]""",
    "there is an operation between the weights and their scores": HEADS
    + """
place = torch.arange(q.size(2), device=q.device)
scores = q @ k.transpose(-2, -1) - (place[:, None] - place).abs()
out = scores.masked_fill(~keys, float('-inf')).softmax(dim=-1) @ v
h1 = out.transpose(1, 2).flatten(2)[mask]""",
    "its weights are read elsewhere": BLOCK
    + """
weights = torch.bmm(q, k.transpose(1, 2)).masked_fill(~mask[:, None], -1e9).softmax(-1)
h1 = torch.bmm(weights, v)[mask] * weights.diagonal(dim1=1, dim2=2)[mask][:, None]""",
    "masked in a way that is not known": BLOCK
    + """
scores = torch.bmm(q, k.transpose(1, 2)).masked_fill(~mask[:, None], -5.0)"""
    + OF_ONE_HEAD,
    # So padded keys take part.
    "its mask is not the one of to_dense_batch": BLOCK
    + """
scores = torch.bmm(q, k.transpose(1, 2)).masked_fill(~mask[:, :, None], -1e9)"""
    + OF_ONE_HEAD,
    "no row of a node again": HEADS
    + """
out = F.scaled_dot_product_attention(q, k, v, attn_mask=keys)
h1 = (out.transpose(1, 2).flatten(2) * mask[..., None]).sum(1)[batch]""",
    "joined in another order": HEADS
    + """
out = F.scaled_dot_product_attention(q, k, v, attn_mask=keys)
h1 = out.permute(0, 2, 3, 1).flatten(2)[mask]""",
    "leaves nodes out": """
block, mask = utils.to_dense_batch(h0, batch, max_num_nodes=4)
q, k, v = self.product(block), self.lone(block), self.extra[0](block)
out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, :])[mask]
h1 = out.sum(0, True)""",
}


def of_steps(steps):
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    layers = [nn.Linear(8, 8), nn.Linear(8, 3 * 8, bias=False), attention]
    return RandomForward(steps.strip(), nn.ModuleList(layers))


@pytest.mark.sampled(
    4,
    always=[
        "einsum of scaled queries, with a mask by == 0",
        "torch's module with weights that nothing reads",
        "one head, no scale, a large negative number, a mask of pairs",
        "one linear layer for all, with a scale of its own",
        "arguments by name",
    ],
)
@pytest.mark.parametrize("form", FORMS)
def test_every_spelling_goes_graph_by_graph_as_plain_pyg_computes(form, esol):
    runner = assert_as_in_plain_pyg(seeded(lambda: of_steps(FORMS[form])), esol)
    assert fired(runner)["graph_attention"] == 1
    blocks = [n for n in captured(runner).graph.nodes if len(shape(n) or ()) > 3]
    assert not blocks or form == "arguments by name"


def test_dropped_weights_are_drawn_anew_and_repeat_with_the_seed(esol):
    runner = sg.StaticGraphRunner(of_steps(DROPPING), [CAPACITY], "fused")
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY)
    runner(batch)
    assert_drawn_by_seed(runner, batch)
    assert fired(runner)["graph_attention"] == 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize("reason", REFUSED)
def test_an_odd_form_stays_as_it_was_and_is_named(reason, esol):
    found = explain(of_steps(REFUSED[reason]), [CAPACITY], esol)
    assert "graph_attention" not in {place.rewrite for place in found.done}
    (missed,) = (place for place in found.missed if place.rewrite == "graph_attention")
    assert reason in missed.reason
    assert missed.line.startswith("<"), "the forward's own line"
