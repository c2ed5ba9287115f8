"""Whole models of torch_geometric.nn, and functions that user models call."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.nn import attention
from torch_geometric.utils import scatter, to_dense_adj, to_dense_batch

from support.layer_cases.case import C, Case, alone, batched, plain, weighted


def dense_attention(layer: Any, x: Tensor, d: Any) -> Tensor:
    h, mask = to_dense_batch(x, d.batch)
    out, _ = layer(h, h, h, key_padding_mask=~mask, need_weights=False)
    return (h + out)[mask]


def masked(layer: Any, x: Tensor, d: Any) -> Tensor:
    h, mask = to_dense_batch(x, d.batch)
    return layer(h, mask)[mask]


def dense_gcn(layer: Any, x: Tensor, d: Any) -> Tensor:
    h, mask = to_dense_batch(x, d.batch)
    adjacency = to_dense_adj(d.edge_index, d.batch, d.edge_weight)
    return layer(h, adjacency, mask)[mask]


class Jumping(nn.Module):
    """Three convolutions and jumping knowledge over them."""

    def __init__(self, jump: nn.Module) -> None:
        super().__init__()
        self.convs = nn.ModuleList(pyg.GraphConv(C, C) for _ in range(3))
        self.jump = jump

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        xs = []
        for conv in self.convs:
            x = conv(x, edge_index).relu()
            xs.append(x)
        return self.jump(xs)


class OfOneType(nn.Module):
    """Jumping knowledge of a single node type."""

    def __init__(self) -> None:
        super().__init__()
        self.jump = pyg.HeteroJumpingKnowledge(["atom"], "lstm", C, 3)

    def forward(self, xs: list[Tensor]) -> Tensor:
        return self.jump({"atom": xs})["atom"]


def models() -> list[Case]:
    return [
        *(
            Case(
                f"JumpingKnowledge {mode}",
                "models",
                lambda mode=mode: Jumping(pyg.JumpingKnowledge(mode, C, 3)),
                plain,
            )
            for mode in ("cat", "max", "lstm")
        ),
        Case(
            "to_dense_batch and back",
            "functions",
            lambda: nn.MultiheadAttention(C, 2, batch_first=True),
            dense_attention,
        ),
        *(
            Case(f"{kind.__name__}, to_dense_batch", "functions", partial(kind, C, 2, 4), masked)
            for kind in (attention.PerformerAttention, attention.PolynormerAttention)
        ),
        Case(
            "SGFormerAttention, to_dense_batch",
            "functions",
            lambda: attention.SGFormerAttention(C, 2, 4),
            masked,
            tolerance=1e-4,
            dtype=torch.float32,
        ),
        Case(
            "QFormer, a sequence a node",
            "models",
            lambda: attention.QFormer(C, 6, C, 2, 1),
            lambda m, x, d: m(torch.stack([x, 2 * x], 1)).mean(1),
        ),
        Case("to_dense_adj, DenseGCNConv", "functions", lambda: pyg.DenseGCNConv(C, C), dense_gcn),
        Case("MLP batch_norm", "models", lambda: pyg.MLP([C, 12, C]), alone),
        Case("MLP graph_norm", "models", lambda: pyg.MLP([C, 12, C], norm="graph_norm"), batched),
        Case("GCN", "models", lambda: pyg.GCN(C, C, 2, norm="batch_norm", jk="lstm"), plain),
        Case("GIN", "models", lambda: pyg.GIN(C, C, 2, norm="batch_norm", jk="cat"), plain),
        Case("GAT", "models", lambda: pyg.GAT(C, C, 2, norm="graph_norm"), plain),
        Case("GraphSAGE", "models", lambda: pyg.GraphSAGE(C, C, 2, norm="layer_norm"), plain),
        Case("EdgeCNN", "models", lambda: pyg.EdgeCNN(C, C, 2), plain),
        Case(
            "PNA",
            "models",
            lambda: pyg.PNA(
                C,
                C,
                2,
                aggregators=["mean", "max"],
                scalers=["identity"],
                deg=torch.tensor([0, 2, 3, 1]),
            ),
            plain,
        ),
        Case(
            "DeepGCNLayer",
            "models",
            lambda: pyg.DeepGCNLayer(pyg.GENConv(C, C), pyg.LayerNorm(C), nn.ReLU(), "res+"),
            plain,
        ),
        Case(
            "AttentiveFP",
            "models",
            lambda: pyg.AttentiveFP(C, C, C, edge_dim=4, num_layers=2, num_timesteps=2),
            lambda m, x, d: m(x, d.edge_index, d.edge_attr, d.batch),
            "graph",
        ),
        Case(
            "NeuralFingerprint",
            "models",
            lambda: pyg.NeuralFingerprint(C, 6, 5, num_layers=2),
            lambda m, x, d: m(x, d.edge_index, d.batch),
            "graph",
        ),
        Case(
            "MetaLayer",
            "models",
            meta_layer,
            lambda m, x, d: m(x, d.edge_index, d.edge_attr, d.u, d.batch)[2],
            "graph",
        ),
        Case("a model that writes on its batch", "models", WritesOnBatch, lambda m, x, d: m(x, d)),
        Case(
            "SchNet, edges given",
            "models",
            lambda: pyg.SchNet(C, 6, 2, 5, cutoff=4.0, interaction_graph=given_graph),
            schnet,
            "graph",
        ),
        Case("GAE, InnerProductDecoder", "models", AutoEncoder, plain),
        Case("ARLinkPredictor", "models", Pairs, plain),
        Case(
            "SignedGCN",
            "models",
            lambda: pyg.SignedGCN(C, C, 2),
            lambda m, x, d: m(x, d.edge_index, d.edge_index.flip(0)),
        ),
        Case("RECT_L", "models", lambda: pyg.RECT_L(C, C), weighted),
        Case("PMLP", "models", lambda: pyg.PMLP(C, C, C, 3, norm=True), plain),
        Case(
            "GroupAddRev, kept activations",
            "models",
            lambda: pyg.GroupAddRev(pyg.SAGEConv(C // 2, C // 2), num_groups=2, disable=True),
            plain,
        ),
        Case(
            "LabelPropagation",
            "models",
            lambda: pyg.LabelPropagation(3, 0.8),
            lambda m, x, d: m(x.sigmoid().clone(), d.edge_index),
            tolerance=1e-6,  # PyG's degrees are float32
        ),
        Case(
            "LabelPropagation masked",
            "models",
            lambda: pyg.LabelPropagation(2, 0.8),
            lambda m, x, d: m(x.sigmoid(), d.edge_index, d.node_type > 0, d.edge_weight.to(x)),
        ),
        *(
            Case(
                f"MaskLabel {method}",
                "models",
                lambda method=method: pyg.MaskLabel(3, C, method),
                lambda m, x, d: m(x, d.node_type, d.node_type > 0),
            )
            for method in ("add", "concat")
        ),
        Case("HeteroJumpingKnowledge", "models", lambda: Jumping(OfOneType()), plain),
        Case(
            "GPSENodeEncoder",
            "models",
            lambda: pyg.GPSENodeEncoder(C + 4, 3, 4, dropout_be=0.0, dropout_ae=0.0),
            lambda m, x, d: m(x, d.pos.to(x.dtype)),
        ),
        Case(
            "SGFormer",
            "models",
            lambda: pyg.SGFormer(C, 6, 5, trans_dropout=0.0, gnn_dropout=0.0),
            lambda m, x, d: m(x, d.edge_index, d.batch),
            tolerance=1e-4,
            dtype=torch.float32,
        ),
        Case(
            "Polynormer",
            "models",
            polynormer,
            lambda m, x, d: m(x, d.edge_index, d.batch),
        ),
    ]


class WritesOnBatch(nn.Module):
    """Layers that take the batch and store their results on it, as in GraphGym."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = pyg.GINEConv(nn.Linear(C, C), edge_dim=C)
        self.edges = nn.Sequential(nn.Linear(4, C), nn.BatchNorm1d(C))
        self.norms = nn.ModuleList(nn.BatchNorm1d(C) for _ in range(2))

    def forward(self, x: Tensor, data: Any) -> Tensor:
        data = data.clone()
        data.x = x
        data.edge_attr = self.edges(data.edge_attr.to(x.dtype))
        for norm in self.norms:
            skip = data.x
            data["x"] = norm(self.conv(data.x, data.edge_index, data.edge_attr)).relu()
            data.x = data.x + skip
            data.seen = data.x.mean(1, keepdim=True)
        return torch.cat([data.x, data.seen, data.get("pair", data.seen)], 1)


