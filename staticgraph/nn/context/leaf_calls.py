"""Functions that a traced graph keeps as one call, so that rewrites can recognise them.

The problem: a norm over real rows, a softmax over neighbours or GCN's normalisation is twenty small
operations in a traced step, and a pattern of twenty operations breaks with the next version of
torch or PyG. The idea: while a step is traced to be rewritten (:mod:`staticgraph.rewrites`), the
static forms of this library call a *leaf*: a function of tensors and numbers that torch.compile
keeps as a single node which states its meaning. Where no rewrite matches it, the leaf runs as it
is, or the compiler traces into it.

Invariant: a leaf computes what the static form computes without it, up to rounding, and nothing in
it depends on what is bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])


def leaf(function: Function) -> Function:
    """Decorates a function of tensors and numbers that a trace keeps as one call."""
    torch.compiler.allow_in_graph(function)
    return function


@leaf
def batch_facts(
    edge_index: Tensor,
    batch: Tensor,
    ptr: Tensor,
    counts: Tensor,
    node_mask: Tensor,
    edge_mask: Tensor,
    graph_mask: Tensor,
    row_ptr: Tensor,
    col_ptr: Tensor,
    transpose: Tensor,
    order: Tensor | None,
) -> Tensor:
    """Names the batch's own arrays in the traced graph and computes nothing; a rewritten graph no
    longer contains it."""
    return counts.view(-1)


FACTS = tuple(batch_facts.__code__.co_varnames[: batch_facts.__code__.co_argcount])
