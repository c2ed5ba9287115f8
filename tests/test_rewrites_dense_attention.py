"""Hand-written attention over ``to_dense_batch`` runs graph by graph, as plain PyG computes it."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from support.rewritten import (
    CAPACITY,
    IDS,
    assert_as_in_plain_pyg,
    assert_drawn_by_seed,
    captured,
    fired,
    seeded,
)
from support.written_by_hand import ATOMS, Tables
from torch import nn
from torch_geometric.nn import global_add_pool
from torch_geometric.utils import to_dense_batch

import staticgraph as sg
from staticgraph.checking.explain import explain
from staticgraph.rewrites.captured_graph.canonical_ops import shape

HIDDEN, HEADS = 16, 4


class Attending(nn.Module):
    """Embedded atoms, two attention layers among the nodes of a graph, and a sum."""

    def __init__(self, attention, layers=2, **options):
        super().__init__()
        self.atoms = Tables(ATOMS, HIDDEN)
        self.layers = nn.ModuleList(attention(**options) for _ in range(layers))
        self.head = nn.Linear(HIDDEN, 1)

    def forward(self, x, edge_index, edge_attr, batch):
        h = self.atoms(x)
        for layer in self.layers:
            h = h + layer(h, batch)
        return self.head(global_add_pool(h, batch))


class Projected(nn.Module):
    """Linear layers for queries, keys, values and the output; subclasses define the rest."""

    dropout = 0.0

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(HIDDEN, HIDDEN) for _ in range(4))

    def heads(self, block):
        graphs, width, _ = block.shape
        return block.view(graphs, width, HEADS, -1).transpose(1, 2)

    def forward(self, x, batch):
        h, mask = to_dense_batch(x, batch)
        return self.attend(*(self.heads(lin(h)) for lin in (self.q, self.k, self.v)), mask)


class BlockFirst(Projected):
    """The dense block is made before the projections; attention uses torch's operator."""

    def attend(self, q, k, v, mask):
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask[:, None, None, :], dropout_p=self.dropout * self.training
        )
        out = out.transpose(1, 2).reshape(*mask.shape, HIDDEN)
        return self.out(out)[mask]


class Dropping(BlockFirst):
    """Half of the weights are dropped in training."""

    dropout = 0.5


