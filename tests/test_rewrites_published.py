"""Mode ``fused`` over models in the style of published code: it computes what plain PyG computes,
and the expected parts of each are rewritten."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.rewritten import assert_as_in_plain_pyg, fired, seeded
from support.written_by_hand import BONDS, Tables
from torch import nn
from torch_geometric.nn import (
    MessagePassing,
    global_add_pool,
    global_mean_pool,
)
from torch_geometric.utils import scatter

ATOMS = (53, 1, 5)  # the first columns of ESOL


class GatedGCN(MessagePassing):
    """GraphGPS's gatedgcn_layer.py: the gate is a message, a weight, and the new edge features."""

    def __init__(self, h):
        super().__init__(aggr="add")
        self.A, self.B, self.C, self.D, self.E = (nn.Linear(h, h) for _ in range(5))
        self.bn_node_x, self.bn_edge_e = nn.BatchNorm1d(h), nn.BatchNorm1d(h)
        self.e = None

    def forward(self, x, e, edge_index):
        rows = {"Ax": self.A(x), "Bx": self.B(x), "Dx": self.D(x), "Ex": self.E(x)}
        new, edges = self.propagate(edge_index, Ce=self.C(e), **rows)
        return x + F.relu(self.bn_node_x(new)), e + F.relu(self.bn_edge_e(edges))

    def message(self, Dx_i, Ex_j, Ce):
        self.e = Dx_i + Ex_j + Ce
        return torch.sigmoid(self.e)

    def aggregate(self, sigma, index, Bx_j, Bx):
        weighed = scatter(sigma * Bx_j, index, 0, Bx.shape[0], reduce="sum")
        return weighed / (scatter(sigma, index, 0, Bx.shape[0], reduce="sum") + 1e-6)

    def update(self, aggr_out, Ax):
        e, self.e = self.e, None
        return Ax + aggr_out, e


class Gated(nn.Module):
    def __init__(self, h=8):
        super().__init__()
        self.atoms, self.bonds = Tables(ATOMS, h), Tables(BONDS, h)
        self.convs = nn.ModuleList(GatedGCN(h) for _ in range(2))
        self.head = nn.Linear(h, 1)

    def forward(self, x, edge_index, edge_attr, batch):
        h, e = self.atoms(x[:, :3]), self.bonds(edge_attr)
        for conv in self.convs:
            h, e = conv(h, e, edge_index)
        return self.head(global_mean_pool(h, batch))


class VectorMessage(MessagePassing):
    """PaiNN's message: scalars and vectors of three components, from one product split in three."""

    def __init__(self, h, waves):
        super().__init__(aggr="add", node_dim=0)
        self.net = nn.Sequential(nn.Linear(h, h), nn.SiLU(), nn.Linear(h, 3 * h))
        self.filter = nn.Linear(waves, 3 * h)

    def forward(self, s, v, edge_index, rbf, cut, unit):
        given = {"phi": self.net(s), "v": v, "W": self.filter(rbf) * cut, "unit": unit}
        ds, dv = self.propagate(edge_index, **given)
        return s + ds, v + dv

    def message(self, phi_j, v_j, W, unit):
        ds, gate, along = torch.split(phi_j * W, v_j.shape[-1], dim=-1)
        return ds, v_j * gate.unsqueeze(1) + along.unsqueeze(1) * unit.unsqueeze(-1)

    def aggregate(self, inputs, index, dim_size):
        ds, dv = (scatter(rows, index, 0, dim_size, reduce="sum") for rows in inputs)
        return ds, dv


class VectorUpdate(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.U, self.V = nn.Linear(h, h, bias=False), nn.Linear(h, h, bias=False)
        self.net = nn.Sequential(nn.Linear(2 * h, h), nn.SiLU(), nn.Linear(h, 3 * h))

    def forward(self, s, v):
        u, w = self.U(v), self.V(v)
        norms = (w.square().sum(1) + 1e-8).sqrt()
        of_v, both, of_s = self.net(torch.cat([s, norms], -1)).chunk(3, dim=-1)
        return s + of_s + both * (u * w).sum(1), v + of_v.unsqueeze(1) * u


class PaiNN(nn.Module):
    """Positions are a linear map of the features, so that directions have gradients, too."""

    def __init__(self, h=8, waves=5):
        super().__init__()
        self.embedding, self.place = nn.Embedding(53, h), nn.Linear(9, 3)
        self.register_buffer("waves", torch.arange(1, waves + 1) * torch.pi / 5.0)
        self.messages = nn.ModuleList(VectorMessage(h, waves) for _ in range(2))
        self.updates = nn.ModuleList(VectorUpdate(h) for _ in range(2))
        self.out = nn.Linear(h, 1)

    def forward(self, x, edge_index, batch):
        pos = 0.1 * self.place(x.to(self.waves.dtype))
        away = pos[edge_index[0]] - pos[edge_index[1]]
        d = (away.square().sum(-1, keepdim=True) + 1e-3).sqrt()
        rbf, cut = torch.sin(d * self.waves) / d, 0.5 * (torch.cos(torch.pi * d / 5.0) + 1)
        s = self.embedding(x[:, 0])
        v = s.new_zeros(s.size(0), 3, s.size(1))
        for message, update in zip(self.messages, self.updates, strict=True):
            s, v = update(*message(s, v, edge_index, rbf, cut, away / d))
        return global_add_pool(self.out(s), batch)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("model", "messages"), [(PaiNN, 4), (Gated, 6)])
def test_outputs_gradients_and_statistics_are_those_of_plain_pyg(model, messages, esol):
    assert fired(assert_as_in_plain_pyg(seeded(model), esol))["neighbours"] >= messages
