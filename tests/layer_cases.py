"""Every layer of torch_geometric.nn that can be built here, and how a model would call it.

One table serves the tests and the support page of the docs. A case is a layer and a call; around it
stands a small model: a linear encoder before, the sum over each graph and a linear head after.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch_geometric.nn import aggr
from torch_geometric.utils import scatter, to_dense_adj, to_dense_batch

Call = Callable[[Any, Tensor, Any], Tensor]
C = 8  # channels in and out


@dataclass(frozen=True)
class Case:
    """One layer: ``build()`` makes it, ``call(layer, x, data)`` uses it.

    Attributes:
        kind: the section of the support page.
        level: whether the call gives one row a node or one a graph.
        eager_only: why the compiled form is refused, where it is.
        tolerance: of the largest; more where PyG's own layer computes in less than float64.
        dtype: where PyG's own layer does not run in float64.
    """

    name: str
    kind: str
    build: Callable[[], nn.Module]
    call: Call
    level: str = "node"
    eager_only: str = ""
    tolerance: float = 1e-9
    dtype: torch.dtype = torch.float64


class Model(nn.Module):
    """Encoder, the layer of a case, sum over each graph where it gives nodes, head."""

    def __init__(self, case: Case, width: int = C) -> None:
        super().__init__()
        self.case = case
        self.encoder = nn.Linear(width, C)
        self.layer = case.build()
        self.head = nn.LazyLinear(2)

    def forward(self, data: Any) -> Tensor:
        h = self.encoder(data.x.to(self.encoder.weight.dtype))
        h = self.case.call(self.layer, h, data)
        if self.case.level == "node":
            h = pyg.global_add_pool(h, data.batch)
        return self.head(h)


def plain(layer: Any, x: Tensor, d: Any) -> Tensor:
    return layer(x, d.edge_index)


def weighted(layer: Any, x: Tensor, d: Any) -> Tensor:
    return layer(x, d.edge_index, d.edge_weight)


def attributed(layer: Any, x: Tensor, d: Any) -> Tensor:
    return layer(x, d.edge_index, d.edge_attr)


def typed(layer: Any, x: Tensor, d: Any) -> Tensor:
    return layer(x, d.edge_index, d.edge_type)


def batched(layer: Any, x: Tensor, d: Any) -> Tensor:
    return layer(x, d.batch)


def alone(layer: Any, x: Tensor, d: Any) -> Tensor:
    return layer(x)


def mlp(rows_in: int = C) -> nn.Module:
    return nn.Sequential(nn.Linear(rows_in, C), nn.BatchNorm1d(C), nn.ReLU(), nn.Linear(C, C))


class Second(nn.Module):
    """GCN2Conv, FAConv: also given the features of the first layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.layer(x, x.relu(), edge_index)


def hetero(layer: Any, x: Tensor, d: Any) -> Tensor:
    out = layer({"atom": x}, {("atom", "bond", "atom"): d.edge_index})
    return out["atom"]


METADATA = (["atom"], [("atom", "bond", "atom")])


