"""A linear layer fused with ReLU: oneDNN or torch on the CPU, torch or Triton on CUDA."""

from staticgraph.kernels.linear.cpu import onednn_gains
from staticgraph.kernels.linear.op import linear, linear_handed_on, linear_reference

__all__ = ["linear", "linear_handed_on", "linear_reference", "onednn_gains"]
