"""Where statistics in a product's epilogue save a norm's launch on CUDA, from shapes and dtypes."""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.batch_norm.op import ONE_LAUNCH_ROWS
from staticgraph.kernels.linear.op import by_library


def saves(x: Tensor, weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether a norm after ``x @ weight.T`` in ``dtype`` begins with a launch of its own, and the
    product is one of ours, whose epilogue can have sums over rows. Reads no data."""
    return x.size(0) > ONE_LAUNCH_ROWS and not by_library(x, weight, dtype)
