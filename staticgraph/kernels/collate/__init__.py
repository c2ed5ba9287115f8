"""Builds a batch from the ids of its graphs when the data set is on the device."""

from staticgraph.kernels.collate.arguments import LAUNCHES, Arguments
from staticgraph.kernels.collate.op import collate
from staticgraph.kernels.collate.reference import collate_reference

__all__ = ["LAUNCHES", "Arguments", "collate", "collate_reference"]
