"""Graph networks over sampled batches: plain stacks of PyG's layers, and runs on whole graphs.

Any PyG model will do. :class:`SampledGNN` is the one that the command line trains.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.runner.runner import StaticGraphRunner
from staticgraph.steps.computation.model_call import Forward
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.text.numeric_options import whole_option

KINDS = ("sage", "gcn", "gat")


class SampledGNN(nn.Module):
    """Layers of PyG with relu and dropout between them.

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


def run_whole(model: nn.Module, graph: StaticBatch, forward: Forward | None = None) -> Tensor:
    """Returns ``[N, ...]``: a model's output on one graph, in evaluation mode, on the CPU."""
    subject = Subject(model, forward=forward, check_padding=False)
    runner = StaticGraphRunner(subject, [graph.capacity], "eager", distributed="off")
    out: Tensor = runner.predict_batch(graph.to(runner.device))
    return out[: graph.real_nodes].cpu()
