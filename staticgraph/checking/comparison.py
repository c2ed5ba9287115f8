"""Runs a model over a batch in different ways, and says where two of them differ.

It runs over padding, or without padding in plain PyG; in training or evaluation mode; forward
alone, or with loss and gradients. Two runs draw equal random numbers
(:mod:`staticgraph.checking.equal_draws`), so that dropout and noise hide nothing; what they may
differ by follows from how much one of them differs from itself, once its parameters are moved by a
few units in their last place.

Invariant: the model, its optimizer, the batch and the random states are unchanged afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _NormBase

from staticgraph.batches.batch.containers import tensors_in
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.checking.equal_draws import Draw, EqualDraws, Jitter, NarrowNoise, nudge
from staticgraph.checking.outcome import TOLERANCES, Difference, Outcome, Tolerance
from staticgraph.checking.padding_culprit import real_rows
from staticgraph.checking.plain_batch import (
    PlainBatch,
    has_gaps,
    labelled_loss,
    plain_batch,
    plain_loss,
)
from staticgraph.internals.dispatch import TorchDispatchMode, tree_map_only, version_of
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.bound_batch import Restored
from staticgraph.recording.signature import Signature
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.state.training_hooks import without_callbacks
from staticgraph.steps.state.training_state import untouched


class RunOptions(NamedTuple):
    """What distinguishes one run of a comparison from another.

    Attributes:
        training: whether the model is in training mode.
        gradients: whether to compute a loss and its gradients; without a loss function, that of
            the outputs with fixed weights.
        constant: whether all random numbers are the same one.
        nudged: whether parameters are moved by a few units in their last place.
        jitter: noise on the rows, which breaks ties.
        second: whether the forward that counts is the second, which finds what the first one wrote:
            a weight that the model itself anneals from 0.
        silent: whether the model is taken to draw no numbers, so that none are made equal.
        double: whether all that is float32 is computed in float64.
    """

    training: bool
    gradients: bool
    constant: bool = False
    nudged: bool = False
    jitter: Jitter | None = None
    second: bool = False
    silent: bool = False
    double: bool = False


class Parity(NamedTuple):
    """How a run over padding compares with plain PyG.

    Attributes:
        worst: the largest difference, relative to the largest value of its kind.
        difference: the first that rounding does not explain, if any.
        note: how it was measured.
        options: those of the two runs.
        tied: the difference that there was before noise broke the ties among equal rows, if that
            is why there is none.
    """

    worst: float
    difference: Difference | None
    note: str
    options: RunOptions
    tied: Difference | None = None


class Comparer:
    """Runs one model in different ways.

    Args:
        subject: its model is converted; its optimizer is left as it is.
        computation: runs the model over padding; made from the subject if None.
        compiled: whether padded batches are as a compiled step sees them, without counts.

    Attributes:
        model: the model.
        signature: of what a run reads, or None.
        written: what of it a run itself writes.
        fields: those of the padded batch that is running.
        draws: whether any run drew random numbers.
        ties: whether the model chooses among equal rows, so that only noise shows a difference.
    """

    def __init__(
        self, subject: Subject, computation: Computation | None = None, compiled: bool = False
    ) -> None:
        self.signature: Signature | None = None
        self.written: set[str] = set()
        self.fields: dict[str, Tensor] = {}
        self.draws: bool = False
        self.ties: bool = False
        self._versions: dict[str, int] = {}
        self.model: torch.nn.Module = subject.model
        self._subject, self._compiled = subject, compiled
        self._computation = Computation(subject) if computation is None else computation
        dtypes = [p.dtype for p in self.model.parameters() if p.is_floating_point()]
        dtypes += [] if subject.autocast is None else [subject.autocast]
        self._dtype = max(dtypes, key=lambda d: torch.finfo(d).eps, default=torch.float32)

    @property
    def tolerance(self) -> Tolerance:
        """The tolerance of the coarsest dtype in use here, an autocast around it included."""
        kind = self._subject.device.type
        around = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self._dtype
        return Tolerance(*map(max, Tolerance.of(self._dtype), Tolerance.of(around)))

    @property
    def trains(self) -> bool:
        """Whether there is a loss."""
        return self._subject.loss is not None

    @property
    def context(self) -> BatchContext:
        """The context through which the model's layers see a batch."""
        return self._computation.context

    def note_signature(self) -> None:
        """Notes what the model, its loss and its forward read now."""
        functions = {"loss": self._subject.loss, "forward": self._subject.forward}
        read = {name: f for name, f in functions.items() if f is not None}
        self.signature = Signature(self.model, read)
        self._versions = self._buffer_versions()

    def changed(self) -> bool:
        """Whether something that a run reads and does not write has changed since it was noted."""
        return not self._changes() <= self.written

    def _changes(self) -> set[str]:
        """Where something differs from what was noted: attributes, and buffers written to."""
        versions = self._buffer_versions()
        values = {n for n, v in versions.items() if v != self._versions.get(n, v)}
        changes = self.signature.changes() if self.signature is not None else ()
        return values | {change.where for change in changes}

    def _buffer_versions(self) -> dict[str, int]:
        """How often each buffer was written to; those of norms change at every step."""
        return {
            f"{path}.{name}".removeprefix("."): version_of(buffer)
            for path, module in self.model.named_modules()
            if not isinstance(module, _NormBase)
            for name, buffer in module._buffers.items()
            if buffer is not None and not buffer.is_inference()
        }

    # ------------------------------------------------------------------ running

    def run_apart(self, batch: StaticBatch, options: RunOptions) -> None:
        """Makes the run that finds a model's own sizes, once; it may write to parameters."""
        with self._run(options):
            attempt(lambda: self._computation.known(batch))

    def padded(self, batch: StaticBatch, options: RunOptions) -> Outcome:
        """Runs over a copy of a batch."""
        try:
            return self._padded(batch, options, _equal_draws(options))
        except Exception:  # what it calls is compiled at its first call, outside of such a mode
            if options.silent:
                raise
            self._padded(batch, options, None)
            return self._padded(batch, options, _equal_draws(options))
        finally:
            self.fields = {}

    def _padded(
        self, batch: StaticBatch, options: RunOptions, random: EqualDraws | None
    ) -> Outcome:
        computation, batch = self._computation, batch.clone()
        if self._compiled:
            batch = StaticBatch(batch.layout, batch.tensors())
        if options.jitter is not None:
            batch = options.jitter.set_noise(batch)
        if options.double:
            batch = batch.replace(**_in_double(batch.tensors()))
        self.fields = {field.name: batch[field.name] for field in batch.layout.schema}
        with self._run(options), computation.active():
            computation.known(batch)  # now, since it draws random numbers of its own
            with random or nullcontext():
                if options.second:
                    computation.run("forward", batch.clone())
                both = options.gradients and self.trains
                result = computation.run("both" if both else "forward", batch, keep=True)
                out, loss = result if both else (result, None)
                loss = self._backward(out, loss, options)
            return self._outcome(out, loss, options, random)

    def plain(self, batch: StaticBatch, data: PlainBatch, options: RunOptions) -> Outcome:
        """Runs over the graphs of a batch without padding.

        Args:
            batch: the batch.
            data: its graphs, by :func:`staticgraph.checking.plain_batch.plain_batch`.
            options: as for :meth:`padded`.
        """
        loss, random = None, _equal_draws(options)
        first, seen = self._fresh(data, options), self._fresh(data, options)
        # Nothing is bound: this may be inside another model's forward (a teacher's first call).
        with self._run(options), Restored(nothing=True):
            with random or nullcontext():
                with self._computation.precision():
                    if options.second:
                        self._computation.plain(first)
                    out = self._computation.plain(seen)
                    if options.gradients and self._subject.loss is not None:
                        mean = labelled_loss if has_gaps(batch) else plain_loss
                        loss = mean(self._subject.loss, out, seen)
                loss = self._backward(out, loss, options)
            return self._outcome(out, loss, options, random)

    def _fresh(self, data: PlainBatch, options: RunOptions) -> Any:
        seen = data.fresh() if options.jitter is None else options.jitter.set_noise(data.fresh())
        if options.double:
            seen.update(_in_double(seen.to_dict()))
        return seen

    @contextmanager
    def _run(self, options: RunOptions) -> Iterator[None]:
        subject, model, jitter = self._subject, self.model, options.jitter
        restored = untouched(model, subject.optimizer, beside=subject.functions, seeded=True)
        gradients = torch.enable_grad() if options.gradients else torch.no_grad()
        with (
            restored,
            without_callbacks(model, subject.optimizer),
            gradients,
            torch.autograd.set_multithreading_enabled(False),  # a backward may draw: checkpoints
            nullcontext() if jitter is None else jitter.on(model),
            _model_in_double(model) if options.double else nullcontext(),
            NarrowNoise(self._dtype) if options.nudged else nullcontext(),
        ):
            if options.training is not model.training:
                model.train(options.training)
            if options.nudged:
                nudge(model)
            yield
            if jitter is None:  # whose hooks would count as changes
                self.written |= self._changes()

    def _backward(self, out: Any, loss: Tensor | None, options: RunOptions) -> Tensor | None:
        """Computes the gradients of a loss, or of the outputs with fixed weights; returns it."""
        if options.gradients and not self.trains:
            parts = [t for t in tensors_in(out) if t.requires_grad and t.is_floating_point()]
            terms = [_weighted(real_rows(tensor, self._bound)) for tensor in parts]
            loss = torch.stack(terms).sum() if terms else None
        if loss is not None and loss.requires_grad:
            loss.backward()
        return loss

    @property
    def _bound(self) -> BatchContext | None:
        """The context, if a batch is bound in it."""
        return self.context if self.context.batch is not None else None

    def _outcome(
        self, out: Any, loss: Tensor | None, options: RunOptions, random: EqualDraws | None
    ) -> Outcome:
        outcome = Outcome.of(self.model, out, loss, self._bound, random.draws if random else ())
        self.draws |= options.jitter is None and bool(outcome.draws)
        return outcome

    # ------------------------------------------------------------------ comparing

    def between_paddings(
        self, batch: StaticBatch, dirty: Outcome | None, clean: Outcome, options: RunOptions
    ) -> Difference | None:
        """Returns the first difference when padding rows have other values, if there is any.

        Args:
            batch: a batch.
            dirty: the outcome of the same with other padding; None if it raised.
            clean: the outcome of the batch.
            options: of both runs.
        """
        if dirty is None or not clean.finite:
            return None
        nudged = options._replace(nudged=True)
        return clean.clear_difference(
            dirty,
            self.tolerance.same_order,
            # With several ranks, only the one with a difference would run.
            lambda: None if several_ranks() else attempt(lambda: self.padded(batch, nudged)),
        )

    def beside_plain(
        self, batch: StaticBatch, options: RunOptions, clean: Outcome | None = None
    ) -> Parity | None:
        """Compares with plain PyG on the same graphs.

        If the two do not draw equal numbers, all numbers are one constant; where even that is not
        possible (a kernel draws its own), both evaluate.

        Args:
            batch: with real graphs and padding.
            options: of both runs.
            clean: the outcome over padding, if it is known already.

        Returns:
            None if plain PyG does not run, or does not give numbers that can be compared.
        """
        data, padded = attempt(lambda: plain_batch(batch)), clean
        for tried, note in (
            (options, "in the model's own mode"),
            (options._replace(constant=True), "with one constant for all random numbers"),
            (options._replace(training=False), "in evaluation mode: it draws random numbers"),
        ):
            plain = attempt(lambda tried=tried: self.plain(batch, data, tried))
            if padded is None or tried is not options:
                padded = attempt(lambda tried=tried: self.padded(batch, tried))
            if plain is None or padded is None or not plain.finite:
                return None
            if self._draw_alike(plain, padded, tried):
                return self._parity(batch, data, plain, padded, tried, note)
        return None

    def _draw_alike(self, plain: Outcome, padded: Outcome, options: RunOptions) -> bool:
        if len(plain.draws) != len(padded.draws):  # a compiled teacher's are not among them
            return False
        if options.constant:
            return all(draw.hashed for draw in (*plain.draws, *padded.draws))
        return all(map(Draw.matches, plain.draws, padded.draws))

    def _parity(
        self,
        batch: StaticBatch,
        data: PlainBatch,
        plain: Outcome,
        padded: Outcome,
        options: RunOptions,
        note: str,
    ) -> Parity:
        """Compares two outcomes; a difference is measured again without ties."""
        tolerance, nudged = self.tolerance.other_order, options._replace(nudged=True)
        difference = plain.clear_difference(
            padded, tolerance, lambda: attempt(lambda: self.plain(batch, data, nudged))
        )
        worst = plain.largest_difference(padded)
        if difference is not None and self.agree_in_double(
            options,
            lambda options: self.plain(batch, data, options),
            lambda options: self.padded(batch, options),
        ):
            return Parity(worst, None, f"{note}, and in float64", options)
        if difference is not None and not batch.layout.schema.hetero:
            noisy = options._replace(jitter=Jitter(batch))
            plain = attempt(lambda: self.plain(batch, data, noisy))
            padded = attempt(lambda: self.padded(batch, noisy))
            if plain is not None and padded is not None and plain.finite:
                off = plain.largest_difference(padded)
                if off <= tolerance:
                    self.ties = True
                    return Parity(off, None, note, options, difference)
        return Parity(worst, difference, note, options)

    def agree_in_double(
        self,
        options: RunOptions,
        first: Callable[[RunOptions], Outcome | None],
        second: Callable[[RunOptions], Outcome | None],
    ) -> bool:
        """Whether two runs that differ in float32 do not in float64: rounding moved a value across
        the zero of a ReLU, whose slope jumps there. Few values of float64 are that close to it.

        Args:
            options: with which the two differ.
            first, second: compute the outcomes.
        """
        if self.tolerance != TOLERANCES[torch.float32] or several_ranks():
            return False
        options = options._replace(double=True)
        ours, theirs = (attempt(lambda run=run: run(options)) for run in (first, second))
        if ours is None or theirs is None or not ours.finite:
            return False
        nudged = options._replace(nudged=True)
        tolerance = TOLERANCES[torch.float64].other_order
        return (
            ours.clear_difference(theirs, tolerance, lambda: attempt(lambda: first(nudged))) is None
        )


