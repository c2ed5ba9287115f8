"""What a key computes: the forward of a model, or its forward and mean loss, over one batch.

The same function runs in eager, is compiled, and is recorded. While it runs, the model's converted
layers see the batch and PyG's functions have fixed shapes, in the running thread alone; before and
after, neither is the case. A backward that runs parts of the forward again (activation
checkpointing) runs them under the same conditions, in whichever thread.

The precision of a step is its subject's autocast, or one that is entered around it. In eager an
autocast around a call has its usual effect. A compiled or recorded step keeps the autocast that it
was made in, so that is part of its key, and a call inside another autocast reports it instead of
computing in the wrong precision. Autocast keeps its casts of weights until its outermost block
ends. Inside a block around a whole loop, they would stay those of the first step, and a recording
made there would read them, too. So they are dropped after every update, and before and after
everything that is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.containers import mapped, tensors_in
from staticgraph.batches.batch.own_class import built_like
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.slots.sizes import SizedLayout
from staticgraph.errors import NotStatic
from staticgraph.kernels.edges import order_edges
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.bound_batch import Restored, remember, traced_here
from staticgraph.nn.context.leaf_calls import FACTS, batch_facts
from staticgraph.nn.context.marked_tensor import asks
from staticgraph.nn.convert import context_of
from staticgraph.nn.late_layers import Newcomers
from staticgraph.nn.norm.batch_norm import flag_single_rows, single_row
from staticgraph.nn.refused_layers import refused_options
from staticgraph.nn.utils.own_sizes import note_counts, with_own_sizes
from staticgraph.schema import COUNTS, POINTERS, Level
from staticgraph.sizes.capacity import Capacity
from staticgraph.steps.computation.model_call import (
    Path,
    Provenance,
    forward_of,
    level_in,
    optional_fields,
    output_tensors,
    row_level,
    sanitized,
    zero_padding,
)
from staticgraph.steps.computation.model_setup import Subject, name_of
from staticgraph.steps.computation.provenance import run_elsewhere, sizes_in
from staticgraph.steps.loss.mean_loss import LossTerms, mean_loss, share_of_loss
from staticgraph.steps.state.training_hooks import HeardHooks
from staticgraph.steps.state.training_state import untouched
from staticgraph.steps.tracing.trace import advise


class Precision:
    """The precision of one subject's steps.

    Args:
        autocast: the subject's own; None leaves whatever is entered around a call.
        device: the device of its model.
    """

    def __init__(self, autocast: torch.dtype | None, device: torch.device) -> None:
        self._autocast, self._device = autocast, device.type

    def __call__(self) -> AbstractContextManager[Any]:
        """A ``with`` block around a forward and its loss."""
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self._device, dtype=self._autocast)

    def alone(self) -> AbstractContextManager[Any]:
        """A ``with`` block around a compiled step, without the caller's autocast.

        That autocast does not apply if the subject has its own, which is entered inside the step.
        """
        if self._autocast is None or not torch.is_autocast_enabled(self._device):
            return nullcontext()
        return torch.autocast(self._device, enabled=False)

    @property
    def around(self) -> str | None:
        """The dtype of the autocast around the current call; None if the subject has its own."""
        if self._autocast is not None or not torch.is_autocast_enabled(self._device):
            return None
        return name_of(torch.get_autocast_dtype(self._device))


class Computation:
    """One model with its loss.

    Args:
        subject: its model is converted in place; the fields that it takes derivatives by are
            differentiable in evaluation too, although gradients are disabled around it.
        capacities: buckets that batches will have, so that no separate run shares a size with one
            and must be repeated: with several ranks, on the ranks alone whose batches have it.

    Attributes:
        precision: the precision that it runs in.
        context: the one through which the model's converted layers see the batch.
        shared: whether a step returns its share of a mean over ranks
            (:class:`~staticgraph.distributed.reduction.Share`), not the mean over its own rows.
        newcomers: notices layers that the model is given later.
        hooks: notices hooks that come or go after a step was traced.
        optional: the optional arguments that the model gets from fields; None before it ran.

    Raises:
        NotStatic: a layer would keep the first batch's normalisation.
    """

    def __init__(self, subject: Subject, capacities: Iterable[Capacity] = ()) -> None:
        model = subject.model
        self._rows = dict(subject.rows or {})
        self._known: dict[bool, Provenance] = {}  # training flag -> what is known
        self.shared = False
        # Of these buckets, and of all seen so far.
        self._sizes: frozenset[int] = frozenset(chain.from_iterable(map(sizes_in, capacities)))
        self._own_sizes = False  # whether the model reads sizes off the batch's own indices
        self.optional: tuple[str, ...] | None = None if subject.forward is None else ()
        self._model = model
        self._forward = subject.forward or forward_of(model)
        self._loss = subject.loss
        self._beside = subject.functions
        self.precision: Precision = Precision(subject.autocast, subject.device)
        self._device = subject.device
        self._sanitize = subject.sanitize
        self._differentiable = subject.differentiable
        for path, why in refused_options(model).items():
            raise NotStatic(f"{path or 'the model'}: {why}")
        self.context: BatchContext = context_of(model)
        self.newcomers: Newcomers = Newcomers(model)
        self.hooks: HeardHooks = HeardHooks(model)

    def settle(self) -> None:
        """Makes newly added layers static; discards what is known of the model's results."""
        self.newcomers.seen()
        self.context = context_of(self._model)
        self._known.clear()

    def active(self) -> Restored:
        """A ``with`` block around :meth:`run`; afterwards, the previous binding is restored."""
        return _Running()

    def known(self, batch: StaticBatch) -> Provenance:
        """Returns which of the model's results are rows, in its current mode.

        A separate run finds this at the first call, and again if a bucket shares a size with that
        run. The new run then avoids all sizes seen so far, so that alternating buckets do not each
        undo it.
        """
        if self.optional is None:
            self.optional = optional_fields(self._model, batch)
        training = self._model.training
        provenance, sizes = self._known.get(training), {*batch.layout.rows.values()}
        if provenance is None or provenance.sizes & sizes:
            self._sizes |= sizes | (frozenset() if provenance is None else provenance.sizes)
            restored = untouched(self._model, beside=self._beside, trained=False)
            with self.active(), restored, self.precision():
                provenance = run_elsewhere(
                    self._model,
                    self._output_elsewhere,
                    self._loss,
                    batch.layout,
                    self._device,
                    self._sizes,
                )
            if self._own_sizes:
                note_counts(batch, self.context.counted)
            for path in provenance.uncounted:
                flag_single_rows(self._model.get_submodule(path), self._device)
            self._known[training] = provenance
            self.context.apart = {**self.context.apart, **provenance.apart}
        return provenance

    def _output_elsewhere(self, batch: StaticBatch) -> Any:
        """Returns the model's output over a batch that is not the user's; restores its counters."""
        restored = untouched(self._model, beside=self._beside, trained=False)
        with restored, asks() as sizes_read:
            self._own_sizes, before = True, self._own_sizes
            try:
                return self._forward_of(batch)[1]
            finally:
                self._own_sizes = before or bool(sizes_read)

    def assume_rows(self, like: Computation | None = None) -> None:
        """Skips the separate run: an output's rows are taken from its leading dimension, and
        whether the model reads its own sizes from a computation that ran."""
        self._known = {flag: Provenance(guessed=True) for flag in (True, False)}
        self._own_sizes = like is not None and like._own_sizes

    def check_not_single(self, batch: StaticBatch) -> None:
        """Refuses a norm over a single real row before a compiled or recorded step.

        Raises:
            ValueError: a norm runs over a level of which the batch has one real row.
        """
        if batch.real is None:
            return
        for path, level in self.known(batch).norms:
            if batch.real.of(level) == 1:
                raise ValueError(single_row(f"{path}, over {level} rows"))

    def levels(self, out: Any, batch: StaticBatch) -> dict[Path, Level | None]:
        """Returns the level of each tensor of an output.

        See :func:`staticgraph.steps.computation.model_call.level_in`.
        """
        return level_in(out, batch, self.known(batch), self._rows)

    def run(
        self,
        work: str,
        batch: StaticBatch,
        keep: bool = False,
        known: Provenance | None = None,
        leaves: bool = False,
    ) -> Any:
        """Returns the result of some work over a batch.

        That is the output for ``forward``, the mean loss (or a share of one) for ``step``, and
        output and mean for ``both``.

        With ``keep`` the batch stays bound until :meth:`active` ends, for a backward inside it;
        with ``leaves`` the trace will be rewritten.
        """
        known = known or self.known(batch)
        with self.precision():
            batch, result, seen = self._forward_of(batch, leaves)
            out = zero_padding(result, batch, level_in(result, batch, known, self._rows))
            out = _refused(out, self.context.overflows)
            shared = self.shared and work == "step"
            result = out if work == "forward" else self._mean_loss(out, seen, batch, known, shared)
            if work == "both":
                result = out, result
        if torch.is_grad_enabled() and not traced_here():
            remember([tensor for _, tensor in output_tensors(result)])
        if not keep:
            self.context.leave()
        return result

    def differentiated(self, batch: StaticBatch) -> tuple[Any, Tensor]:
        """Returns the output and the mean loss, detached, where the loss takes derivatives and
        gradients are disabled outside."""
        with self.active(), torch.enable_grad():
            return _detached(self.run("both", batch))

    def plain(self, data: Any) -> Any:
        """Returns the output over a batch without padding, in the precision of a step."""
        with self.precision():
            return self._forward(self._model, data)

    def _forward_of(
        self, batch: StaticBatch, leaves: bool = False
    ) -> tuple[StaticBatch, Any, StaticBatch]:
        """Binds the batch and runs the model on it.

        Returns:
            The batch as the model receives it, which its layers see from now on; the model's
            output; and the batch as the model left it.
        """
        if self._sanitize:
            batch = sanitized(batch)
        if self._differentiable:
            batch = self._with_derivatives(batch)
        self.context.enter(batch, leaves)
        if leaves and batch.layout.schema.one_kind:
            _state_facts(batch)
        # Attributes that the model sets on its batch last for this forward only.
        seen = with_own_sizes(batch) if self._own_sizes else batch.replace()
        return batch, self._output(seen), seen

    def _output(self, batch: StaticBatch) -> Any:
        """Returns the model's output.

        A model that differentiates has gradients enabled inside; if they are disabled outside, its
        output is detached.
        """
        seen = batch if batch.layout.schema.like is None else built_like(batch)
        if not self._differentiable or torch.is_grad_enabled():
            return self._forward(self._model, seen)
        with torch.enable_grad():
            out = self._forward(self._model, seen)
        return _detached(out)

    def _with_derivatives(self, batch: StaticBatch) -> StaticBatch:
        """Returns the batch with fields that already require a gradient.

        torch.compile cannot trace ``requires_grad_()`` of an input, except one that changes
        nothing.
        """
        anchor = next(p for p in self._model.parameters() if p.requires_grad)
        with torch.enable_grad():
            none = 0 * anchor.flatten()[0]
            return batch.replace(**{name: batch[name] + none for name in self._differentiable})

    def of_tensors(
        self, work: str, like: StaticBatch, leaves: bool = False, any_bucket: bool = False
    ) -> Callable[..., Any]:
        """Returns :meth:`run` as a function of tensors alone, in the order of ``like``'s.

        This is what can be compiled. The batch that it makes has no real counts, so nothing
        depends on them. With ``leaves`` the trace is made for rewriting
        (:mod:`staticgraph.rewrites`). With ``any_bucket`` it takes batches of any bucket, each
        followed by the tensor whose shape :func:`~staticgraph.batches.slots.sizes.sizes_of` makes.

        Raises:
            NotStatic: the model has hooks that a compiled step would leave out.
        """
        self.hooks.note()
        layout, names, run = like.layout, tuple(like.tensors()), self.run
        known = self.known(like)  # now, since its separate run cannot be traced

        def function(*tensors: Tensor) -> Any:
            """Runs the work over a batch of these tensors."""
            sized: Any = SizedLayout(layout, tensors[-1].shape[1:]) if any_bucket else layout
            arrays = tensors[:-1] if any_bucket else tensors
            batch = StaticBatch(sized, dict(zip(names, arrays, strict=True)))
            return run(work, batch, known=known, leaves=leaves)

        return function

    def of_layer(
        self,
        forward: Callable[..., Any],
        like: StaticBatch,
        rebuild: Callable[[dict[str, Tensor], tuple[Tensor, ...]], tuple[Any, Any]],
    ) -> Callable[..., Any]:
        """Returns a layer's forward as a function of tensors alone, to be traced for rewriting:
        those of a batch, in the order of ``like``'s, and those of its arguments.

        Args:
            forward: of the layer.
            like: a batch of the bucket.
            rebuild: makes positional and keyword arguments of the batch's arrays and the rest.

        Raises (when traced):
            NotStatic: the layer makes rows that later layers would have to know of.
        """
        self.hooks.note()
        layout, names, context = like.layout, tuple(like.tensors()), self.context

        def function(*tensors: Tensor) -> Any:
            """Runs the layer over a batch of the first of these tensors."""
            arrays = dict(zip(names, tensors, strict=False))
            batch = StaticBatch(layout, arrays)
            context.enter(batch, True)
            _state_facts(batch)
            if self._own_sizes:
                arrays = dict(with_own_sizes(batch).tensors())
            args, kwargs = rebuild(arrays, tensors[len(names) :])
            known = context.known_sizes
            out = forward(*args, **kwargs)
            new_sizes = [size for size in context.known_sizes if size not in known]
            sizes = [tensor.shape[0] for tensor in tensors_in(out) if tensor.dim()]
            if context.overflows or any(size in sizes for size in new_sizes):
                raise NotStatic("the layer makes rows that later layers would have to know of")
            context.leave()
            return out

        return function

    def mean_loss(self, out: Any, batch: StaticBatch) -> Tensor:
        """Returns the loss over the real rows of a batch, 0-dim, in the precision of a step."""
        known = self.known(batch)
        with self.precision():
            return self._mean_loss(out, batch, batch, known)

    def _mean_loss(
        self,
        out: Any,
        batch: StaticBatch,
        received: StaticBatch,
        known: Provenance,
        shared: bool = False,
    ) -> Any:
        """Takes ``received``, the batch as received, and ``batch`` as the model left it."""
        assert self._loss is not None
        if known.loss is None:
            _refuse(LossTerms.of(self._loss(out, batch)).values, batch)
        return (share_of_loss if shared else mean_loss)(self._loss, out, batch, received)


