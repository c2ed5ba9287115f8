"""Checks on a model's first batch, before it trains, whether padding reaches real rows.

A mean, a softmax or a norm over all rows of a batch includes padding rows. Nothing fails: the loss
looks like any other number, and is wrong. So one batch runs three times: as it is, with other
values in its padding rows, and without padding through plain PyG. Output, loss, gradients and
buffers (running statistics) must agree; between the first two runs up to rounding, since they do
the same arithmetic. A difference is an error that names the layer, unless it vanishes with noise on
the rows: then the model chooses among equal ones, by rounding, and a warning says so.

Random numbers depend on the shapes they are drawn for, so a model that draws any is compared with
plain PyG in evaluation mode. If a comparison is impossible (plain PyG raises, or its numbers are
not finite), it is skipped; several ranks, whose layers may sum over all of them, only compare the
two paddings. Invariant: the model, its optimizer and the random states are unchanged afterwards.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.containers import tensors_in
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.checking.edge_order import order_error
from staticgraph.checking.example_batch import revalued, with_gaps
from staticgraph.checking.jitter import Jitter, nudge
from staticgraph.checking.leak_error import GAPS, SIZES, leak_of, not_finite
from staticgraph.checking.outcome import Outcome, differing, first_clear, largest_of
from staticgraph.checking.padding_culprit import Culprit, NonFinite, Trail, real_part
from staticgraph.checking.plain_batch import has_gaps, labelled_loss, plain_batch, plain_loss
from staticgraph.errors import EdgesMoved, PaddingLeaks
from staticgraph.internals.dispatch import version_of
from staticgraph.nn.newcomers import Newcomers
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.computation.model_arguments import forward_of
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.state.training_hooks import without_callbacks
from staticgraph.steps.state.training_state import untouched

# Relative to the largest value of a kind. Between two paddings: the same sums in the same order, so
# that only reordering by atomics is left. Against plain PyG: sums of other lengths; GINE 5x300 in
# float32 is off by 4e-5, gradients included. Both are raised to what rounding does to this model.
PADDINGS = {torch.float64: 1e-10, torch.float32: 3e-5}
PLAIN = {torch.float64: 1e-9, torch.float32: 1e-3}
COARSE = {id(PADDINGS): 1e-2, id(PLAIN): 5e-2}  # bfloat16, float16


class PaddingCheck:
    """The check of one runner's model, made once.

    Args:
        subject: its model is converted; its optimizer is left as it is.
        computation: runs the model over padding.
        compiled: whether to run padded batches as a compiled step sees them, without counts.
    """

    def __init__(
        self,
        subject: Subject,
        computation: Computation,
        compiled: bool = False,
    ) -> None:
        self._compiled = compiled
        self._model = model = subject.model
        self._device = subject.device
        self._computation = computation
        self._forward = subject.forward or forward_of(model)
        self._loss = subject.loss
        self._beside = subject.functions
        self._optimizer = subject.optimizer
        self._autocast = autocast = subject.autocast
        self._context = computation.context
        self._done: set[str] = set()
        self._newcomers = Newcomers(model)
        self._versions: dict[str, int] = {}  # parameter versions before a run
        self._written: set[str] = set()  # names of parameters that a forward has written to
        self._turn = Lock()
        dtypes = [p.dtype for p in model.parameters() if p.is_floating_point()]
        dtypes += [] if autocast is None else [autocast]
        self._dtype = max(dtypes, key=lambda d: torch.finfo(d).eps, default=torch.float32)

    # ------------------------------------------------------------------ asking

    def wanted(self, phase: str) -> bool:
        """Whether a phase has no verdict yet; a training step's verdict covers all phases.

        Args:
            phase: as for :meth:`of`.
        """
        if self._newcomers.came and self._newcomers.seen():
            self._done.clear()  # the verdicts were on other layers
        if "step" in self._done:
            return False
        return self._kind(phase) not in self._done

    def _kind(self, phase: str) -> str:
        """The key of a phase's verdict: ``forward`` is an evaluation if the model evaluates."""
        if phase == "forward":
            return "training" if self._model.training else "eval"
        return phase

    def of(self, batch: StaticBatch, phase: str, real: bool = True) -> None:
        """Runs the check, if it is wanted and the batch has real rows and padding.

        Args:
            batch: on the model's device.
            phase: ``step`` for forward, loss and gradients in training mode; without gradients,
                ``eval`` for the forward in evaluation mode and ``forward`` for it in the current
                mode.
            real: False for made-up graphs: these are run with two paddings only, since ties among
                them may fall differently in plain PyG, and a batch of real ones is still wanted.

        Raises:
            PaddingLeaks: padding reaches real rows.
            EdgesMoved: the model reads edges by their position, and the store sorted them.
        """
        with self._turn:
            self._of(batch, phase, real)

    def _of(self, batch: StaticBatch, phase: str, real: bool) -> None:
        if not self.wanted(phase) or (not _graphs_in(batch) and not _several_ranks()):
            return
        kind = self._kind(phase)
        if real:
            self._done.add(kind)
        training = kind != "eval"
        step = phase == "step" and self._loss is not None
        if real:
            self._check_order(batch, training, step, kind)
        with self._run(training, step, False, None):  # its separate run may write to parameters
            self._attempt(lambda: self._computation.known(batch))
        clean = self._attempt(lambda: self._padded(batch, training, step))
        if clean is None:
            return  # it fails without any change; the step itself will say why
        differs = self._between_paddings(batch, clean, training, step)
        if differs is None and real:
            differs = self._beside_plain(batch, clean, training, step)
        if differs is None and real and step:
            differs = self._beside_plain_with_gaps(batch)
        if differs is not None:
            self._done.discard(kind)
            raise differs

    # ------------------------------------------------------------------ comparing

    def _between_paddings(
        self, batch: StaticBatch, clean: Outcome, training: bool, step: bool
    ) -> PaddingLeaks | None:
        other = revalued(batch)
        dirty = self._attempt(lambda: self._padded(other, training, step))
        if dirty is not None and not dirty.finite:  # columns of several rows need not make a row
            other = revalued(batch, whole_rows=True)
            dirty = self._attempt(lambda: self._padded(other, training, step))
        if dirty is None or not clean.finite:
            return None
        differences = differing(clean, dirty, self._tolerance(PADDINGS))
        if not differences:
            return None
        again = self._again(lambda: self._padded(batch, training, step, nudged=True))
        found = first_clear(differences, clean, again)
        if found is None:
            return None
        culprit = self._culprit(
            lambda: self._padded(batch, training, step),
            lambda: self._padded(other, training, step),
            PADDINGS,
        )
        return leak_of(
            found,
            culprit,
            self._model,
            f"padding reaches real rows: {found.name} changes by {found.how} when nothing but "
            "the values in padding rows do",
        )

    def _beside_plain(
        self, batch: StaticBatch, clean: Outcome, training: bool, step: bool
    ) -> PaddingLeaks | None:
        if batch.real is None or _several_ranks():
            return None
        data = self._attempt(lambda: plain_batch(batch))
        if data is None:
            return None

        def unpadded(nudged: bool = False, jitter: Jitter | None = None) -> Outcome:
            """Runs plain PyG on the same graphs, with nudged parameters or noise if requested."""
            return self._plain(batch, data, training, step, nudged, jitter)

        plain = self._attempt(unpadded)
        padded: Outcome | None = clean
        if plain is not None and plain.drew and training:
            training = False
            plain = self._attempt(unpadded)
            padded = self._attempt(lambda: self._padded(batch, training, step))
        if plain is None or plain.drew or not plain.finite or padded is None:
            return None
        differences = differing(plain, padded, self._tolerance(PLAIN))
        if not differences:
            return None
        found = first_clear(differences, plain, self._again(lambda: unpadded(nudged=True)))
        if found is None:
            return None
        if not padded.finite:
            watch = NonFinite({field.name: batch[field.name] for field in batch.layout.schema})
            with watch:
                self._attempt(lambda: self._padded(batch, training, step))
            if watch.found is not None:
                return not_finite(found, watch)
        if self._of_ties_alone(batch, training, step, unpadded):
            warnings.warn(
                f"{type(self._model).__name__} chooses among equal rows (TopK, max, sort), where "
                f"rounding decides: {found.name} is off by {found.how} from plain PyG, whose own "
                "choice changes from batch to batch. With noise on the rows nothing differs",
                stacklevel=2,
            )
            return None
        culprit = self._culprit(
            unpadded, lambda: self._padded(batch, training, step), PLAIN, operations=False
        )
        return leak_of(
            found,
            culprit,
            self._model,
            f"the number of padding rows changes the result: {found.name} is off by {found.how} "
            "from plain PyG on the same graphs without padding",
            SIZES + (GAPS if has_gaps(batch) and found.name == "the loss" else ""),
        )

    def _check_order(self, batch: StaticBatch, training: bool, step: bool, kind: str) -> None:
        """Raises EdgesMoved if the model reads edges by their position and the store moved them."""
        moved = self.order_error(batch, training, step)
        if moved is not None:
            self._done.discard(kind)
            raise moved

    def order_error(self, batch: StaticBatch, training: bool, step: bool) -> EdgesMoved | None:
        """Returns the error of a model that reads edges by their position; see
        :mod:`staticgraph.checking.edge_order`."""
        if batch.real is None or _several_ranks():
            return None

        def run(data: Any, training: bool, nudged: bool, jitter: Jitter | None) -> Outcome | None:
            """Runs plain PyG; None if the model raises."""
            return self._attempt(lambda: self._plain(batch, data, training, step, nudged, jitter))

        tolerance = self._tolerance(PLAIN)
        return order_error(self._model, self._context, batch, run, tolerance, training)

    def _beside_plain_with_gaps(self, batch: StaticBatch) -> PaddingLeaks | None:
        """Compares with plain PyG on the batch with missing labels added.

        The first batch of a dataset with missing labels may have none, which would hide a loss that
        depends on which are missing. Skipped with several ranks, since only those whose batch has
        all labels would run it.
        """
        if batch.real is None or _several_ranks():
            return None
        other = with_gaps(batch)
        if other is None:
            return None
        clean = self._attempt(lambda: self._padded(other, True, True))
        return None if clean is None else self._beside_plain(other, clean, True, True)

    def _of_ties_alone(
        self, batch: StaticBatch, training: bool, step: bool, unpadded: Callable[..., Outcome]
    ) -> bool:
        """Whether plain PyG and the padded batch differ only while rows are equal.

        Which of them a model chooses (TopK, max, sort) then depends on rounding, or on a device's
        sort; see :mod:`staticgraph.checking.jitter`.
        """
        if batch.layout.schema.hetero:
            return False
        plain = self._attempt(lambda: unpadded(jitter=Jitter(batch)))
        padded = self._attempt(lambda: self._padded(batch, training, step, jitter=Jitter(batch)))
        if plain is None or padded is None or not plain.finite:
            return False
        return not differing(plain, padded, self._tolerance(PLAIN))

    def _tolerance(self, tolerances: dict[torch.dtype, float]) -> float:
        kind = next((p.device.type for p in self._model.parameters()), "cpu")
        around = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self._dtype
        coarse = COARSE[id(tolerances)]
        return max(tolerances.get(dtype, coarse) for dtype in (self._dtype, around))

    def _attempt(self, run: Callable[[], Any]) -> Any:
        """Returns the result of a run, or None if the model raises."""
        try:
            return run()
        except Exception:  # whatever the model raises; its own step will raise it again
            return None

    def _again(self, run: Callable[[], Any]) -> Any:
        """Runs what only the rank that found a difference would run.

        None with several ranks, since the others would not join its collectives.
        """
        return None if _several_ranks() else self._attempt(run)

    def _culprit(
        self,
        first: Callable[[], Outcome],
        second: Callable[[], Outcome],
        tolerances: dict[torch.dtype, float],
        operations: bool = True,
    ) -> Culprit | None:
        """Returns where two runs diverge, if that can be found."""
        trails = []
        for run in (first, second):
            trail = Trail(self._model, self._context, operations)
            with trail.followed():
                if self._again(run) is None:
                    return None
            trails.append(trail)
        return trails[0].parting(trails[1], self._tolerance(tolerances))

    # ------------------------------------------------------------------ running

    @contextmanager
    def _run(
        self, training: bool, step: bool, nudged: bool, jitter: Jitter | None
    ) -> Iterator[Any]:
        gradients = torch.enable_grad() if step else torch.no_grad()
        kept = untouched(
            self._model, self._optimizer, beside=self._beside, attributes=True, seeded=True
        )
        noise = nullcontext() if jitter is None else jitter.on(self._model)
        with kept, without_callbacks(self._model, self._optimizer), gradients, noise:
            if training is not self._model.training:
                self._model.train(training)
            if nudged:
                nudge(self._model)
            self._versions = {n: version_of(p) for n, p in self._model.named_parameters()}
            yield torch.get_rng_state()

    def _padded(
        self,
        batch: StaticBatch,
        training: bool,
        step: bool,
        nudged: bool = False,
        jitter: Jitter | None = None,
    ) -> Outcome:
        if self._compiled:
            batch = StaticBatch(batch.layout, batch.tensors())
        if jitter is not None:
            batch = jitter.of(batch.replace())
        with self._run(training, step, nudged, jitter) as before, self._computation.active():
            result = self._computation.run("both" if step else "forward", batch, keep=True)
            out, loss = result if step else (result, None)
            return self._outcome(out, loss, before)

    def _plain(
        self,
        batch: StaticBatch,
        data: Any,
        training: bool,
        step: bool,
        nudged: bool,
        jitter: Jitter | None,
    ) -> Outcome:
        device = batch.device.type
        precision = (
            nullcontext() if self._autocast is None else torch.autocast(device, self._autocast)
        )
        with self._run(training, step, nudged, jitter) as before:
            with precision:
                seen = data.fresh() if jitter is None else jitter.of(data.fresh())
                out = self._forward(self._model, seen)
                mean = labelled_loss if has_gaps(batch) else plain_loss
                loss = mean(self._loss, out, seen) if step else None
            return self._outcome(out, loss, before)

    def _outcome(self, out: Any, loss: Tensor | None, before: Tensor) -> Outcome:
        values: dict[str, Tensor] = {}
        scales: dict[str, float] = {}
        bound = self._context if self._context.batch is not None else None
        for number, tensor in enumerate(tensors_in(out)):
            part = real_part(tensor, bound)
            if part is not None:
                name = "the output" if not number else f"output {number}"
                values[name] = part
                scales[name] = largest_of([part])
        for name, parameter in self._model.named_parameters():
            if version_of(parameter) != self._versions[name]:  # Embedding(max_norm=), a codebook
                self._written.add(name)
            if name in self._written:
                values[f"the parameter {name}"] = parameter.detach().clone()
                scales[f"the parameter {name}"] = largest_of([parameter.detach()])
        if loss is not None:
            values["the loss"] = loss.detach().clone()
            scales["the loss"] = largest_of([values["the loss"]])
            if loss.requires_grad:
                loss.backward()
            gradients = {
                name: p.grad.detach().clone()
                for name, p in self._model.named_parameters()
                if p.grad is not None and not p.grad.is_sparse
            }
            largest = largest_of(gradients.values())
            for name, gradient in gradients.items():
                values[f"the gradient of {name}"] = gradient
                scales[f"the gradient of {name}"] = largest
        for path, module in self._model.named_modules():
            own = {n: b for n, b in module._buffers.items() if b is not None}
            numbers = [b for b in own.values() if b.is_floating_point()]
            for name, buffer in own.items():
                part = real_part(buffer, bound)
                if part is not None and not part.is_complex():
                    whole = f"the buffer {path}.{name}".replace(" .", " ")
                    values[whole] = part.float() if not part.is_floating_point() else part
                    scales[whole] = largest_of(numbers) if part.is_floating_point() else 1.0
        drew = not torch.equal(before, torch.get_rng_state())
        return Outcome(values, scales, drew or self._drew_on_device())

    def _drew_on_device(self) -> bool:
        """Whether the generator of the model's own device has advanced since it was seeded."""
        if self._device.type != "cuda":
            return False
        return bool(torch.cuda.default_generators[self._device.index or 0].get_offset())


def _several_ranks() -> bool:
    ranks = torch.distributed
    return ranks.is_available() and ranks.is_initialized() and ranks.get_world_size() > 1


def _graphs_in(batch: StaticBatch) -> int:
    return batch.real.graphs if batch.real is not None else int(batch.num_real_graphs)