def given_graph(pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
    """Placeholder for SchNet's ``interaction_graph``, which :func:`schnet` replaces."""
    raise AssertionError("the call gives the edges")


def schnet(layer: Any, x: Tensor, d: Any) -> Tensor:
    """Runs SchNet over edges that were computed with the data set."""

    def edges(pos: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        row, col = d.edge_index
        away = (pos[row] - pos[col]).square().sum(-1)
        return d.edge_index, (away + 1e-12).sqrt()  # loops have length 0

    layer.interaction_graph = edges
    return layer(d.node_type, d.pos + 0.01 * x[:, :3], d.batch)


class AutoEncoder(nn.Module):
    """GAE's encoder, and its inner-product scores of the edges, summed at their targets."""

    def __init__(self) -> None:
        super().__init__()
        self.model = pyg.GAE(pyg.GCN(C, C, 2))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        z = self.model.encode(x, edge_index)
        score = self.model.decode(z, edge_index)
        return torch.cat([z, scatter(score[:, None], edge_index[1], 0, z.size(0))], 1)


class Pairs(nn.Module):
    """ARLinkPredictor's scores of the edges, summed at their targets."""

    def __init__(self) -> None:
        super().__init__()
        self.model = pyg.ARLinkPredictor(C, C, C, num_layers=3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        score = self.model(x, edge_index)
        return scatter(score[:, None], edge_index[1], 0, x.size(0))


def polynormer() -> nn.Module:
    model = pyg.Polynormer(C, 6, 5, in_dropout=0.0, dropout=0.0, global_dropout=0.0)
    model._global = True
    return model


def meta_layer() -> nn.Module:
    class Edges(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = nn.Sequential(nn.Linear(2 * C + 4 + 6, C), nn.BatchNorm1d(C))

        def forward(self, src, dst, edge_attr, u, batch):
            return self.mlp(torch.cat([src, dst, edge_attr, u[batch]], 1))

    class Nodes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = nn.Sequential(nn.Linear(2 * C + 6, C), nn.ReLU())

        def forward(self, x, edge_index, edge_attr, u, batch):
            mean = scatter(edge_attr, edge_index[1], dim=0, dim_size=x.size(0), reduce="mean")
            return self.mlp(torch.cat([x, mean, u[batch]], 1))

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = nn.Sequential(nn.Linear(C + 6, C), nn.BatchNorm1d(C))

        def forward(self, x, edge_index, edge_attr, u, batch):
            return self.mlp(torch.cat([u, scatter(x, batch, dim=0, reduce="mean")], 1))

    return pyg.MetaLayer(Edges(), Nodes(), Whole())
