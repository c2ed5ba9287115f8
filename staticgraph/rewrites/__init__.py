"""The captured graph, joined: a pattern, a condition, a replacement a file.

The problem: fused layers by class reach the classes that are known; in a user's own ``forward`` the
ReLU, the residual sum, the encoders and every ``MessagePassing`` of his own are out of reach. In
the graph that torch.compile captures, before autograd, every model looks alike, and that an index
is the batch's own is a fact there. The idea: write the graph in few operations
(:mod:`staticgraph.rewrites.passes.canonicalize`), then let a short list of rewrites
(:mod:`staticgraph.rewrites.rewrite`) put operators of :mod:`staticgraph.kernels` in the place of
what they recognise. What is left runs as it was.

Invariant: outputs, gradients and running statistics are what they were, to rounding, whatever
stands in the padding.
"""

from __future__ import annotations

from staticgraph.rewrites.captured_graph.captured import Captured, RewriteTarget, Rewritten
from staticgraph.rewrites.rewrite import rewrite

__all__ = ["Captured", "RewriteTarget", "Rewritten", "rewrite"]
