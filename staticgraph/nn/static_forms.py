"""Which layers of PyG are converted: each with its static form, or the form that refuses it."""

from __future__ import annotations

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
    GRUAggregation,
    LCMAggregation,
    LSTMAggregation,
    MedianAggregation,
    PatchTransformerAggregation,
    QuantileAggregation,
    SortAggregation,
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
    StaticSortAggregation,
)
from staticgraph.nn.attention.linear import (
    StaticPerformerAttention,
    StaticPolynormerAttention,
    StaticSGFormerAttention,
)
from staticgraph.nn.conv.counts import (
    StaticChebConv,
    StaticClusterGCNConv,
    StaticHypergraphConv,
    StaticMFConv,
)
from staticgraph.nn.conv.gps import StaticGPSConv
from staticgraph.nn.conv.relations import StaticFiLMConv, StaticHeteroLinear, StaticRGATConv
from staticgraph.nn.label_propagation import StaticLabelPropagation, StaticMaskLabel
from staticgraph.nn.norm.graph_norms import (
    MaskedPygBatchNorm,
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
from staticgraph.nn.refused_layers import refused_forms

PYG_FORMS: dict[type[torch.nn.Module], type[torch.nn.Module]] = {
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
    SortAggregation: StaticSortAggregation,
    GRUAggregation: StaticGRUAggregation,
    LCMAggregation: StaticLCMAggregation,
    PatchTransformerAggregation: StaticPatchTransformerAggregation,
    EquilibriumAggregation: StaticEquilibriumAggregation,
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
    **refused_forms(),
}
