"""One step captured and rewritten, for inspection and counting; what mode ``fused`` runs.

The problem of checkpointed parts, which a backward runs again: torch keeps the inputs of a
checkpointed part and, in the backward, finds that the part itself has written to them, as BatchNorm
does to its running statistics. Compilers move such writes out of the part. A graph that runs as it
is cannot, and its backward would end in an autograd error that names neither the part nor a remedy.

The idea: the first run compares the versions of the inputs of such parts. Graphs without them, and
later runs, are not checked.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.row_pointers import with_pointers
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.errors import NotStatic
from staticgraph.internals.dispatch import version_of
from staticgraph.nn.context.present import Restored
from staticgraph.rewrites import Captured, RewriteTarget, rewrite
from staticgraph.steps.compilation.compiled_function import with_own_code
from staticgraph.steps.compilation.guards import GuardedCall, drop_what_is_known
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.tracing.obstacles import place_of
from staticgraph.steps.tracing.trace import tracing_options

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


class CapturedStep:
    """A step of one batch as mode ``fused`` runs it; a call runs it again over the same batch.

    torch.compile itself does not run inside a mode that counts operations; this does.

    Args:
        computation: the model's computation.
        work: ``forward`` or ``step``.
        batch: is given row pointers if it has none; one run over it changes everything that a step
            changes, except gradients.
    """

    def __init__(self, computation: Computation, work: str, batch: StaticBatch) -> None:
        if batch.layout.schema.has_pointers:
            batch = with_pointers(batch)
        self._found: list[Captured] = []
        self._given: tuple[Any, ...] = ()
        self._device = batch.device.type
        self._function = with_own_code(computation.of_tensors(work, batch, leaves=True), "captured")
        self._tensors = tuple(batch.tensors().values())
        self._idle: Any = None
        call = torch.compile(self._function, fullgraph=True, dynamic=False, backend=self._take)
        with tracing_options(), Restored(nothing=True):
            self.result: Any = call(*self._tensors)
        self._guarded = GuardedCall(self._function, call)

    def _take(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        self._found.append(rewrite(graph, RewriteTarget(self._device, compiled=False), inputs))
        drop_what_is_known(self._function, self.captured)

        def run(*given: Any) -> Any:
            """Keeps the inputs of a call and runs the graph on them."""
            if self._idle is not None:
                return self._idle
            self._given = given
            return graph.forward(*given)

        return run

    @property
    def captured(self) -> Captured:
        """The rewritten graph."""
        return self._found[0]

    def seconds_around(self, calls: int = 50, rounds: int = 20) -> float:
        """Returns a call's overhead over the graph in seconds, in the best round.

        It consists of guards, dispatch and arguments.
        """
        self._idle, best = (torch.zeros(()),), float("inf")
        try:
            with Restored(nothing=True):
                for _ in range(rounds):
                    started = time.perf_counter()
                    for _ in range(calls):
                        self._guarded(self._tensors)
                    best = min(best, (time.perf_counter() - started) / calls)
        finally:
            self._idle = None
        return best

    def __call__(self) -> Tensor:
        """Returns the first tensor of the result."""
        return self.captured.module.forward(*self._given)[0]