def _convolutions() -> list[Case]:
    deg = torch.tensor([1, 4, 6, 5, 4, 2, 1])
    table: list[tuple[str, Callable[[], nn.Module], Call]] = [
        ("SimpleConv", lambda: pyg.SimpleConv("mean", "self_loop"), plain),
        ("GCNConv", lambda: pyg.GCNConv(C, C), weighted),
        ("GCNConv improved", lambda: pyg.GCNConv(C, C, improved=True), plain),
        ("ChebConv", lambda: pyg.ChebConv(C, C, K=3), weighted),
        ("ChebConv none", lambda: pyg.ChebConv(C, C, K=3, normalization=None), plain),
        ("ChebConv rw", lambda: pyg.ChebConv(C, C, K=2, normalization="rw"), plain),
        ("SAGEConv", lambda: pyg.SAGEConv(C, C), plain),
        ("SAGEConv max", lambda: pyg.SAGEConv(C, C, aggr="max", project=True), plain),
        ("SAGEConv median", lambda: pyg.SAGEConv(C, C, aggr="median"), plain),
        ("GraphConv", lambda: pyg.GraphConv(C, C), weighted),
        ("GatedGraphConv", lambda: pyg.GatedGraphConv(C, 2), weighted),
        ("ResGatedGraphConv", lambda: pyg.ResGatedGraphConv(C, C, edge_dim=4), attributed),
        ("GATConv", lambda: pyg.GATConv(C, 4, heads=2, edge_dim=4), attributed),
        ("GATConv without edges", lambda: pyg.GATConv(C, 4, heads=2), plain),
        ("GATv2Conv", lambda: pyg.GATv2Conv(C, 4, heads=2, edge_dim=4), attributed),
        ("GATv2Conv residual", lambda: pyg.GATv2Conv(C, 4, heads=2, residual=True), plain),
        ("TransformerConv", lambda: pyg.TransformerConv(C, 4, heads=2, edge_dim=4), attributed),
        ("AGNNConv", lambda: pyg.AGNNConv(), plain),
        ("TAGConv", lambda: pyg.TAGConv(C, C), weighted),
        ("GINConv", lambda: pyg.GINConv(mlp(), train_eps=True), plain),
        ("GINEConv", lambda: pyg.GINEConv(mlp(), edge_dim=4), attributed),
        ("ARMAConv", lambda: pyg.ARMAConv(C, C, num_stacks=2, num_layers=2), weighted),
        ("SGConv", lambda: pyg.SGConv(C, C, K=2), weighted),
        ("SSGConv", lambda: pyg.SSGConv(C, C, alpha=0.1, K=2), weighted),
        ("APPNP", lambda: pyg.APPNP(K=3, alpha=0.1), weighted),
        ("MFConv", lambda: pyg.MFConv(C, C, max_degree=4), plain),
        ("RGCNConv", lambda: pyg.RGCNConv(C, C, 3), typed),
        ("RGCNConv blocks", lambda: pyg.RGCNConv(C, C, 3, num_blocks=2), typed),
        ("RGCNConv bases", lambda: pyg.RGCNConv(C, C, 3, num_bases=2), typed),
        ("FastRGCNConv", lambda: pyg.FastRGCNConv(C, C, 3), typed),
        (
            "RGATConv",
            lambda: pyg.RGATConv(C, C, 3, edge_dim=4),
            lambda m, x, d: m(x, d.edge_index, d.edge_type, d.edge_attr),
        ),
        (
            "SignedConv",
            lambda: pyg.SignedConv(C, 4, first_aggr=True),
            lambda m, x, d: m(x, d.edge_index, d.edge_index),
        ),
        (
            "DNAConv",
            lambda: pyg.DNAConv(C, heads=2),
            lambda m, x, d: m(torch.stack([x, x.relu()], 1), d.edge_index, d.edge_weight),
        ),
        (
            "PointNetConv",
            lambda: pyg.PointNetConv(mlp(C + 3), mlp()),
            lambda m, x, d: m(x, d.pos, d.edge_index),
        ),
        (
            "GMMConv",
            lambda: pyg.GMMConv(C, C, dim=4, kernel_size=2),
            attributed,
        ),
        (
            "NNConv",
            lambda: pyg.NNConv(C, C, nn.Linear(4, C * C), aggr="mean"),
            attributed,
        ),
        ("CGConv", lambda: pyg.CGConv(C, dim=4, batch_norm=True), attributed),
        ("EdgeConv", lambda: pyg.EdgeConv(mlp(2 * C)), plain),
        (
            "PPFConv",
            lambda: pyg.PPFConv(mlp(C + 4), mlp()),
            lambda m, x, d: m(x, d.pos, d.normal, d.edge_index),
        ),
        ("FeaStConv", lambda: pyg.FeaStConv(C, C, heads=2), plain),
        (
            "PointTransformerConv",
            lambda: pyg.PointTransformerConv(C, C),
            lambda m, x, d: m(x, d.pos, d.edge_index),
        ),
        ("HypergraphConv", lambda: pyg.HypergraphConv(C, C), plain),
        ("LEConv", lambda: pyg.LEConv(C, C), weighted),
        (
            "PNAConv",
            lambda: pyg.PNAConv(
                C,
                C,
                aggregators=["mean", "min", "max", "std", "var", "sum"],
                scalers=["identity", "amplification", "attenuation", "linear", "inverse_linear"],
                deg=deg,
                edge_dim=4,
                towers=2,
            ),
            attributed,
        ),
        ("ClusterGCNConv", lambda: pyg.ClusterGCNConv(C, C, diag_lambda=0.3), plain),
        ("GENConv", lambda: pyg.GENConv(C, C, edge_dim=4, learn_t=True), attributed),
        ("GENConv powermean", lambda: pyg.GENConv(C, C, aggr="powermean", learn_p=True), plain),
        (
            "GCN2Conv",
            lambda: Second(pyg.GCN2Conv(C, alpha=0.2, theta=0.5, layer=1)),
            plain,
        ),
        ("WLConvContinuous", lambda: pyg.WLConvContinuous(), weighted),
        ("FiLMConv", lambda: pyg.FiLMConv(C, C, num_relations=3), typed),
        ("FAConv", lambda: Second(pyg.FAConv(C)), plain),
        (
            "EGConv",
            lambda: pyg.EGConv(C, C, ["sum", "mean", "max", "symnorm", "std"], 4, 2),
            plain,
        ),
        ("PDNConv", lambda: pyg.PDNConv(C, C, edge_dim=4, hidden_channels=6), attributed),
        (
            "GeneralConv",
            lambda: pyg.GeneralConv(C, C, in_edge_channels=4, attention=True, heads=2),
            attributed,
        ),
        ("HANConv", lambda: pyg.HANConv(C, C, METADATA, heads=2), hetero),
        ("HGTConv", lambda: pyg.HGTConv(C, C, METADATA, heads=2), hetero),
        (
            "HeteroConv",
            lambda: pyg.HeteroConv({METADATA[1][0]: pyg.SAGEConv(C, C)}),
            hetero,
        ),
        (
            "HEATConv",
            lambda: pyg.HEATConv(C, C, 3, 3, 5, 4, 5, heads=2),
            lambda m, x, d: m(x, d.edge_index, d.node_type, d.edge_type, d.edge_attr),
        ),
        (
            "SuperGATConv, negatives given",
            lambda: pyg.SuperGATConv(C, 4, heads=2),
            lambda m, x, d: m(x, d.edge_index, d.edge_index.flip(0)),
        ),
        (
            "SuperGATConv SD, negatives given",
            lambda: pyg.SuperGATConv(C, 4, heads=2, attention_type="SD"),
            lambda m, x, d: m(x, d.edge_index, d.edge_index.flip(0)),
        ),
        ("LGConv", lambda: pyg.LGConv(), weighted),
        (
            "PointGNNConv",
            lambda: pyg.PointGNNConv(nn.Sequential(nn.Linear(C, 3), nn.Tanh()), mlp(C + 3), mlp()),
            lambda m, x, d: m(x, d.pos, d.edge_index),
        ),
        ("AntiSymmetricConv", lambda: pyg.AntiSymmetricConv(C), plain),
        ("DirGNNConv", lambda: pyg.DirGNNConv(pyg.GCNConv(C, C)), plain),
        ("MixHopConv", lambda: pyg.MixHopConv(C, C), weighted),
    ]
    made = [Case(name, "convolutions", build, call) for name, build, call in table]
    gps = {
        "GPSConv": {},
        "GPSConv performer": {"attn_type": "performer"},
        "GPSConv performer bias": {"attn_type": "performer", "attn_kwargs": {"qkv_bias": True}},
        "GPSConv layer norm": {"norm": "layer_norm"},
        "GPSConv instance norm": {
            "norm": "instance_norm",
            "norm_kwargs": {"track_running_stats": True},
        },
    }
    for name, options in gps.items():
        made.append(
            Case(
                name,
                "convolutions",
                lambda options=options: pyg.GPSConv(C, pyg.GINConv(mlp()), heads=2, **options),
                lambda m, x, d: m(x, d.edge_index, d.batch),
            )
        )
    return made


