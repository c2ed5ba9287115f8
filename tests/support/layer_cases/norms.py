"""Norms of torch_geometric.nn, with and without the batch vector, and BatchNorm of torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch_geometric.nn as pyg
from torch import nn

from support.layer_cases.case import C, Case, alone, batched


def _no_longer_tracked() -> nn.Module:
    norm = nn.BatchNorm1d(C)
    norm.track_running_stats = False
    return norm


def norms() -> list[Case]:
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
    cases = [Case(name, "norms", build, batched) for name, build in by_batch.items()]
    cases += [
        Case(f"{name} without batch", "norms", build, alone) for name, build in by_batch.items()
    ]
    cases += [
        Case("torch BatchNorm1d", "norms", lambda: nn.BatchNorm1d(C), alone),
        Case(
            "torch BatchNorm1d averaged", "norms", lambda: nn.BatchNorm1d(C, momentum=None), alone
        ),
        Case(
            "torch BatchNorm1d untracked",
            "norms",
            lambda: nn.Sequential(
                nn.BatchNorm1d(C, track_running_stats=False, affine=False), _no_longer_tracked()
            ),
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
        *(
            Case(kind.__name__, "norms", partial(kind, C, types), lambda m, x, d: m(x, d.node_type))
            for kind, types in ((pyg.HeteroBatchNorm, 4), (pyg.HeteroLayerNorm, 3))
        ),
    ]
    return cases
