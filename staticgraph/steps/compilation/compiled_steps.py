"""The compiled functions of a runner: one per key, made by the warm-up and normally never after.

Running a key compiled and recording it use the same function from here, so that nothing is compiled
twice.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any, NamedTuple

import torch

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.errors import NotStatic
from staticgraph.nn.context.bound_batch import Restored
from staticgraph.steps.compilation.captured_layers import CapturedLayers
from staticgraph.steps.compilation.compiled_function import (
    CompileCounts,
    CompiledFunction,
    with_own_code,
)
from staticgraph.steps.compilation.graph_trees import RecordedGraphs
from staticgraph.steps.compilation.modes import FUSED, Mode
from staticgraph.steps.compilation.shared_trace import SharedTrace
from staticgraph.steps.computation.computation import Computation


class Key(NamedTuple):
    """What a compiled function belongs to."""

    bucket: int
    work: str
    training: bool
    grad: bool
    fused: bool = False
    inputs: tuple[str, ...] = ()  # fields that require a gradient
    around: str | None = None  # the dtype of an autocast that is not the subject's

    def __str__(self) -> str:
        return (
            f"bucket {self.bucket} {self.work} {'train' if self.training else 'eval'}"
            f"{'' if self.grad else ' no_grad'}{' fused' if self.fused else ''}"
            f"{' by ' + ' '.join(self.inputs) if self.inputs else ''}"
            f"{f' inside autocast {self.around}' if self.around else ''}"
        )


class CompiledSteps:
    """Compiles the functions of one model, one per key.

    Args:
        model: its training flag is part of a key.
        computation: what is compiled.
        mode: a compiled mode.
        buckets: how many buckets there are; several share their traces in mode ``fused``.

    Attributes:
        apart: by work that is no single graph in mode ``fused``, the model's layers.
        notes: by work, what is said of it.
    """

    def __init__(
        self, model: torch.nn.Module, computation: Computation, mode: Mode, buckets: int = 1
    ) -> None:
        self.warmed_up = False
        self.late: Counter[int] = Counter()
        self.apart: dict[str, CapturedLayers] = {}
        self.notes: dict[str, str] = {}
        self._model = model
        self._computation = computation
        self._mode = mode
        self._functions: dict[Key, CompiledFunction] = {}
        self._several = buckets > 1
        self._shared: dict[Any, SharedTrace] = {}
        self._dtypes: dict[str, tuple[torch.Tensor, torch.dtype]] = {}

    def __len__(self) -> int:
        return len(self._functions)

    def run(self, work: str, batch: StaticBatch, fused: bool = False) -> Any:
        """Returns the work's result for a batch; see :class:`CompiledFunction` for what it raises.

        Args:
            work: ``step`` or ``forward``.
            batch: of one of the buckets.
            fused: whether to run the rewritten graph without Inductor, whatever the mode; the batch
                then has row pointers, if nodes have one type.
        """
        self._computation.hooks.check()
        self._check_dtypes()
        fused = fused or self._mode.fused
        if fused and work in self.apart:
            return self._by_layers(work, batch)
        # The guards assume that no other forward, and no autocast but the subject's own, is active.
        with Restored(nothing=True), self._computation.precision.alone():
            function = self.find_function(work, batch, fused)
            try:
                return function(*function.layout.in_order(batch.layout, batch.tensors()))
            except NotStatic as error:
                if not fused or function.captured is not None:
                    raise
                whole = error
        return self._try_layers(work, batch, whole)

    def _try_layers(self, work: str, batch: StaticBatch, whole: NotStatic) -> Any:
        """Runs what is no single graph layer by layer, or raises why it is none."""
        layers, result = CapturedLayers(self._model, self._computation), None
        self.apart[work] = layers
        try:
            result = self._by_layers(work, batch)
        except Exception:  # perhaps a model that does not run over padding alone
            layers.functions.clear()
        finally:
            if not layers.functions:
                del self.apart[work]
        if not layers.functions:
            raise whole
        self._functions = {
            key: function for key, function in self._functions.items() if function.counts.compiles
        }
        first, *reason = str(whole).splitlines()
        self.notes[work] = (
            f"{work}: it is no single graph, so it runs in eager, but for layers that are "
            f"fused by themselves ({', '.join(layers.paths)}): "
            f"{' '.join(line.strip() for line in reason[:2]) or first}"
        )
        if self._mode.fused:
            warnings.warn(self.notes[work], stacklevel=6)
        return result

    def _by_layers(self, work: str, batch: StaticBatch) -> Any:
        layers = self.apart[work]
        layers.frozen = self.warmed_up
        with self._computation.active(), layers.in_place():
            return self._computation.run(work, batch)

    def _check_dtypes(self) -> None:
        """Refuses a model that was converted since its steps were compiled.

        Raises:
            NotStatic: a parameter has another dtype.
        """
        for name, (parameter, dtype) in self._dtypes.items():
            if parameter.dtype is not dtype:
                raise NotStatic(
                    f"{name} was {dtype} when the steps were compiled and is {parameter.dtype}: "
                    "convert a model (model.double()) before its runner is made, or make a new "
                    "runner; or use mode='eager'"
                )

    def find_function(self, work: str, batch: StaticBatch, fused: bool = False) -> CompiledFunction:
        """Returns the function for a batch and the current flags; warns if it is made late."""
        fused = fused or self._mode.fused
        grad = torch.is_grad_enabled()
        may_differentiate = grad and work == "forward"
        inputs = (
            tuple(n for n, t in batch.tensors().items() if t.requires_grad)
            if may_differentiate
            else ()
        )
        around = self._computation.precision.around
        key = Key(batch.bucket, work, self._model.training, grad, fused, inputs, around)
        if key not in self._functions:
            if self.warmed_up:
                self.late[key.bucket] += 1
                instead = f", with autocast=torch.{around} in place of torch.autocast around calls"
                warnings.warn(
                    f"{key} was not warmed up and compiles now; name its phase in "
                    f"warmup(phases=...){instead if around else ''}",
                    stacklevel=5,
                )
            rewritten = fused or self._computation.context.kernels
            function = self._computation.of_tensors(work, batch, leaves=rewritten)
            mode = Mode(FUSED, "as asked") if fused else self._mode
            device = batch.device.type if rewritten else None
            parameters = self._model.named_parameters()
            self._dtypes = {name: (p, p.dtype) for name, p in parameters}
            shared = self._trace_for(key, batch) if fused and self._several else None
            self._functions[key] = CompiledFunction(
                function, mode, str(key), batch.layout, device, shared
            )
        return self._functions[key]

    def _trace_for(self, key: Key, batch: StaticBatch) -> SharedTrace:
        """Returns the trace for all buckets whose functions differ in their sizes alone."""
        arrays = tuple((entry.name, entry.dtype) for entry in batch.layout.entries)
        reserves = batch.capacity.node_reserve, batch.capacity.edge_reserve
        family = key._replace(bucket=-1), arrays, reserves, id(self._computation.known(batch))
        if family not in self._shared:
            function = self._computation.of_tensors(key.work, batch, leaves=True, any_bucket=True)
            self._shared[family] = SharedTrace(with_own_code(function, f"any {key.work}"))
        return self._shared[family]

    def note_recorded(
        self, bucket: int, work: str, training: bool, recorded: RecordedGraphs
    ) -> None:
        """Adds what torch recorded of a key, forward and backward, after its first run."""
        around = self._computation.precision.around
        key = Key(bucket, work, training, training and torch.is_grad_enabled(), around=around)
        counts = self._functions[key].counts
        counts.recordings += recorded.graphs
        counts.skipped = max(counts.skipped, recorded.skipped)

    @property
    def counts(self) -> list[tuple[Key, CompileCounts]]:
        """What torch did on behalf of each key."""
        counts = [(key, function.counts) for key, function in self._functions.items()]
        for work, layers in self.apart.items():
            for (path, form), function in layers.functions.items():
                key = Key(form.bucket, f"{work} of {path}", form.training, form.grad, fused=True)
                counts.append((key, function.counts))
        return counts

    def forget(self, bucket: int) -> None:
        """Forgets the functions of one bucket."""
        for key in [key for key in self._functions if key.bucket == bucket]:
            del self._functions[key]
        self._shared.clear()
        for layers in self.apart.values():
            layers.forget(bucket)

    def clear(self) -> None:
        """Forgets all functions."""
        self._functions.clear()
        self._shared.clear()
        self.apart.clear()
        self.notes.clear()
        self._dtypes.clear()
        self._computation.hooks.forget()