def _norms() -> list[Case]:
    by_batch: dict[str, Callable[[], nn.Module]] = {
        "LayerNorm": lambda: pyg.LayerNorm(C),
        "LayerNorm node": lambda: pyg.LayerNorm(C, mode="node"),
        "InstanceNorm": lambda: pyg.InstanceNorm(C, affine=True, track_running_stats=True),
        "InstanceNorm untracked": lambda: pyg.InstanceNorm(C),
        "GraphNorm": lambda: pyg.GraphNorm(C),
        "GraphSizeNorm": lambda: pyg.GraphSizeNorm(),
        "PairNorm": lambda: pyg.PairNorm(),
        "PairNorm individually": lambda: pyg.PairNorm(scale_individually=True),
        "MeanSubtractionNorm": lambda: pyg.MeanSubtractionNorm(),
    }
    made = [Case(name, "norms", build, batched) for name, build in by_batch.items()]
    made += [
        Case(f"{name} without batch", "norms", build, alone) for name, build in by_batch.items()
    ]
    made += [
        Case("torch BatchNorm1d", "norms", lambda: nn.BatchNorm1d(C), alone),
        Case(
            "torch BatchNorm1d averaged", "norms", lambda: nn.BatchNorm1d(C, momentum=None), alone
        ),
        Case(
            "torch BatchNorm1d untracked",
            "norms",
            lambda: nn.BatchNorm1d(C, track_running_stats=False, affine=False),
            alone,
        ),
        Case("BatchNorm", "norms", lambda: pyg.BatchNorm(C), alone),
        Case(
            "BatchNorm single", "norms", lambda: pyg.BatchNorm(C, allow_single_element=True), alone
        ),
        Case("DiffGroupNorm", "norms", lambda: pyg.DiffGroupNorm(C, 3), alone),
        Case(
            "MessageNorm",
            "norms",
            lambda: pyg.MessageNorm(learn_scale=True),
            lambda m, x, d: m(x, x.relu()),
        ),
        Case(
            "HeteroBatchNorm",
            "norms",
            lambda: pyg.HeteroBatchNorm(C, 4),
            lambda m, x, d: m(x, d.node_type),
        ),
        Case(
            "HeteroLayerNorm",
            "norms",
            lambda: pyg.HeteroLayerNorm(C, 3),
            lambda m, x, d: m(x, d.node_type),
        ),
    ]
    return made


