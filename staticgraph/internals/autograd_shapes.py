"""Shapes of the tensors that a result was computed from, as its autograd graph has them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

__all__ = ["shapes_before"]

# Nodes of the autograd graph that are looked at: a loss is made of a few operations.
MOST = 64


def shapes_before(values: Tensor) -> set[tuple[int, ...]] | None:
    """Shapes of the computed tensors from which values of another shape were made, going back
    through operations that keep the values' shape; parameters are left out.

    Args:
        values: any.

    Returns:
        None where no gradient leads to the values, so that nothing is known.
    """
    if values.grad_fn is None:
        return None
    own, found = tuple(values.shape), set[tuple[int, ...]]()
    nodes: list[Any] = [values.grad_fn]
    seen = set(nodes)
    while nodes and len(seen) < MOST:
        for node, place in nodes.pop().next_functions:
            if node is None or node in seen or not node.next_functions:  # a parameter leads nowhere
                continue
            shape = tuple(node._input_metadata[place].shape)
            if shape == own:
                seen.add(node)
                nodes.append(node)
            else:
                found.add(shape)
    return found
