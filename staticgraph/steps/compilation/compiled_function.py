"""One function of fixed shapes, compiled once, that raises if it would compile again.

Every key gets its own code object: torch keeps compiled versions and the recompile limit per code
object, so neither the number of buckets nor the guards of other buckets matter. Otherwise the
default limit would silently fall back to eager at the ninth bucket.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from staticgraph.batches.slots.sizes import sizes_of
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.errors import NotStatic
from staticgraph.internals.inductor import declare_operators, inductor
from staticgraph.internals.tracing import (
    UNTRACEABLE,
    TorchDynamoException,
    TracingContext,
    counters,
    watched,
)
from staticgraph.kernels.register import NAMESPACE
from staticgraph.steps.compilation.graph_trees import skipped_recordings
from staticgraph.steps.compilation.guards import COMPILING, GuardedCall, checked, drop_what_is_known
from staticgraph.steps.compilation.modes import Mode
from staticgraph.steps.compilation.shared_trace import SharedTrace
from staticgraph.steps.tracing.obstacles import obstacles, unrecordable
from staticgraph.steps.tracing.trace import (
    KEEP_IN_TENSORS,
    cause_of,
    failed_guard,
    observed,
    of_setting,
    tracing_options,
    why_not_compiled,
)
from staticgraph.text.how_many import how_many

if TYPE_CHECKING:
    from staticgraph.rewrites import Captured
    from staticgraph.rewrites.captured_graph.captured import Rewritten


@dataclass(slots=True)
class CompileCounts:
    """What torch did on behalf of one key.

    ``recordings`` are counted over the runs that torch needs to record; see
    :func:`staticgraph.steps.compilation.graph_trees.whole_recording`.
    """

    compiles: int = 0
    graph_breaks: int = 0
    recordings: int = 0
    skipped: int = 0
    seconds: float = 0.0

    def snapshot(self) -> tuple[int, int, int]:
        """Returns torch's own running counts, to be compared later."""
        return (
            counters["stats"]["unique_graphs"],
            sum(counters["graph_break"].values()),
            skipped_recordings(),
        )

    def add_since(self, before: tuple[int, int, int]) -> None:
        """Adds what torch did since a snapshot."""
        now = self.snapshot()
        self.compiles += now[0] - before[0]
        self.graph_breaks += now[1] - before[1]
        self.skipped += now[2] - before[2]


def with_own_code(function: Callable[..., Any], name: str) -> FunctionType:
    """Returns the same function with its own code object, which is what torch counts by."""
    assert isinstance(function, FunctionType)
    return FunctionType(
        function.__code__.replace(co_name=f"static_{name.replace(' ', '_')}"),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )


