"""Plain PyG models for the train command."""

from staticgraph.models.encoders import CategoryEncoder, NumberEncoder
from staticgraph.models.graph_model import GraphModel
from staticgraph.models.zoo import NAMES, POOLS, build

__all__ = ["NAMES", "POOLS", "CategoryEncoder", "GraphModel", "NumberEncoder", "build"]
