"""A linear layer fused with ReLU: tiles or oneDNN on the CPU, torch's products or Triton on CUDA.

torch multiplies float32 matrices with MKL, which leaves half of the speed of other vendors'
processors unused. Measured (one core of an AMD EPYC of family 26, 2 shared cores, 2026-11-20, 3,295
rows by 64 by 64): 270 us per product with MKL; with oneDNN 130 us forward, 124 us for the gradient
of the input, 208 us for that of the weight. Results agree bit for bit or to the last place.
"""

from staticgraph.kernels.linear.op import available, linear, linear_handed_on
from staticgraph.kernels.linear.reference import linear_reference

__all__ = ["available", "linear", "linear_handed_on", "linear_reference"]
