"""Decides from shapes and dtypes where statistics in a product's epilogue save a norm a CUDA
launch."""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.batch_norm.op import ONE_LAUNCH_ROWS
from staticgraph.kernels.linear.op import by_library


def saves(x: Tensor, weight: Tensor, dtype: torch.dtype) -> bool:
    """Returns whether statistics save a launch for a norm after ``x @ weight.T`` in ``dtype``.

    That is so if the norm starts with a launch of its own and the product is this library's, whose
    epilogue can sum over rows. Reads no data.
    """
    return x.size(0) > ONE_LAUNCH_ROWS and not by_library(x, weight, dtype)
