"""BatchNorm over the real rows of a padded batch, fused with ReLU and the residual sum."""

from staticgraph.kernels.batch_norm.op import (
    Running,
    batch_norm,
    batch_norm_reference,
)

__all__ = ["Running", "batch_norm", "batch_norm_reference"]
