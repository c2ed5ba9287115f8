"""Aggregations of torch_geometric.nn over the nodes of each graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.nn import aggr

from support.layer_cases.case import C, Case, batched, mlp


def with_width(layer: Any, x: Tensor, d: Any) -> Tensor:
    return layer(x, d.batch, max_num_elements=12)


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
    wide: dict[str, Callable[[], nn.Module]] = {
        "LCMAggregation": lambda: aggr.LCMAggregation(C, C),
        "PatchTransformerAggregation": lambda: aggr.PatchTransformerAggregation(
            C, C, 3, 6, heads=2
        ),
    }
    for name, build in wide.items():
        cases += [
            Case(name, "aggregations", build, batched, "graph", width),
            Case(f"{name}, width given", "aggregations", build, with_width, "graph"),
        ]
    cases.append(
        Case(
            "EquilibriumAggregation",
            "aggregations",
            lambda: aggr.EquilibriumAggregation(C, 4, [6], 2),
            batched,
            "graph",
            tolerance=1e-5,  # PyG starts from float32 zeros, so its inner loop is float32
        )
    )
    return cases
