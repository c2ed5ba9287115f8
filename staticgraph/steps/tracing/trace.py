"""A step captured as by torch.compile, without being compiled: how many graphs, which obstacles.

``torch.compile`` with Inductor takes tens of seconds; tracing alone takes about one. The backend
here only inspects the captured graph and then runs it as it is, operation by operation, so that one
call tells both whether the step is static and what numbers it computes.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.errors import NotStatic
from staticgraph.internals.tracing import (
    drop_guards,
    forget_compiled,
    guards_not_timed,
    switched,
)
from staticgraph.steps.tracing.failures import observed
from staticgraph.steps.tracing.obstacles import Obstacle, obstacles


@dataclass(slots=True)
class Trace:
    """What tracing a step found.

    Attributes:
        result: what the step returned, or None if it could not be traced.
        graphs: how many graphs were captured; a static step is one.
        obstacles: the operations that depend on data.
        error: why tracing stopped, in torch's words or in those of NotStatic.
        observed: the exception of the model that stopped torch.compile, if there was one.
    """

    result: Any = None
    graphs: int = 0
    obstacles: list[Obstacle] = field(default_factory=list)
    error: str | None = None
    observed: str | None = None

    @property
    def static(self) -> bool:
        """Whether the step is one graph of fixed shapes."""
        return self.error is None and self.graphs == 1 and not self.obstacles


def trace_step(compute: Callable[[StaticBatch], Any], batch: StaticBatch) -> Trace:
    """Captures ``compute(batch)`` as a compiled step would see it: without counts on the host.

    Nothing that ``compute`` changes (gradients, buffers) is restored.
    """
    trace = Trace()
    layout, names = batch.layout, tuple(batch.tensors())

    def look(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        """Stands in for a compiler: notes obstacles, and runs the graph as it is."""
        trace.graphs += 1
        drop_guards(lambda kind, name: True)  # a graph that is called once needs no guards
        trace.obstacles += obstacles(graph)
        return graph.forward

    def step(*tensors: Tensor) -> Any:
        """Computes over a batch of these tensors."""
        return compute(StaticBatch(layout, dict(zip(names, tensors, strict=True))))

    forget_compiled()
    try:
        with warnings.catch_warnings(), tracing_options():
            warnings.simplefilter("ignore")
            compiled = torch.compile(step, fullgraph=True, dynamic=False, backend=look)
            trace.result = compiled(*batch.tensors().values())
    except NotStatic as error:
        trace.error = str(error)
    except Exception as error:  # whatever the model or torch raises during the trace
        cause = _cause(error)
        trace.error = str(cause)
        trace.observed = observed(error)
    return trace


def _cause(error: BaseException) -> BaseException:
    """Returns the NotStatic that tracing wrapped, if there is one; else the error itself."""
    seen: BaseException | None = error
    while seen is not None:
        inner = getattr(seen, "inner_exception", None)
        if isinstance(seen, NotStatic):
            return seen
        if isinstance(inner, NotStatic):
            return inner
        seen = seen.__cause__ or seen.__context__
    return error


@contextmanager
def tracing_options() -> Iterator[None]:
    """A ``with`` block for tracing, with ``torch.autograd.grad`` and recurrent layers in one graph.

    Forces need the former; recurrent layers run as unrolled cells. The switches are torch's own,
    from 2.11 on; a missing one is skipped, and tracing then reports what it cannot do. A trace
    makes a million objects that live until it ends, so garbage collection is off meanwhile; it took
    a tenth of the time.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        options = {"trace_autograd_ops": True, "allow_rnn": True, "run_gc_after_compile": False}
        with switched(**options), guards_not_timed():
            yield
    finally:
        if collects:
            gc.enable()
