"""The attention score of GATv2: a product with the leaky ReLU of two rows' sum."""

from staticgraph.kernels.pair_score.op import pair_score
from staticgraph.kernels.pair_score.reference import pair_score_reference

__all__ = ["pair_score", "pair_score_reference"]
