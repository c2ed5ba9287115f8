"""Convolutions of torch_geometric.nn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

from support.layer_cases.case import C, Call, Case, attributed, mlp, plain, typed, weighted


class Second(nn.Module):
    """For GCN2Conv and FAConv, which also take the features of the first layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.layer(x, x.relu(), edge_index)


def hetero(layer: Any, x: Tensor, d: Any) -> Tensor:
    out = layer({"atom": x}, {("atom", "bond", "atom"): d.edge_index})
    return out["atom"]


METADATA = (["atom"], [("atom", "bond", "atom")])


def convolutions() -> list[Case]:
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
    cases = [Case(name, "convolutions", build, call) for name, build, call in table]
    gps = {
        "GPSConv": {},
        "GPSConv performer": {"attn_type": "performer"},
        "GPSConv performer bias": {"attn_type": "performer", "attn_kwargs": {"qkv_bias": True}},
        "GPSConv bias keys": {"attn_kwargs": {"add_bias_kv": True}},
        "GPSConv zero keys": {"attn_kwargs": {"add_zero_attn": True}},
        "GPSConv layer norm": {"norm": "layer_norm"},
        "GPSConv instance norm": {
            "norm": "instance_norm",
            "norm_kwargs": {"track_running_stats": True},
        },
    }
    for name, options in gps.items():
        cases.append(
            Case(
                name,
                "convolutions",
                lambda options=options: pyg.GPSConv(C, pyg.GINConv(mlp()), heads=2, **options),
                lambda m, x, d: m(x, d.edge_index, d.batch),
            )
        )
    return cases