def _state_facts(batch: StaticBatch) -> None:
    """States in a trace which arrays are the batch's own, by which rewrites recognise its indices.

    The order of edges by destination is found in the step where the batch has another.
    """
    facts = {name: batch.tensors().get(COUNTS if name == "counts" else name) for name in FACTS}
    if not batch.layout.pointers:
        nodes = batch.num_nodes
        source, target = batch.edge_index.unbind()
        order = order_edges(source, target, nodes, nodes)
        facts |= zip((*POINTERS, "order"), order, strict=True)
    batch_facts(**facts)  # pyright: ignore[reportArgumentType]


def _refused(out: Any, overflows: list[Tensor]) -> Any:
    """Makes an output NaN if a layer had no room for all that it found, such as edges."""
    if not overflows:
        return out
    refused = torch.stack(overflows).any()

    def fill(value: Tensor) -> Tensor:
        """NaN where the step is refused."""
        return value.masked_fill(refused, torch.nan) if value.is_floating_point() else value

    return mapped(fill, out)


class _Running(Restored):
    """Also adds what to do to an exception of the model."""

    def __exit__(self, *exc: Any) -> None:
        super().__exit__(*exc)
        if exc[1] is not None:
            advise(exc[1])


def _refuse(values: Tensor, batch: StaticBatch) -> None:
    """Refuses a loss whose values are known not to be rows of the batch.

    A scalar is refused where its mean is taken.
    """
    if not values.dim():
        return
    shape, level = list(values.shape), row_level(values, batch)
    if level is not None:
        shapes = (
            f"it gives a tensor of shape {shape}, whose leading size does not change with the "
            "batch's; return one value per row, such as F.mse_loss(out, batch.y, reduction='none')"
        )
    else:
        rows = ", ".join(f"{count} {name} rows" for name, count in batch.layout.rows.items())
        shapes = (
            f"it gives a tensor of shape {shape}, and the bucket has {rows}; return one value per "
            "row, such as F.mse_loss(out, batch.y, reduction='none'), in place of loss[mask] "
            "return (loss, mask), and for rows of two kinds joined by torch.cat the one's values "
            "with the other's rows, whose mean is added: (values, None, others)"
        )
    raise ValueError(
        f"the loss has no rows of the batch: {shapes}; for a scalar to add once (a penalty, a KL "
        "term) return (loss, None, scalar)"
    )


def _detached(out: Any) -> Any:
    return mapped(Tensor.detach, out)