def _aggregations() -> list[Case]:
    builds: dict[str, Callable[[], nn.Module]] = {
        "SumAggregation": lambda: aggr.SumAggregation(),
        "MeanAggregation": lambda: aggr.MeanAggregation(),
        "MaxAggregation": lambda: aggr.MaxAggregation(),
        "MinAggregation": lambda: aggr.MinAggregation(),
        "MulAggregation": lambda: aggr.MulAggregation(),
        "VarAggregation": lambda: aggr.VarAggregation(),
        "StdAggregation": lambda: aggr.StdAggregation(),
        "SoftmaxAggregation": lambda: aggr.SoftmaxAggregation(learn=True),
        "PowerMeanAggregation": lambda: aggr.PowerMeanAggregation(learn=True),
        "MedianAggregation": lambda: aggr.MedianAggregation(),
        "QuantileAggregation": lambda: aggr.QuantileAggregation([0.2, 0.7]),
        "QuantileAggregation nearest": lambda: aggr.QuantileAggregation(0.3, "nearest"),
        "MultiAggregation": lambda: aggr.MultiAggregation(["mean", "std", "max"]),
        "DegreeScalerAggregation": lambda: aggr.DegreeScalerAggregation(
            ["mean", "max"], ["identity", "linear"], torch.tensor([0, 2, 3, 1])
        ),
        "VariancePreservingAggregation": lambda: aggr.VariancePreservingAggregation(),
        "AttentionalAggregation": lambda: aggr.AttentionalAggregation(nn.Linear(C, 1)),
        "DeepSetsAggregation": lambda: aggr.DeepSetsAggregation(mlp(), mlp()),
        "Set2Set": lambda: aggr.Set2Set(C, 3),
        "SortAggregation": lambda: aggr.SortAggregation(k=6),
        "SortAggregation wide": lambda: aggr.SortAggregation(k=20),
        "GraphMultisetTransformer": lambda: aggr.GraphMultisetTransformer(C, k=3, heads=2),
        "SetTransformerAggregation": lambda: aggr.SetTransformerAggregation(C, heads=2),
        "MLPAggregation": lambda: aggr.MLPAggregation(C, C, 12, num_layers=2, hidden_channels=6),
        "LSTMAggregation": lambda: aggr.LSTMAggregation(C, C),
        "GRUAggregation": lambda: aggr.GRUAggregation(C, C),
    }
    made = [Case(n, "aggregations", b, batched, "graph") for n, b in builds.items()]
    width = "its result changes with the width of the block"
    made += [
        Case(
            "LCMAggregation",
            "aggregations",
            lambda: aggr.LCMAggregation(C, C),
            batched,
            "graph",
            width,
        ),
        Case(
            "LCMAggregation, width given",
            "aggregations",
            lambda: aggr.LCMAggregation(C, C),
            lambda m, x, d: m(x, d.batch, max_num_elements=12),
            "graph",
        ),
        Case(
            "PatchTransformerAggregation",
            "aggregations",
            lambda: aggr.PatchTransformerAggregation(C, C, 3, 6, heads=2),
            batched,
            "graph",
            width,
        ),
        Case(
            "PatchTransformerAggregation, width given",
            "aggregations",
            lambda: aggr.PatchTransformerAggregation(C, C, 3, 6, heads=2),
            lambda m, x, d: m(x, d.batch, max_num_elements=12),
            "graph",
        ),
        Case(
            "EquilibriumAggregation",
            "aggregations",
            lambda: aggr.EquilibriumAggregation(C, 4, [6], 2),
            batched,
            "graph",
            tolerance=1e-5,  # PyG starts from float32 zeros, so its inner loop is float32
        ),
    ]
    return made


