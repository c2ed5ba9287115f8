"""Checkpointed parts of a captured graph that runs as it is, and that a backward runs again.

The problem: torch keeps the inputs of a checkpointed part and, in the backward, finds that the part
itself has written to them, as BatchNorm does to its running statistics. Compilers move such writes
out of the part. A graph that runs as it is cannot, and its backward would end in an autograd error
that names neither the part nor a remedy.

The idea: the first run compares the versions of the inputs of such parts. Graphs without them, and
later runs, are not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from staticgraph.errors import NotStatic
from staticgraph.internals.dispatch import version_of
from staticgraph.steps.tracing.obstacles import place_of

_PART = torch.ops.higher_order.tag_activation_checkpoint


def checked(graph: torch.fx.GraphModule, name: str) -> Callable[..., Any]:
    """Returns the graph's forward, which at its first run refuses parts that write to their inputs.

    The writes are undone.

    Args:
        graph: as Dynamo captured it.
        name: what messages call it.

    Raises (when called):
        NotStatic: such a part writes.
    """
    given = [node for node in graph.graph.nodes if node.op == "placeholder"]
    parts = [node for node in graph.graph.nodes if node.target is _PART]
    read = {arg: part for part in parts for arg in part.args if arg in given}
    if not read:
        return graph.forward
    places = [(number, read[node]) for number, node in enumerate(given) if node in read]
    passed = False

    def run(*inputs: Any) -> Any:
        """Runs the graph; the first time, also checks whether inputs change."""
        nonlocal passed
        if passed:
            return graph.forward(*inputs)
        before = [
            (value, version_of(value), value.detach().clone(), part)
            for number, part in places
            if isinstance(value := inputs[number], Tensor)
        ]
        result = graph.forward(*inputs)
        written = [kept for kept in before if version_of(kept[0]) != kept[1]]
        with torch.no_grad():
            for value, _, was, _ in written:
                value.copy_(was)
        if written:
            where, line = place_of(written[0][3].stack_trace or "")
            raise NotStatic(
                f"{name}: activation checkpointing runs a part of the forward again, which writes "
                f"to a buffer (running statistics of a norm, a counter), at {where}: {line}; "
                "its second run would write again: give mode='eager' or a compiled one, or leave "
                "the norm out of the checkpointed block"
            )
        passed = True
        return result

    return run
