"""One step captured and rewritten, for inspection and counting; what mode ``fused`` runs."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.row_pointers import with_pointers
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.nn.context.present import Restored
from staticgraph.rewrites import Captured, RewriteTarget, rewrite
from staticgraph.steps.compilation.compiled_function import with_own_code
from staticgraph.steps.compilation.guards import GuardedCall, drop_what_is_known
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.tracing.trace import tracing_options


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
