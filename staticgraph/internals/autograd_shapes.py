"""Reads the shapes of the tensors that a result was computed from, from its autograd graph."""

from __future__ import annotations

from typing import Any

from torch import Tensor

__all__ = ["shapes_before"]

# Limit on the nodes of the autograd graph that are visited: a loss consists of a few operations.
MOST = 64


def shapes_before(values: Tensor) -> set[tuple[int, ...]] | None:
    """Finds the shapes of the computed tensors from which ``values``, of another shape, was made.

    The search goes back through operations that keep the shape of ``values``. Parameters are left
    out.

    Args:
        values: any tensor.

    Returns:
        The shapes; None if ``values`` has no autograd history, so that nothing is known.
    """
    if values.grad_fn is None:
        return None
    own, found = tuple(values.shape), set[tuple[int, ...]]()
    nodes: list[Any] = [values.grad_fn]
    seen = set(nodes)
    while nodes and len(seen) < MOST:
        for node, place in nodes.pop().next_functions:
            if node is None or node in seen or not node.next_functions:  # ends at a parameter
                continue
            shape = tuple(node._input_metadata[place].shape)
            if shape == own:
                seen.add(node)
                nodes.append(node)
            else:
                found.add(shape)
    return found