class RowsFirst(Projected):
    """Rows are projected, laid out one projection at a time, and projected again."""

    def forward(self, x, batch):
        q, mask = to_dense_batch(self.q(x).view(-1, HEADS, HIDDEN // HEADS), batch)
        k, _ = to_dense_batch(self.k(x).view(-1, HEADS, HIDDEN // HEADS), batch)
        v, _ = to_dense_batch(self.v(x).view(-1, HEADS, HIDDEN // HEADS), batch)
        q, k, v = (part.permute(0, 2, 1, 3) for part in (q, k, v))
        added = torch.zeros_like(mask, dtype=x.dtype).masked_fill(~mask, float("-inf"))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=added[:, None, None])
        return self.out(out.transpose(1, 2).flatten(2)[mask])


class Packed(nn.Module):
    """One linear layer for queries, keys and values, split by ``chunk``; with its own scale."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False)

    def forward(self, x, batch):
        h, mask = to_dense_batch(x, batch)
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(h).chunk(3, dim=-1)
        )
        keys = mask[:, None, None, :].expand(-1, HEADS, h.size(1), -1)
        out = F.scaled_dot_product_attention(q * 2, k, v, attn_mask=keys, scale=0.25)
        return out.transpose(1, 2).flatten(2)[mask]


class Named(Projected):
    """Every argument is passed by name."""

    def forward(self, x, batch):
        h, mask = to_dense_batch(x, batch)
        q, k, v = (self.heads(lin(input=h)) for lin in (self.q, self.k, self.v))
        scores = torch.matmul(input=q, other=k.transpose(dim0=-2, dim1=-1)) * q.size(-1) ** -0.5
        scores = scores.masked_fill(mask=~mask[:, None, None, :], value=float("-inf"))
        out = torch.matmul(torch.softmax(input=scores, dim=-1), other=v)
        other = F.scaled_dot_product_attention(
            query=q, key=k, value=v, attn_mask=mask[:, None, None, :]
        )
        rows = other.permute(dims=(0, 2, 1, 3)).flatten(start_dim=2)
        return self.out(rows)[mask] + out.transpose(1, 2).flatten(2)[mask]


class Softmaxed(Projected):
    """The softmax is written out, with minus infinity."""

    def attend(self, q, k, v, mask):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
        weights = F.dropout(scores.softmax(dim=-1), self.dropout, training=self.training)
        out = weights @ v
        return self.out(out.transpose(1, 2).contiguous().view(*mask.shape, HIDDEN))[mask]


class OneHead(Projected):
    """No heads, no scale, a large negative number for minus infinity, a mask of pairs."""

    def heads(self, block):
        return block

    def attend(self, q, k, v, mask):
        scores = torch.bmm(q, k.transpose(1, 2))
        pairs = mask.unsqueeze(1) & mask.unsqueeze(2)
        weights = torch.softmax(torch.where(pairs, scores, -1e9), -1)
        return self.out(torch.bmm(weights, v))[mask]


class Summed(Projected):
    """``einsum``; queries are scaled before the product, and the mask is built by ``== 0``."""

    def forward(self, x, batch):
        h, mask = to_dense_batch(x, batch)
        q, k, v = (lin(h).unflatten(-1, (HEADS, -1)) for lin in (self.q, self.k, self.v))
        scores = torch.einsum("bihd,bjhd->bhij", q * q.size(-1) ** -0.5, k)
        scores = scores.masked_fill(mask[:, None, None] == 0, -1e9)
        out = torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v)
        return self.out(out.flatten(2))[mask]


class Module(nn.Module):
    """torch's own module, whose weights nothing reads."""

    def __init__(self, weights=False):
        super().__init__()
        self.attn = nn.MultiheadAttention(HIDDEN, HEADS, batch_first=True)
        self.weights = weights

    def forward(self, x, batch):
        h, mask = to_dense_batch(x, batch)
        out, _ = self.attn(h, h, h, key_padding_mask=~mask, need_weights=self.weights)
        return out[mask]


class ModuleOfWeights(Module):
    """As above, with the weights that torch returns by default."""

    def __init__(self):
        super().__init__(weights=True)


FORMS = [
    BlockFirst,
    RowsFirst,
    Packed,
    Softmaxed,
    OneHead,
    Summed,
    Module,
    ModuleOfWeights,
]


def test_arguments_by_name_are_read_or_left_alone(esol):
    runner = assert_as_in_plain_pyg(seeded(lambda: Attending(Named, layers=1)), esol)
    assert fired(runner)["graph_attention"] == 1  # of two: the softmax's operand is not positional


@pytest.mark.sampled(4, always=["Summed", "ModuleOfWeights", "OneHead", "Packed"])
@pytest.mark.parametrize("form", FORMS)
def test_every_spelling_goes_graph_by_graph_as_plain_pyg_computes(form, esol):
    runner = assert_as_in_plain_pyg(seeded(lambda: Attending(form, layers=1)), esol)
    assert fired(runner)["graph_attention"] == 1
    blocks = [n for n in captured(runner).graph.nodes if len(shape(n) or ()) > 3]
    assert not blocks


def test_dropped_weights_are_drawn_anew_and_repeat_with_the_seed(esol):
    runner = sg.StaticGraphRunner(Attending(Dropping), [CAPACITY], "fused")
    batch = sg.StaticBatch.of(esol, IDS, CAPACITY)
    runner(batch)
    assert_drawn_by_seed(runner, batch)
    assert fired(runner)["graph_attention"] == 2


class Unmasked(OneHead):
    def attend(self, q, k, v, mask):
        return F.scaled_dot_product_attention(q, k, v)[mask]


class Biased(Softmaxed):
    """A distance bias in the scores."""

    def attend(self, q, k, v, mask):
        place = torch.arange(q.size(2), device=q.device)
        scores = q @ k.transpose(-2, -1) - (place[:, None] - place).abs()
        scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
        return (scores.softmax(dim=-1) @ v).transpose(1, 2).flatten(2)[mask]


class Masked(OneHead):
    """Subclasses define what is masked, and by how much."""

    def weights(self, q, k, mask, fill=-1e9):
        return torch.bmm(q, k.transpose(1, 2)).masked_fill(~mask, fill).softmax(-1)


class KeptWeights(Masked):
    """Its weights are read again."""

    def attend(self, q, k, v, mask):
        weights = self.weights(q, k, mask[:, None])
        return torch.bmm(weights, v)[mask] * weights.diagonal(dim1=1, dim2=2)[mask][:, None]


class WeaklyMasked(Masked):
    """A mask value too weak to exclude anything."""

    def attend(self, q, k, v, mask):
        return torch.bmm(self.weights(q, k, mask[:, None], -5.0), v)[mask]


class QueriesMasked(Masked):
    """The mask is on the wrong side, so padded keys take part."""

    def attend(self, q, k, v, mask):
        return torch.bmm(self.weights(q, k, mask[:, :, None]), v)[mask]


class Pooled(BlockFirst):
    """The attention output is summed over the block and not read back."""

    def forward(self, x, batch):
        h, mask = to_dense_batch(x, batch)
        q, k, v = (self.heads(lin(h)) for lin in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        out = out.transpose(1, 2).flatten(2) * mask[..., None]
        return out.sum(1)[batch]


class HeadsMixed(BlockFirst):
    """Heads are joined in a different order than they were split."""

    def attend(self, q, k, v, mask):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        return out.permute(0, 2, 3, 1).flatten(2)[mask]


class Cut(BlockFirst):
    """Graphs with more than four nodes lose some."""

    def forward(self, x, batch):
        h, mask = to_dense_batch(x, batch, max_num_nodes=4)
        q, k, v = (lin(h) for lin in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, :])[mask]


REFUSED = [
    (Unmasked, "no mask"),
    (Biased, "there is an operation between the weights and their scores"),
    (KeptWeights, "its weights are read elsewhere"),
    (WeaklyMasked, "masked in a way that is not known"),
    (QueriesMasked, "its mask is not the one of to_dense_batch"),
    (Pooled, "no row of a node again"),
    (HeadsMixed, "joined in another order"),
    (Cut, "leaves nodes out"),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("form", "reason"), REFUSED)
def test_an_odd_form_stays_as_it_was_and_is_named(form, reason, esol):
    found = explain(Attending(form, layers=1), [CAPACITY], esol)
    assert "graph_attention" not in {place.rewrite for place in found.done}
    (missed,) = (place for place in found.missed if place.rewrite == "graph_attention")
    assert reason in missed.reason
    assert "test_rewrites_dense_attention.py" in missed.line
