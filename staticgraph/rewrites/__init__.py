"""Rewrites of the captured graph: one pattern, condition and replacement per file.

The problem: fused layers by class reach only known classes; in a user's own ``forward`` the ReLU,
the residual sum, the encoders and every custom ``MessagePassing`` are out of reach. In the graph
that torch.compile captures, before autograd, every model looks alike, and whether an index is the
batch's own is known. The idea: express the graph in few operations
(:mod:`staticgraph.rewrites.passes.canonicalize`), then let a short list of rewrites
(:mod:`staticgraph.rewrites.rewrite`) replace the patterns that they recognise by operators of
:mod:`staticgraph.kernels`. Everything else runs unchanged.

Invariant: outputs, gradients and running statistics are unchanged, up to rounding, whatever values
are in the padding.
"""

from __future__ import annotations

from staticgraph.rewrites.captured_graph.captured import Captured, RewriteTarget, Rewritten
from staticgraph.rewrites.rewrite import rewrite

__all__ = ["Captured", "RewriteTarget", "Rewritten", "rewrite"]
