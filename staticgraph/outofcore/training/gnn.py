"""Graph networks over sampled batches: plain stacks of PyG's layers, and runs on whole graphs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from staticgraph.outofcore.disk.graph import ENDS, Direction
from staticgraph.outofcore.sampling.sampled_graph import gcn_weights
from staticgraph.steps.computation.model_call import Forward, forward_of
from staticgraph.steps.computation.model_setup import device_of
from staticgraph.steps.state.training_state import evaluating
from staticgraph.text.numeric_options import whole_option

KINDS = ("sage", "gcn", "gat")


class SampledGNN(nn.Module):
    """Layers of PyG with relu and dropout between them, as the command line trains them.

    Args:
        kind: ``sage`` (mean), ``gcn`` or ``gat``. The layers of ``gcn`` do not normalise: they take
            ``edge_weight``, as ``SampledLoader(gcn_norm=True)`` gives it.
        in_channels: F.
        hidden: channels between layers.
        out_channels: channels of the output.
        layers: k; give the loader as many fan-outs.
        dropout: the dropout probability before every layer, in training.
        heads: heads of ``gat``, concatenated, except in its last layer, which has one.

    Raises:
        ValueError: for another ``kind``, no layers or heads, or if ``hidden`` of ``gat`` is not a
            multiple of ``heads``.
    """

    def __init__(
        self,
        kind: str,
        in_channels: int,
        hidden: int,
        out_channels: int,
        layers: int,
        dropout: float = 0.0,
        heads: int = 4,
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise ValueError(f"kind={kind!r}; choose one of {', '.join(KINDS)}")
        layers, heads = whole_option("layers", layers, 1), whole_option("heads", heads, 1)
        if kind == "gat" and layers > 1 and hidden % heads:
            raise ValueError(f"hidden={hidden} is not a multiple of heads={heads}")
        self.layers: nn.ModuleList = nn.ModuleList()
        self.dropout = dropout
        widths = [in_channels, *[hidden] * (layers - 1), out_channels]
        for number, (before, after) in enumerate(pairwise(widths), 1):
            layer_heads = heads if number < layers else 1
            if kind == "sage":
                layer = SAGEConv(before, after)
            elif kind == "gcn":
                layer = GCNConv(before, after, normalize=False)
            else:
                layer = GATConv(before, after // layer_heads, layer_heads)
            self.layers.append(layer)

    def extra_repr(self) -> str:
        """Returns the option that the representation of the layers leaves out."""
        return f"dropout={self.dropout}"

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Maps ``[N, F]`` to ``[N, out]``."""
        for number, layer in enumerate(self.layers):
            x = x.relu() if number else x
            x = nn.functional.dropout(x, self.dropout, self.training)
            if isinstance(layer, GCNConv):
                x = layer(x, edge_index, edge_weight)
            else:
                x = layer(x, edge_index)
        return x


def reads_gcn_weights(model: nn.Module | None) -> bool:
    """Whether a model has a ``GCNConv`` that leaves the normalisation to its edge weights."""
    modules = () if model is None else model.modules()
    return any(isinstance(each, GCNConv) and not each.normalize for each in modules)


def run_whole(
    model: nn.Module,
    edges: NDArray[Any],
    x: NDArray[np.float32],
    direction: Direction = "in",
    forward: Forward | None = None,
) -> Tensor:
    """Returns ``[N, ...]``: a model's output on a whole graph, in evaluation mode, on the CPU.

    Args:
        model: any PyG model; layers that :func:`reads_gcn_weights` finds get a self-loop for each
            node, and GCN's normalisation.
        edges: ``[E, 2 or 3]`` source, (relation,) destination, in any order.
        x: ``[N, F]``.
        direction: as in sampling.
        forward: ``forward(model, batch)``, as for the runner.
    """
    ends = ENDS[direction]
    source = np.concatenate([edges[:, -1 - end] for end in ends]).astype(np.int64)
    destination = np.concatenate([edges[:, end] for end in ends]).astype(np.int64)
    graph = Data(x=torch.from_numpy(x))
    if reads_gcn_weights(model):
        others, nodes = source != destination, np.arange(len(x))
        source, destination = (np.append(each[others], nodes) for each in (source, destination))
        degrees = np.bincount(destination, minlength=len(x)) - 1
        graph.edge_weight = torch.from_numpy(gcn_weights(source, destination, degrees, degrees))
    graph.edge_index = torch.from_numpy(np.stack([source, destination]))
    with evaluating(model):
        whole: Any = Batch.from_data_list([graph])
        return (forward or forward_of(model))(model, whole.to(device_of(model))).cpu()
