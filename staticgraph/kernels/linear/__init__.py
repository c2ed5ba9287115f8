"""A linear layer fused with ReLU: torch on the CPU, torch or Triton on CUDA."""

from staticgraph.kernels.linear.op import linear, linear_handed_on, linear_reference

__all__ = ["linear", "linear_handed_on", "linear_reference"]