def dense_attention(layer: Any, x: Tensor, d: Any) -> Tensor:
    h, mask = pyg_to_dense(x, d.batch)
    out, _ = layer(h, h, h, key_padding_mask=~mask, need_weights=False)
    return (h + out)[mask]


def pyg_to_dense(x: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
    return to_dense_batch(x, batch)


def dense_gcn(layer: Any, x: Tensor, d: Any) -> Tensor:
    h, mask = to_dense_batch(x, d.batch)
    adjacency = to_dense_adj(d.edge_index, d.batch, d.edge_weight)
    return layer(h, adjacency, mask)[mask]


def pooled(layer: Any, x: Tensor, d: Any) -> Tensor:
    """Pool, convolve, norm, pool again, read out: as in PyG's own example of hierarchies."""
    return layer(x, d.edge_index, d.edge_attr, d.batch)


class Hierarchy(nn.Module):
    """Two rounds of convolution and pooling with readouts, as in PyG's proteins example."""

    def __init__(self, pool: Callable[..., nn.Module], **options: Any) -> None:
        super().__init__()
        self.convs = nn.ModuleList(pyg.GATConv(C, C, edge_dim=4) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm1d(C) for _ in range(2))
        self.pools = nn.ModuleList(pool(C, **options) for _ in range(2))
        self.last = pyg.EdgeConv(mlp(2 * C))

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor) -> Tensor:
        total: Any = 0
        for conv, norm, pool in zip(self.convs, self.norms, self.pools, strict=True):
            x = norm(conv(x, edge_index, edge_attr)).tanh()  # no equal scores
            x, edge_index, edge_attr, batch, _, _ = pool(x, edge_index, edge_attr, batch)
            readout = [pyg.global_max_pool(x, batch), pyg.global_mean_pool(x, batch)]
            total = total + torch.cat(readout, 1)
        x = self.last(x, edge_index)
        return total + torch.cat([pyg.global_add_pool(x, batch)] * 2, 1)


class Jumping(nn.Module):
    """Three convolutions and a jumping connection over them."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.convs = nn.ModuleList(pyg.GraphConv(C, C) for _ in range(3))
        self.jump = pyg.JumpingKnowledge(mode, C, 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        xs = []
        for conv in self.convs:
            x = conv(x, edge_index).relu()
            xs.append(x)
        return self.jump(xs)


class MaskedFill(nn.Module):
    """A model's own dense attention with its own write-back."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(C, 2, batch_first=True)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.attn(*args, **kwargs)


def _pools() -> list[Case]:
    readouts = {
        "global_add_pool": pyg.global_add_pool,
        "global_mean_pool": pyg.global_mean_pool,
        "global_max_pool": pyg.global_max_pool,
    }
    made = [
        Case(n, "pools", nn.Identity, lambda m, x, d, p=p: p(m(x), d.batch), "graph")
        for n, p in readouts.items()
    ]
    made += [
        Case(
            f"{n} without batch",
            "pools",
            nn.Identity,
            lambda m, x, d, n=n: getattr(pyg, n)(m(x), None).expand(d.u.size(0), -1),
            "graph",
        )
        for n in readouts
    ]
    hierarchies: dict[str, tuple[Any, dict[str, Any]]] = {
        "TopKPooling": (pyg.TopKPooling, {"ratio": 0.7}),
        "TopKPooling count": (pyg.TopKPooling, {"ratio": 3}),
        "TopKPooling min_score": (pyg.TopKPooling, {"min_score": 0.1, "multiplier": 2.0}),
        "SAGPooling": (pyg.SAGPooling, {"ratio": 0.6}),
        "SAGPooling GCN": (pyg.SAGPooling, {"ratio": 0.5, "GNN": pyg.GCNConv}),
        "SAGPooling min_score": (pyg.SAGPooling, {"min_score": 0.15}),
    }
    made += [
        Case(n, "pools", lambda p=p, o=o: Hierarchy(p, **o), pooled, "graph")
        for n, (p, o) in hierarchies.items()
    ]
    made.append(
        Case(
            "MemPooling",
            "pools",
            lambda: pyg.MemPooling(C, C, heads=2, num_clusters=3),
            lambda m, x, d: m(x, d.batch)[0].flatten(1),
            "graph",
        )
    )
    return made


def _others() -> list[Case]:
    return [
        *(
            Case(f"JumpingKnowledge {mode}", "models", lambda mode=mode: Jumping(mode), plain)
            for mode in ("cat", "max", "lstm")
        ),
        Case("to_dense_batch and back", "functions", MaskedFill, dense_attention),
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


CASES: list[Case] = [*_convolutions(), *_norms(), *_aggregations(), *_pools(), *_others()]
