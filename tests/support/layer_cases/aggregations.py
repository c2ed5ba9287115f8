"""Aggregations of torch_geometric.nn over the nodes of each graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch_geometric.nn import aggr

from support.layer_cases.case import C, Case, batched, mlp


def aggregations() -> list[Case]:
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
    cases = [Case(n, "aggregations", b, batched, "graph") for n, b in builds.items()]
    width = "its result changes with the width of the block"
    cases += [
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
    return cases
