"""Residual sum, dropout and ReLU in one pass per direction, without a stored mask."""

from staticgraph.kernels.dropout_sum.op import (
    draw_mask,
    draw_seed,
    dropout_sum,
    dropout_sum_reference,
)

__all__ = ["draw_mask", "draw_seed", "dropout_sum", "dropout_sum_reference"]
