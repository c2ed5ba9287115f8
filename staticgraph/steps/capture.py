"""One step captured and rewritten, to be looked at or counted; what mode ``fused`` runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.pointers import with_pointers
from staticgraph.batches.static_batch import StaticBatch
from staticgraph.nn.context.present import Restored
from staticgraph.rewrites import Captured, Target, rewrite
from staticgraph.steps.compiled import with_own_code
from staticgraph.steps.computation import Computation
from staticgraph.steps.tracing import tracing_options


class CapturedStep:
    """A step of one batch as mode ``fused`` runs it; called, it runs again over the same batch.

    torch.compile itself does not run inside a mode that counts operations; this does.

    Args:
        computation: of the model.
        work: ``forward`` or ``step``.
        batch: gets row pointers where it has none; one run over it changes what a step changes,
            but for gradients.
    """

    def __init__(self, computation: Computation, work: str, batch: StaticBatch) -> None:
        if not batch.layout.schema.hetero:
            batch = with_pointers(batch)
        self._found: list[Captured] = []
        self._given: tuple[Any, ...] = ()
        self._device = batch.device.type
        function = with_own_code(computation.of_tensors(work, batch, leaves=True), "captured")
        with tracing_options(), Restored(nothing=True):
            call = torch.compile(function, fullgraph=True, dynamic=False, backend=self._take)
            self.result = call(*batch.tensors().values())

    def _take(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        self._found.append(rewrite(graph, Target(self._device, compiled=False), inputs))

        def run(*given: Any) -> Any:
            self._given = given
            return graph.forward(*given)

        return run

    @property
    def captured(self) -> Captured:
        """The graph, rewritten."""
        return self._found[0]

    def __call__(self) -> Tensor:
        """The first tensor of the result."""
        return self.captured.module.forward(*self._given)[0]
