"""``sg.check``: can a model run in fixed shapes, and what prevents it, before anything is recorded?

The model is copied, its layers are made static, and it runs on one padded batch four times: watched
(finding every operation that a recording cannot contain, with the line of the model), traced (one
graph, no sizes from data), with garbage in the padding (finding the module that lets it reach real
rows), and compared with plain PyG on the same graphs without padding. The given model is not
changed.

What it does not do: compile or record. A model that passes can still exceed the device's memory.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Unpack

import torch
from torch import Tensor

from staticgraph.batches.batch.containers import tensors_in
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.checking.comparison import Comparer, RunOptions, attempt
from staticgraph.checking.edge_order import order_error
from staticgraph.checking.example_batch import batch_of, portion_of, revalued
from staticgraph.checking.outcome import Difference
from staticgraph.checking.padding_culprit import Trail
from staticgraph.checking.plain_batch import plain_batch
from staticgraph.checking.report import (
    DID_NOT_RUN,
    CheckReport,
    ModuleRow,
    is_layer,
    module_row,
)
from staticgraph.checking.watching import Watch
from staticgraph.errors import NotStatic
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.bound_batch import Restored
from staticgraph.nn.context.marked_tensor import asks
from staticgraph.nn.convert import context_of
from staticgraph.nn.norm.batch_norm import SINGLE
from staticgraph.nn.refused_layers import refused_options, unheard_hooks
from staticgraph.nn.utils.own_sizes import note_counts, with_own_sizes
from staticgraph.plans.plan import BucketPlan
from staticgraph.sizes.attention import AttentionRow
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.attention_choices import attention_choices
from staticgraph.steps.compilation.modes import without_fused
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.computation.model_call import Forward, forward_of
from staticgraph.steps.computation.model_setup import StepOptions, Subject
from staticgraph.steps.loss.mean_loss import Loss, LossTerms
from staticgraph.steps.loss.weighted_means import StockMeans
from staticgraph.steps.tracing.obstacles import RECORDING_ALONE, Obstacle
from staticgraph.steps.tracing.trace import defined_at, raised, trace_step, untraceable
from staticgraph.text.how_many import how_many

# On a GPU, a compiled step refuses it, too; on the CPU nothing is copied.
HOST_COPY = "host-to-device copy"


def check(
    model: torch.nn.Module | Subject,
    plan: BucketPlan | Sequence[Capacity | tuple[int, ...]],
    example: Any = None,
    *,
    forward: Forward | None = None,
    loss: Loss | None = None,
    rewrites: bool = False,
    **options: Unpack[StepOptions],
) -> CheckReport:
    """Runs a copy of the model on one static batch and reports what prevents fixed shapes.

    Args:
        model: any PyG model; it is not changed.
        plan: the buckets, or a plain list of capacities; the first bucket that the example fits is
            used.
        example: graphs to run on, a store or a list, or a batch; by default those that the plan was
            made for. Where these are gone (a plan read from its file) graphs are made up from its
            schema, with zeros for integers, since the number of categories is not known.
        forward: ``forward(model, batch)``, needed where the names of the model's own parameters do
            not say what to pass.
        loss: as for the runner; its operations are inspected with the model's.
        rewrites: also capture the model as mode ``fused`` does, which takes seconds, and report
            which lines run by an operator of this library, and what prevents it elsewhere.
        **options: the other options of a step, such as ``differentiable``, as for the runner.

    Returns:
        The report; it prints as a table, and is true if there are no obstacles.

    Raises:
        TypeError: the example has no graphs.
        ValueError: there is neither an example nor a plan that knows the fields of the data, or the
            model cannot be copied, or ``rewrites`` without PyG.
        GraphTooLarge: no graph of the example fits a bucket.
    """
    plan = plan if isinstance(plan, BucketPlan) else BucketPlan.of(plan)
    batch = batch_of(plan, example)
    if rewrites and (why := without_fused()):
        raise ValueError(f"rewrites=True cannot be: {why}")
    subject = Subject.of(model, forward=forward, loss=loss, **options)
    report = _Check(subject, batch.to(subject.device)).report()
    if rewrites and report.compiles:
        from staticgraph.checking.explain import explain  # imports PyG

        report = replace(report, rewrites=explain(subject, plan, batch))
    return report


class _Check:
    """The runs of one check, each on a copy of the model."""

    def __init__(self, subject: Subject, batch: StaticBatch) -> None:
        self._subject, self._stock = subject, subject.model
        self._options = RunOptions(subject.model.training, gradients=True)
        self._batch = batch
        forward = subject.forward or forward_of(subject.model)
        self._forward = _differentiable(forward, subject.differentiable)
        self._loss = subject.loss
        self._obstacles: list[Obstacle] = []
        self._static = False
        self._own_sizes = False  # whether the model reads sizes off the batch's own indices

    def report(self) -> CheckReport:
        """Makes all runs, and reports what they found."""
        ran, stopped = self._watched()
        self._host_attributes()
        self._refused_options()
        graphs = 0 if stopped else self._traced()
        by_nature = {o.kind for o in self._obstacles} - RECORDING_ALONE
        if self._batch.device.type == "cpu":
            by_nature -= {HOST_COPY}
        compiles = graphs == 1 and self._static and not by_nature & {"refused", HOST_COPY}
        recordable = compiles and not self._obstacles
        refused = stopped or bool(refused_options(self._stock))
        inert = {} if refused else self._measured()
        parity, note = (None, "not compared: a layer is refused") if refused else self._compared()
        note = DID_NOT_RUN if stopped else note
        if not stopped:
            self._loss_watched()
        self._order_compared()
        attention = self._attention()
        real = self._batch.real
        held, nodes, edges = (real.graphs, real.nodes, real.edges) if real else (0, 0, 0)
        return CheckReport(
            model=type(self._stock).__name__,
            batch=f"{how_many(held, 'graph')} ({how_many(nodes, 'node')}, "
            f"{how_many(edges, 'edge')}) in {self._batch.capacity}",
            modules=tuple(self._row(path, attention, inert.get(path)) for path in ran),
            obstacles=tuple(self._obstacles),
            graphs=graphs,
            compiles=compiles,
            recordable=recordable,
            parity=parity,
            parity_note=note,
            attention=attention,
        )

    # ------------------------------------------------------------------ the runs

    def _copy(self) -> tuple[torch.nn.Module, BatchContext]:
        model = _copied(self._stock)
        return model, context_of(model)

    def _watched(self) -> tuple[list[str], bool]:
        """Runs once under watch; returns the modules that ran, and whether one raised."""
        model, context = self._copy()
        watch, ran, stopped = Watch(), [], False
        stack: list[str] = []

        def enter(path: str) -> Any:
            """Returns the hook that notes, before a module runs, that it does."""

            def hook(*_: Any) -> None:
                """Puts the module's path on the stack and in the order of runs."""
                stack.append(path)
                ran.append(path)
                watch.module = path

            return hook

        def leave(*_: Any) -> None:
            """Makes the calling module the running one again."""
            stack.pop()
            watch.module = stack[-1] if stack else ""

        for path, module in model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):  # takes no hooks
                module.register_forward_pre_hook(enter(path))
                module.register_forward_hook(leave)
        unknown = StaticBatch(self._batch.layout, self._batch.tensors())
        with Restored(), torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            context.enter(unknown)
            try:
                with watch.running(), asks() as sizes_read:
                    out = self._forward(model, with_own_sizes(unknown))
                    results = [out] if self._loss is None else [self._loss(out, unknown)]
                    rows = [t for t in tensors_in(results) if t.requires_grad]
                    torch.autograd.backward(rows, [torch.ones_like(t) for t in rows])
                self._own_sizes = bool(sizes_read)
            except Exception as error:  # whatever the model raises is an obstacle
                self._obstacles += watch.obstacles
                obstacle = raised(error, stack[-1] if stack else "")
                self._obstacles.append(self._also_plain(obstacle))
                stopped = True
            else:
                self._obstacles += watch.obstacles
        leaves = {p for p, m in self._stock.named_modules() if not list(m.children())}
        layers = {p for p, m in self._stock.named_modules() if is_layer(m)}
        return [p for p in dict.fromkeys(ran) if p and (p in leaves or p in layers)], stopped

    def _also_plain(self, obstacle: Obstacle) -> Obstacle:
        """Adds whether padding is why a model raises, by running plain PyG without it."""
        if obstacle.kind == "refused" or self._batch.real is None:
            return obstacle
        try:
            with warnings.catch_warnings(), torch.no_grad(), Restored(nothing=True):
                warnings.simplefilter("ignore")
                unpadded: Any = plain_batch(self._batch)
                self._forward(_copied(self._stock), unpadded)
        except Exception:  # whatever the model raises, padding is not the cause
            here = "plain PyG stops on these graphs, too"
        else:
            here = (
                "plain PyG runs these graphs without padding, so the bucket's sizes, or what "
                "stands in a padding row, are what it stops at"
            )
        advice = "; ".join(filter(None, (here, obstacle.advice)))
        return obstacle._replace(advice=advice)

    def _host_attributes(self) -> None:
        """Finds tensors in plain attributes of modules, which ``.to(device)`` does not move.

        Those that ``weight_norm`` and ``spectral_norm`` recompute before every forward do not
        count.
        """
        for path, module in self._stock.named_modules():
            for name, value in vars(module).items():
                computed = {f"{name}_orig", f"{name}_g"} & dict(module._parameters).keys()
                if name == SINGLE or computed:
                    continue
                if isinstance(value, Tensor) and value.device.type == "cpu":
                    self._obstacles.append(
                        Obstacle(
                            f"self.{name}, a tensor that is not a buffer",
                            defined_at(type(module)),
                            f"class {type(module).__name__}",
                            "host-to-device copy",
                            path,
                        )
                    )

    def _refused_options(self) -> None:
        """Finds layers that are refused for their options or hooks rather than for their class."""
        for path, why in (unheard_hooks(self._stock) | refused_options(self._stock)).items():
            kind = type(self._stock.get_submodule(path))
            self._obstacles.append(
                Obstacle(why, defined_at(kind), f"class {kind.__name__}", "refused", path)
            )

    def _traced(self) -> int:
        model, context = self._copy()
        if self._own_sizes:
            note_counts(self._batch, context.counted)

        def compute(batch: StaticBatch) -> Any:
            """The function to trace: the forward in the context of a batch."""
            context.enter(batch)
            sized = with_own_sizes(batch) if self._own_sizes else batch.replace()
            out = self._forward(model, sized)
            if self._loss is not None:
                out = out, self._loss(out, batch)
            context.leave()
            return out

        with Restored(nothing=True):
            trace = trace_step(compute, self._batch)
        places = {obstacle.where for obstacle in self._obstacles}
        self._obstacles += [o for o in trace.obstacles if o.where not in places]
        self._static = trace.static
        if trace.error is not None and not self._obstacles:
            self._obstacles.append(untraceable(trace.error, type(self._stock), trace.observed))
        return trace.graphs if trace.error is None else 0

    @cached_property
    def _comparer(self) -> Comparer:
        """Runs a copy of the model, over padding as in a compiled step."""

        def forward(model: torch.nn.Module, batch: Any) -> Any:
            """Calls the model, with sizes of the batch's own indices where it reads them."""
            static = self._own_sizes and isinstance(batch, StaticBatch)
            return self._forward(model, with_own_sizes(batch) if static else batch)

        model = _copied(self._stock)
        subject = replace(self._subject, model=model, forward=forward, loss=None, optimizer=None)
        computation = Computation(subject)
        computation.assume_rows()
        return Comparer(subject, computation, compiled=True)

    def _measured(self) -> dict[str, bool]:
        """Maps each module whose real inputs stayed the same to whether its real outputs did."""
        comparer, trails = self._comparer, []
        tolerance = comparer.tolerance.same_order
        for batch in (self._batch, revalued(self._batch)):
            trail = Trail(comparer.model, context_of(comparer.model), operations=False)
            with trail.followed():
                comparer.padded(batch, self._options)
            trails.append({event.what: event for event in reversed(trail.events)})
        clean, dirty = trails
        inert: dict[str, bool] = {}
        for what in reversed(clean):
            if what in dirty and clean[what].reads_as(dirty[what], tolerance):
                path = what.removeprefix("module ")
                inert[path] = clean[what].gives_as(dirty[what], tolerance)
        guilty = [
            path
            for path, fine in inert.items()
            if not fine
            and not any(p != path and p.startswith(f"{path}.") and not inert[p] for p in inert)
            and path
        ]
        if not inert.get("", True) and not guilty:
            guilty = [""]
        for path in guilty:
            module = self._stock.get_submodule(path)
            self._obstacles.append(
                Obstacle(
                    type(module).__name__,
                    defined_at(type(module)),
                    f"class {type(module).__name__}",
                    "padding reaches real rows",
                    path,
                )
            )
        return inert

    def _compared(self) -> tuple[float | None, str]:
        """Compares outputs and gradients with plain PyG's on the same graphs without padding."""
        batch = revalued(self._batch, whole_rows=True)
        parity = self._comparer.beside_plain(batch, self._options)
        if parity is None:
            try:
                self._comparer.plain(batch, plain_batch(batch), self._options)
            except Exception as error:  # whatever the model raises
                return None, f"plain PyG raised {type(error).__name__}: {error}"
            return None, "plain PyG gives no numbers that can be compared"
        note, tied = parity.note, parity.tied
        difference = parity.difference or self._not_finite()
        if tied is not None:
            note += (
                f", without ties: with them {tied.name} is off by {tied.how}, as a choice among "
                "equal rows (TopK, max, sort) falls otherwise; with noise on the rows it does not "
                "differ"
            )
        if difference is not None and not self._obstacles:
            broken = difference.off == float("inf") and difference.name.startswith("the gradient")
            kind = "padding breaks a gradient" if broken else "differs from plain PyG"
            how = "not finite" if broken else f"off by {difference.how}"
            self._obstacles.append(
                Obstacle(
                    type(self._stock).__name__,
                    defined_at(type(self._stock)),
                    f"{difference.name} is {how}",
                    kind,
                )
            )
        return parity.worst, note

    def _not_finite(self) -> Difference | None:
        """Returns what is NaN where padding graphs have a single node or none, if it is not in
        plain PyG."""
        portion = portion_of(self._batch)
        if portion is None:
            return None
        clean = attempt(lambda: self._comparer.padded(portion, self._options))
        if clean is None or clean.finite:
            return None
        parity = self._comparer.beside_plain(portion, self._options, clean)
        return None if parity is None else parity.difference

    def _order_compared(self) -> None:
        """Compares plain PyG's results in the store's order of edges and in the data set's."""
        try:
            moved = order_error(self._comparer, self._batch, self._options)
        except NotStatic:  # a refused layer, which is an obstacle already
            return
        if moved is not None:
            where = moved.where or defined_at(type(self._stock))
            name = type(self._stock).__name__
            self._obstacles.append(Obstacle(name, where, moved.what, "edges by their position"))

    def _loss_watched(self) -> None:
        """Finds functions of the loss whose own mean is another than the one over rows."""
        if self._loss is None:
            return
        data: Any = plain_batch(self._batch)
        try:
            with torch.no_grad():
                out = self._forward(_copied(self._stock).eval(), data)
                with StockMeans() as watch:
                    terms = LossTerms.of(self._loss(out, data))
        except Exception:  # whatever model or loss raise on a plain batch; a step reports it
            return
        if watch.called and terms.weights is None:
            self._obstacles.append(
                Obstacle(
                    f"{watch.called[0]} with weights or ignore_index",
                    defined_at(self._loss),
                    getattr(self._loss, "__name__", type(self._loss).__name__),
                    "the mean of the loss",
                )
            )

    def _attention(self) -> tuple[AttentionRow, ...]:
        """Returns the paths of attention in a compiled step in the example's bucket."""
        try:
            return attention_choices(
                self._copy()[0],
                [self._batch.capacity],
                device=self._batch.device,
                dtype=None,
                training=self._stock.training,
                first_bucket=self._batch.bucket,
            )
        except NotStatic:  # the watched run has found it already, and named the line
            return ()

    def _row(self, path: str, attention: tuple[AttentionRow, ...], inert: bool | None) -> ModuleRow:
        chosen = {layer: row.path for row in attention for layer in row.layers}
        obstacles = [o for o in self._obstacles if o.module == path]
        module = self._stock.get_submodule(path)
        return module_row(path, module, obstacles, chosen.get(path), inert)


def _differentiable(forward: Forward, fields: Sequence[str]) -> Forward:
    """The forward of a batch whose fields require a gradient, as a step makes them."""
    if not fields:
        return forward

    def run(model: torch.nn.Module, batch: Any) -> Any:
        """Adds nothing that requires a gradient; a trace cannot contain ``requires_grad_()``."""
        none = 0 * next(p for p in model.parameters() if p.requires_grad).flatten()[0]
        for name in fields:
            setattr(batch, name, batch[name].detach() + none)
        return forward(model, batch)

    return run


def _copied(model: torch.nn.Module) -> torch.nn.Module:
    try:
        return copy.deepcopy(model)
    except RuntimeError as error:
        computed = [
            f"{path}.{name}".lstrip(".")
            for path, module in model.named_modules()
            for name, value in vars(module).items()
            if isinstance(value, Tensor) and value.grad_fn is not None
        ]
        if not computed:
            raise
        raise ValueError(
            f"the model cannot be copied, which a check does first: {', '.join(computed)} "
            "carries a gradient. torch.nn.utils.weight_norm leaves such a tensor: take "
            "torch.nn.utils.parametrizations.weight_norm; a tensor kept from a forward: detach it"
        ) from error
