"""A layer and how a model calls it, and the small model around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn

Call = Callable[[Any, Tensor, Any], Tensor]
C = 8  # channels in and out


@dataclass(frozen=True)
class Case:
    """One layer: ``build()`` makes it, ``call(layer, x, data)`` uses it.

    Attributes:
        kind: the section of the support page.
        level: whether the call gives one row per ``node`` or per ``graph``.
        eager_only: why the compiled form is refused; empty if it is not.
        tolerance: relative to the largest value; larger if PyG's layer computes below float64.
        dtype: differs from float64 if PyG's layer does not run in float64.
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
    """Encoder, the layer of a case, sum over each graph if the layer gives nodes, head."""

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