@contextmanager
def _model_in_double(model: torch.nn.Module) -> Iterator[None]:
    """A ``with`` block in which a model computes what is float32 in float64."""
    tensors = [t for t in (*model.parameters(), *model.buffers()) if t.dtype is torch.float32]
    stored = [tensor.data for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.data = tensor.data.double()
        with _Wider():
            yield
    finally:
        for tensor, data in zip(tensors, stored, strict=True):
            tensor.grad = None
            tensor.data = data


class _Wider(TorchDispatchMode):
    """While entered, new float32 tensors are of float64, and ``x.float()`` gives float64.

    A default dtype would be that of all threads.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        wide = {"dtype": torch.float64} if (kwargs or {}).get("dtype") is torch.float32 else {}
        result = func(*args, **(kwargs or {}) | wide)
        same = (func.is_view or func._schema.is_mutable) and "lift_fresh" not in func.name()
        return result if same else tree_map_only(Tensor, _widened, result)


def _widened(value: Tensor) -> Tensor:
    return value.double() if value.dtype is torch.float32 else value


def _in_double(fields: Mapping[str, Any]) -> dict[str, Tensor]:
    """Those of float32, as float64."""
    return {
        name: value.double()
        for name, value in fields.items()
        if isinstance(value, Tensor) and value.dtype is torch.float32
    }


def _equal_draws(options: RunOptions) -> EqualDraws | None:
    return None if options.silent else EqualDraws(options.constant)


def _weighted(values: Tensor) -> Tensor:
    """Returns the sum of values with random weights, which depend on their shape alone."""
    drawn = torch.rand(values.shape, generator=torch.Generator().manual_seed(0))
    return (values * (drawn + 0.5).to(values)).sum()


def attempt(run: Callable[[], Any]) -> Any:
    """Returns the result of a run, or None if the model raises."""
    try:
        return run()
    except Exception:  # whatever the model raises; its own step will raise it again
        return None


def several_ranks() -> bool:
    """Whether several processes train, so that a run may have to be one of all of them."""
    ranks = torch.distributed
    return ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1
