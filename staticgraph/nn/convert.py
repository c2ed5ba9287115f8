"""Exchange of layers, in place and by class: same parameters, same names, same hooks.

A layer keeps its ``state_dict`` keys and its identity (an optimizer made before goes on working);
only its class changes, to one that asks the shared :class:`BatchContext` for the present batch.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Literal

import torch
from torch_geometric.nn import (
    BatchNorm,
    ChebConv,
    ClusterGCNConv,
    DMoNPooling,
    FiLMConv,
    GPSConv,
    GraphNorm,
    GraphSizeNorm,
    HeteroBatchNorm,
    HeteroLinear,
    HypergraphConv,
    InstanceNorm,
    LabelPropagation,
    LayerNorm,
    MaskLabel,
    MeanSubtractionNorm,
    MFConv,
    PairNorm,
    RGATConv,
    SAGPooling,
    TopKPooling,
)
from torch_geometric.nn.aggr import (
    EquilibriumAggregation,
    GraphMultisetTransformer,
    GRUAggregation,
    LCMAggregation,
    LSTMAggregation,
    MedianAggregation,
    PatchTransformerAggregation,
    QuantileAggregation,
    SetTransformerAggregation,
)
from torch_geometric.nn.attention import PerformerAttention, PolynormerAttention, SGFormerAttention

from staticgraph.nn.aggr.aggregations import (
    StaticEquilibriumAggregation,
    StaticGRUAggregation,
    StaticLCMAggregation,
    StaticLSTMAggregation,
    StaticMedianAggregation,
    StaticPatchTransformerAggregation,
    StaticQuantileAggregation,
)
from staticgraph.nn.aggr.recurrent import StaticGRU, StaticLSTM
from staticgraph.nn.aggr.set_transformer import (
    StaticGraphMultisetTransformer,
    StaticSetTransformerAggregation,
)
from staticgraph.nn.attention.linear import (
    StaticPerformerAttention,
    StaticPolynormerAttention,
    StaticSGFormerAttention,
)
from staticgraph.nn.call_sites import install
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.conv.gps import StaticGPSConv
from staticgraph.nn.conv.relations import (
    StaticChebConv,
    StaticClusterGCNConv,
    StaticFiLMConv,
    StaticHeteroLinear,
    StaticHypergraphConv,
    StaticMFConv,
    StaticRGATConv,
)
from staticgraph.nn.labels import StaticLabelPropagation, StaticMaskLabel
from staticgraph.nn.norm.batch_norm import (
    MaskedBatchNorm1d,
    MaskedBatchNorm2d,
    MaskedPygBatchNorm,
    MaskedSyncBatchNorm,
)
from staticgraph.nn.norm.graph_norms import (
    StaticGraphNorm,
    StaticGraphSizeNorm,
    StaticHeteroBatchNorm,
    StaticInstanceNorm,
    StaticLayerNorm,
    StaticMeanSubtractionNorm,
    StaticPairNorm,
)
from staticgraph.nn.pool.dense import StaticDMoNPooling
from staticgraph.nn.pool.select import StaticSAGPooling, StaticTopKPooling
from staticgraph.nn.refused import refused_forms
from staticgraph.nn.subclasses import form_of

# Stock layer -> its static form. A subclass gets a class of both: see nn.subclasses.
STATIC_FORMS: dict[type[torch.nn.Module], type[torch.nn.Module]] = {
    torch.nn.BatchNorm1d: MaskedBatchNorm1d,
    torch.nn.BatchNorm2d: MaskedBatchNorm2d,
    torch.nn.SyncBatchNorm: MaskedSyncBatchNorm,
    torch.nn.LSTM: StaticLSTM,
    torch.nn.GRU: StaticGRU,
    BatchNorm: MaskedPygBatchNorm,
    LayerNorm: StaticLayerNorm,
    InstanceNorm: StaticInstanceNorm,
    GraphNorm: StaticGraphNorm,
    GraphSizeNorm: StaticGraphSizeNorm,
    PairNorm: StaticPairNorm,
    MeanSubtractionNorm: StaticMeanSubtractionNorm,
    HeteroBatchNorm: StaticHeteroBatchNorm,
    GPSConv: StaticGPSConv,
    PerformerAttention: StaticPerformerAttention,
    SGFormerAttention: StaticSGFormerAttention,
    PolynormerAttention: StaticPolynormerAttention,
    TopKPooling: StaticTopKPooling,
    SAGPooling: StaticSAGPooling,
    QuantileAggregation: StaticQuantileAggregation,
    MedianAggregation: StaticMedianAggregation,
    LSTMAggregation: StaticLSTMAggregation,
    GRUAggregation: StaticGRUAggregation,
    LCMAggregation: StaticLCMAggregation,
    PatchTransformerAggregation: StaticPatchTransformerAggregation,
    EquilibriumAggregation: StaticEquilibriumAggregation,
    SetTransformerAggregation: StaticSetTransformerAggregation,
    GraphMultisetTransformer: StaticGraphMultisetTransformer,
    ChebConv: StaticChebConv,
    ClusterGCNConv: StaticClusterGCNConv,
    FiLMConv: StaticFiLMConv,
    HeteroLinear: StaticHeteroLinear,
    HypergraphConv: StaticHypergraphConv,
    MFConv: StaticMFConv,
    RGATConv: StaticRGATConv,
    DMoNPooling: StaticDMoNPooling,
    MaskLabel: StaticMaskLabel,
    LabelPropagation: StaticLabelPropagation,
}
REFUSED_FORMS = refused_forms()


def convert(
    model: torch.nn.Module, kernels: bool | Literal["all"] = False, attention: str | None = None
) -> torch.nn.Module:
    """Makes the layers of a model static and inert to padding, in place, and returns the model.

    Outside the runner the model computes what it did before. Converting twice does nothing more.

    Args:
        model: any PyG model.
        kernels: also put this library's fused kernels under the layers that have them (see
            :mod:`staticgraph.nn.fused`); batches must then be made with ``pointers=True``.
            Where a kernel was measured to be slower than the stock layer (GAT's on a CPU), the
            layer runs the stock code and says so; ``"all"`` uses every kernel all the same.
        attention: the path of attention among the nodes of each graph: ``dense`` (one block as
            wide as the largest graph), ``size-classed`` (a few blocks by size), ``flex`` (tiles of
            a document mask), ``varlen`` (a sequence a graph), ``kernel`` (this library's own, one
            launch each way), or ``auto``, which is what a model has that was never told: the
            cheapest that is possible here, on CUDA with ``kernels`` our own; see
            :mod:`staticgraph.sizes.attention`.
    """
    context = context_of(model)
    if attention is not None:
        context.choose_attention(attention)
    if kernels:
        from staticgraph.nn.fused import fuse

        fuse(model, context, everywhere=kernels == "all")
    return model


def context_of(model: torch.nn.Module) -> BatchContext:
    """The context that a model's converted layers share; converts the model if need be, and makes
    PyG's functions ask for the present batch."""
    install()
    table = STATIC_FORMS | REFUSED_FORMS
    forms = tuple(table.values())
    present: list[object] = [vars(m).get("_staticgraph") for m in model.modules()]
    context = next((found for found in present if isinstance(found, BatchContext)), None)
    if context is None:
        context = BatchContext()
    for module in model.modules():
        form = form_of(type(module), table)
        if form is not None:
            with suppress(TypeError):  # another layout of memory: it stays what it is
                module.__class__ = form
        if isinstance(module, forms) or hasattr(module, "_staticgraph"):
            module.__dict__["_staticgraph"] = context
    return context