class CompiledFunction:
    """A function of tensors, compiled at its first call and never again.

    Its one graph, whose every shape is a number, is rewritten if requested, then compiled by
    Inductor in one of torch's modes or, in mode ``fused``, run as it is.

    Args:
        function: takes tensors of fixed shapes.
        mode: a compiled mode.
        name: what error messages call it.
        layout: of the batches whose arrays it takes.
        rewritten_on: the device whose operators the graph is rewritten to; None leaves it as it is.
        shared: a trace for all buckets, in mode ``fused``; where this bucket does not fit it, or
            there is none, the bucket is traced alone.

    Attributes:
        captured: the rewritten graph, after the first call; None if nothing is rewritten.
        guards: how many guards a call of mode ``fused`` checks; None in any other mode.

    Raises (when called):
        NotStatic: tracing failed, or a later call would have compiled again; the message carries
            torch's reason, which names the operation or the guard.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        mode: Mode,
        name: str,
        layout: SlotLayout,
        rewritten_on: str | None = None,
        shared: SharedTrace | None = None,
    ) -> None:
        self.layout = layout
        self._shared = shared
        self._function = with_own_code(function, name)
        self._fused = mode.fused
        self._inductor = None if mode.fused else inductor(mode.inductor)
        self._recorded = mode.recording or mode.by_library
        self._device = rewritten_on
        self._call = torch.compile(
            self._function,
            fullgraph=True,
            dynamic=False,
            backend=lambda *traced: self._compile(*traced),
        )
        self._next: Callable[[tuple[Tensor, ...]], Any] = self._compiled
        self._name = name
        self._warm = False
        self._recording = mode.recording
        # Keeps Inductor's output alive, with its constants: a recording reads them, and
        # ``torch.compiler.reset()`` would free them. Inductor's own recordings look after
        # themselves.
        self._outputs: list[Any] | None = None if mode.recording else []
        self.counts: CompileCounts = CompileCounts()
        self.captured: Captured | None = None
        self.guards: int | None = None

    @property
    def done(self) -> list[Rewritten]:
        """What was rewritten."""
        return [] if self.captured is None else self.captured.done

    def _compile(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        """Compiles the graph; torch calls it."""
        if self._warm:
            raise NotStatic(f"{self._name} is compiled")
        if on_data := obstacles(graph):
            raise NotStatic(
                f"{self._name} has shapes or numbers that depend on data:\n"
                + "\n".join(f"  {obstacle}" for obstacle in on_data)
                + "\nGive the sizes instead of reading them (batch.num_graphs, x.size(0)), use "
                "torch.where instead of a mask index, or use mode='eager'"
            )
        if self._recorded and (unfit := unrecordable(graph)):
            raise NotStatic(
                f"{self._name} has operators that no recording can hold:\n"
                + "\n".join(f"  {obstacle}" for obstacle in unfit)
                + f"\n{unfit[0].reason}: {unfit[0].remedy}"
            )
        if self._device is not None:
            from staticgraph.rewrites import RewriteTarget, rewrite

            self.captured = rewrite(graph, RewriteTarget(self._device, not self._fused), inputs)
        if self._inductor is None:
            if TracingContext.try_get() is not None:
                self.guards = drop_what_is_known(self._function)
            return checked(graph, self._name)
        declare_operators(NAMESPACE)
        output = self._inductor(graph, inputs)
        if self._outputs is not None:
            self._outputs.append(output)
        return output

    def __call__(self, *tensors: Tensor) -> Any:
        """Runs the compiled function; the first call compiles it."""
        if self._recording:
            torch.compiler.cudagraph_mark_step_begin()
        if self._warm:
            return self._again(tensors)
        with COMPILING:
            return self._first(tensors)

    def _first(self, tensors: tuple[Tensor, ...]) -> Any:
        if watched():  # torch would not trace now, or ever again
            raise NotStatic(
                f"{self._name} is traced when it is first called, which cannot be while a mode "
                "sees every operation (torch's FlopCounterMode, or another TorchDispatchMode): "
                "call warmup(), or this once, before entering it"
            )
        before, started = self.counts.snapshot(), time.perf_counter()
        try:
            with tracing_options():
                result = self._traced(tensors)
        except Exception as error:
            if isinstance(cause := cause_of(error), NotStatic):
                raise cause from None
            if not isinstance(error, UNTRACEABLE):
                raise
            raise NotStatic(
                f"{self._name} cannot be compiled in fixed shapes:\n"
                f"{why_not_compiled(error, observed(error))}"
            ) from None  # the context is torch's long message, which is not shown again
        self._warm = True
        self.counts.seconds += time.perf_counter() - started
        self.counts.add_since(before)
        self.counts.compiles = max(1, self.counts.compiles)  # another bucket's trace is one as well
        return result

    def _traced(self, tensors: tuple[Tensor, ...]) -> Any:
        """Returns the result of the first call; the later ones go to :attr:`_next`."""
        shared = self._shared
        plain = all(type(value) is Tensor and not value.requires_grad for value in tensors)
        if shared is not None and shared.usable and plain:
            first = shared.bucket(self.layout, tensors, self._in_numbers)
            if first is not None:
                result, run = first
                bucket = run, sizes_of(self.layout.capacity)
                self._next, self._call = partial(shared.run, *bucket), partial(shared.call, *bucket)
                return result
        result = self._call(*tensors)
        if self._fused:
            self._next = GuardedCall(self._function, self._call)
        return result

    def _in_numbers(self, graph: torch.fx.GraphModule) -> Any:
        """Compiles a shared graph in this bucket's sizes."""
        assert self._shared is not None
        run = self._compile(graph, [])
        if TracingContext.try_get() is not None:
            self._shared.guards = self.guards
        self.guards = self._shared.guards
        return run

    def _compiled(self, tensors: tuple[Tensor, ...]) -> Any:
        return self._call(*tensors)

    def _again(self, tensors: tuple[Tensor, ...]) -> Any:
        try:
            return self._next(tensors)
        except TorchDynamoException as error:  # only a compilation raises it
            changed = self._changed(tensors) or str(error)
            raise NotStatic(
                f"{self._name} would have to be compiled again, because "
                f"{failed_guard(changed) or 'something that it was compiled for has changed'}. "
                f"{of_setting(changed) or KEEP_IN_TENSORS}:\n{changed.partition('- User stack')[0]}"
            ) from error
        except AttributeError as error:
            if (deleted := self._deletes(error)) is None:
                raise
            raise deleted from error

    def _deletes(self, error: AttributeError) -> NotStatic | None:
        """The error for a ``del self.e`` of an ``e`` that existed only before the first call.

        torch writes such a deletion into every call. None for any other error.
        """
        frames = traceback.extract_tb(error.__traceback__)
        if not frames or frames[-1].name != "__delattr__":
            return None
        return NotStatic(
            f"{self._name}: {error}: the forward deletes it, so it is there for the first step "
            "only. Do not set it in __init__, or set it to None where it is deleted; or use "
            "mode='eager'"
        )

    def _changed(self, tensors: tuple[Tensor, ...]) -> str | None:
        """Returns the guard that failed, in torch's words.

        The stance is process-wide, so it is set for this query alone, not around every call.
        """
        with COMPILING:
            try:
                with torch.compiler.set_stance("fail_on_recompile"):
                    self._call(*tensors)
            except RuntimeError as error:
                return str(error)
        return None


def skipped_recordings_of(counts: Iterable[tuple[Any, CompileCounts]]) -> list[str]:
    """One sentence per key of which torch recorded less than requested."""
    return [
        f"{key}: torch declined to record {how_many(count.skipped, 'graph')}; "
        "TORCH_LOGS=cudagraphs names the reason"
        for key, count in counts
        if count.skipped
    ]
