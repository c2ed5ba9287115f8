"""GATv2's attention score: a dot product with the leaky ReLU of the sum of two rows."""

from staticgraph.kernels.pair_score.op import pair_score, pair_score_reference

__all__ = ["pair_score", "pair_score_reference"]
