"""A linear layer that computes the statistics of its output, for the BatchNorm that follows.

The problem: a norm of more than a thousand rows begins with a launch and a pass over rows that the
product before it has just held in registers. Here the product's epilogue writes the mean and
squared deviations of each of its tiles of rows, which ``batch_norm(partial=...)`` merges.
"""

from staticgraph.kernels.linear_statistics.op import (
    linear_statistics,
    linear_statistics_handed_on,
)
from staticgraph.kernels.linear_statistics.reference import linear_statistics_reference

__all__ = [
    "linear_statistics",
    "linear_statistics_handed_on",
    "linear_statistics_reference",
]
