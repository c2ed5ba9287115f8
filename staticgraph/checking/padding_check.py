"""Checks, before a model trains and again while it does, whether padding reaches real rows.

A mean, a softmax or a norm over all rows of a batch includes padding rows. Nothing fails: the loss
looks like any other number, and is wrong. So one batch runs three times: as it is, with other
values in its padding rows, and without padding through plain PyG. Output, loss, gradients and
buffers (running statistics) must agree (:mod:`staticgraph.checking.comparison`). A difference is an
error that names the layer, unless it vanishes with noise on the rows: then the model chooses among
equal ones, by rounding, and a warning says so.

A training step is checked again, over a few graphs of one batch: in epoch 2, 4, 8, ... and in any
other whose time allows it, and when the forward may take another way, since something that it reads
has changed. What these few graphs show is confirmed over the whole batch before it is an error.

If a comparison is impossible (plain PyG raises, or its numbers are not finite), it is skipped;
several ranks, whose layers may sum over all of them, only compare the two paddings, once.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from threading import Lock

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from staticgraph.batches.batch.batch_arrays import looked_in_epoch
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.checking.comparison import Comparer, RunOptions, attempt, several_ranks
from staticgraph.checking.edge_order import order_error
from staticgraph.checking.equal_draws import Jitter
from staticgraph.checking.example_batch import portion_of, revalued, with_gaps
from staticgraph.checking.outcome import Difference, Outcome
from staticgraph.checking.padding_culprit import Culprit, NonFinite, Trail
from staticgraph.checking.plain_batch import has_gaps, plain_batch
from staticgraph.errors import NotStatic, PaddingLeaks, users_level
from staticgraph.nn.late_layers import Newcomers
from staticgraph.steps.loss.finite_losses import searches_of

# The most of the time between two checks that the first of them took.
SHARE = 0.01
# How many changes of what a forward reads are each checked; after that the 16th, 32nd, ...
CHANGES = 8
# After how many steps to look for such a change; also after 1, 2, 4, 8.
STEPS = 16


class PaddingCheck:
    """The check of one model.

    Args:
        comparer: runs the model.
    """

    def __init__(self, comparer: Comparer) -> None:
        self._comparer, self._model = comparer, comparer.model
        self._done: set[str] = set()
        self._ordered: set[str] = set()  # kinds for which the order of edges is known not to matter
        self._orders: set[bool] = set()  # whether edges of the batches so far kept their order
        self._newcomers = Newcomers(comparer.model)
        self._turn = Lock()
        self._epochs = self._changes = 0
        self._ended = self._seconds = 0.0

    # ------------------------------------------------------------------ asking

    def wanted(self, phase: str, batch: StaticBatch | None = None, taken: int = 0) -> bool:
        """Whether a phase has no verdict, or an old one; a training step's covers all phases.

        Args:
            phase: as for :meth:`of`.
            batch: the next to run, whose epoch decides whether a verdict is old.
            taken: how many batches of the training came before it.
        """
        if self._newcomers.came and self._newcomers.seen():
            self._done.clear()  # the verdicts were on other layers
            self._ordered.clear()
        if batch is not None:
            self._see_order(batch)
        kind, looked = self._kind(phase), None if batch is None else looked_in_epoch(batch)
        begins = False
        if looked is not None and kind != "eval" and id(self) not in looked:
            looked.add(id(self))
            self._epochs += 1
            begins = True
        if not {"step", kind} & self._done:
            return True
        if batch is None or kind == "eval" or not self._is_old(begins, looked is None, taken):
            return False
        self._done.clear()
        return True

    def _see_order(self, batch: StaticBatch) -> None:
        """Drops the verdicts if no batch so far had edges in this order, sorted or their own."""
        order = batch.layout.schema.keep_order
        if order not in self._orders:
            self._orders.add(order)
            self._done.clear()
            self._ordered.clear()

    def _kind(self, phase: str) -> str:
        """The key of a phase's verdict: ``forward`` is an evaluation if the model evaluates."""
        if phase == "forward":
            return "training" if self._model.training else "eval"
        return phase

    def _is_old(self, begins: bool, alone: bool, taken: int) -> bool:
        """Whether to check again, before a batch of the training.

        Args:
            begins: whether an epoch begins.
            alone: whether the batch is of no loader, and so of no epoch.
            taken: how many batches of the training came before.
        """
        if self._comparer.signature is None:
            return False
        # Before the first epoch the warm-up has just checked.
        if begins and self._epochs > 1 and (_doubles(self._epochs) or self._is_paid()):
            return True
        if taken % STEPS and not _doubles(taken):
            return False
        if not self._comparer.changed():
            return (alone or bool(self._comparer.written)) and self._is_paid()
        self._changes += 1
        return self._changes <= CHANGES or _doubles(self._changes) or self._is_paid()

    def _is_paid(self) -> bool:
        """Whether the last check took a small share of the time since then."""
        return self._seconds < SHARE * (time.perf_counter() - self._ended)

    def check_batch(self, batch: StaticBatch, phase: str, real: bool = True) -> None:
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
            NotStatic: eager refuses the model over this batch.
            EdgesMoved: the model reads edges by their position, and the store sorted them.
        """
        with self._turn:
            self._see_order(batch)
            if self.wanted(phase) and (_graphs_in(batch) or several_ranks()):
                started = time.perf_counter()
                self._run_check(batch, phase, real)
                self._ended = time.perf_counter()
                self._seconds = self._ended - started

    def _run_check(self, batch: StaticBatch, phase: str, real: bool) -> None:
        kind = self._kind(phase)
        options = RunOptions(kind != "eval", phase == "step" and self._comparer.trains)
        if not several_ranks():
            self._comparer.note_signature()
        again = real and kind in self._ordered
        if real and not again:
            if moved := order_error(self._comparer, batch, options):
                raise moved
            self._ordered.add(kind)
        # Every run is one of all ranks: none is repeated, and equal shapes draw equal numbers.
        options = options._replace(silent=several_ranks())
        portion = portion_of(batch) if real else None
        if not (again and self._is_clean(portion, options)):
            self._comparer.run_apart(batch, options)
            differs = self._leak(batch, options, real) or self._not_finite(portion, options)
            if differs:
                raise differs
        if real:
            self._done.add(kind)

    # ------------------------------------------------------------------ comparing

    def _is_clean(self, portion: StaticBatch | None, options: RunOptions) -> bool:
        """Whether a portion of a batch gives the same with other padding, and as plain PyG."""
        if portion is None:
            return False
        comparer = self._comparer
        portion = with_gaps(portion) or portion
        options = options._replace(
            silent=not comparer.draws,  # if it does by now, the whole batch decides
            jitter=Jitter(portion) if comparer.ties else None,
        )
        clean, other = (
            attempt(lambda batch=batch: comparer.padded(batch, options))
            for batch in (portion, revalued(portion))
        )
        if clean is None or comparer.between_paddings(portion, other, clean, options) is not None:
            return False
        parity = comparer.beside_plain(portion, options, clean)
        return parity is not None and parity.difference is None

    def _leak(self, batch: StaticBatch, options: RunOptions, real: bool) -> PaddingLeaks | None:
        """Returns what padding changes in a first run, or in one after it; as in :meth:`of`."""
        differs = self._difference(batch, options, real)
        if differs is None and options.training and self._comparer.written:
            differs = self._difference(batch, options._replace(second=True), real)
        return differs

    def _not_finite(self, portion: StaticBatch | None, options: RunOptions) -> PaddingLeaks | None:
        """Returns what is NaN where padding graphs of a portion have a single node or none."""
        if portion is None or several_ranks():
            return None
        clean = attempt(lambda: self._comparer.padded(portion, options))
        if clean is None or clean.finite:
            return None
        return self._beside_plain(portion, options, clean)

    def _difference(
        self, batch: StaticBatch, options: RunOptions, real: bool
    ) -> PaddingLeaks | None:
        """Returns what padding changes, if anything; ``real`` as for :meth:`of`."""
        try:
            clean = self._comparer.padded(batch, options)
        except Exception as error:  # it fails without any change; the step itself will say why
            # But a compiled one may not see the values that it was refused for, and other ranks,
            # still in this run, would not join it.
            if options.silent or isinstance(error, NotStatic):
                raise
            return None
        differs = self._between_paddings(batch, clean, options)
        if differs or not real or batch.real is None or several_ranks():
            return differs
        differs = self._beside_plain(batch, options, clean)
        # The first batch of a data set with missing labels may have none, which would hide a loss
        # that depends on which are missing.
        gaps = with_gaps(batch) if options.gradients and differs is None else None
        return differs or (gaps and self._beside_plain(gaps, options))

    def _between_paddings(
        self, batch: StaticBatch, clean: Outcome, options: RunOptions
    ) -> PaddingLeaks | None:
        comparer, other = self._comparer, revalued(batch)
        dirty = attempt(lambda: comparer.padded(other, options))
        if dirty is not None and not dirty.finite:  # columns of several rows need not make a row
            other = revalued(batch, whole_rows=True)
            dirty = attempt(lambda: comparer.padded(other, options))
        difference = comparer.between_paddings(batch, dirty, clean, options)
        if difference is None or comparer.agree_in_double(
            options,
            lambda options: comparer.padded(batch, options),
            lambda options: comparer.padded(other, options),
        ):
            return None
        culprit = self._culprit(
            lambda: comparer.padded(batch, options),
            lambda: comparer.padded(other, options),
            comparer.tolerance.same_order,
        )
        return leak_of(
            difference,
            culprit,
            self._model,
            f"padding reaches real rows: {difference.name} changes by {difference.how} when "
            "nothing but the values in padding rows do",
        )

    def _beside_plain(
        self, batch: StaticBatch, options: RunOptions, clean: Outcome | None = None
    ) -> PaddingLeaks | None:
        comparer = self._comparer
        parity = comparer.beside_plain(batch, options, clean)
        if parity is None:
            return None
        if parity.tied is not None and not options.second:
            warnings.warn(
                f"{type(self._model).__name__} chooses among equal rows (TopK, max, sort), where "
                f"rounding decides: {parity.tied.name} is off by {parity.tied.how} from plain "
                "PyG, whose own choice changes from batch to batch. With noise on the rows "
                "nothing differs",
                stacklevel=users_level(),
            )
        difference = parity.difference
        if difference is None:
            return None
        watch = NonFinite(lambda: comparer.fields)
        with watch:
            padded = attempt(lambda: comparer.padded(batch, parity.options))
        if padded is not None and padded.refused and searches_of(self._model):
            return None  # fixed shapes have no room, which the step itself will say
        if watch.found is not None and (padded is None or not padded.finite):
            return not_finite(difference, watch)
        culprit = self._culprit(
            lambda: comparer.plain(batch, plain_batch(batch), parity.options),
            lambda: comparer.padded(batch, parity.options),
            comparer.tolerance.other_order,
            operations=False,
        )
        return leak_of(
            difference,
            culprit,
            self._model,
            f"the number of padding rows changes the result: {difference.name} is off by "
            f"{difference.how} from plain PyG on the same graphs without padding",
            SIZES + (GAPS if has_gaps(batch) and difference.name == "the loss" else ""),
        )

    def _culprit(
        self,
        first: Callable[[], Outcome],
        second: Callable[[], Outcome],
        tolerance: float,
        operations: bool = True,
    ) -> Culprit | None:
        """Returns where two runs diverge, if that can be found."""
        if several_ranks():  # the others would not join the collectives of these runs
            return None
        trails = []
        for run in (first, second):
            trail = Trail(self._model, self._comparer.context, operations)
            with trail.followed():
                if attempt(run) is None:
                    return None
            trails.append(trail)
        return trails[0].parting(trails[1], tolerance)


def next_look(taken: int) -> int:
    """Returns after how many batches of a training to look next for a change, after ``taken``."""
    return min(1 << max(taken, 0).bit_length(), (taken // STEPS + 1) * STEPS)


def _doubles(count: int) -> bool:
    """Whether a count is a power of two."""
    return not count & (count - 1)


def _graphs_in(batch: StaticBatch) -> int:
    return batch.real.graphs if batch.real is not None else int(batch.num_real_graphs)


# What to do, depending on the cause; the last two are added if it was plain PyG that differs.
LAYERS = (
    "Reduce over each graph with a pool and the batch vector, or mask with batch.node_mask "
    "(batch.graph_mask before a sum over graphs)"
)
NORMS = (
    "A norm that calls F.batch_norm itself counts padding rows: derive it from "
    "torch.nn.BatchNorm1d, and leave the forward to that"
)
LOSSES = (
    "In a loss, sg.masked_mean(values, batch) is the mean of rows, and batch.graph_mask "
    "(node_mask, edge_mask) leaves padding out of anything else; a BatchNorm that the loss alone "
    "holds counts padding rows until the model holds it, too (model.head = head)"
)
SIZES = (
    "; batch.num_nodes, num_edges, num_graphs and sizes of tensors count padding rows, and "
    "batch.num_real_nodes, num_real_edges and num_real_graphs do not"
)
GAPS = (
    "; a missing label (NaN) reads as 0 in a loss, and its entry is left out of the mean: what "
    "depends on torch.isnan of a target needs a mask of its own, as a field of the data"
)


def not_finite(difference: Difference, where: NonFinite) -> PaddingLeaks:
    """Returns the error of a value that padding alone makes NaN or infinite, at a known line."""
    assert where.found is not None
    place, line = where.found.where, where.found.line
    of = f", which computes with the field {where.field!r}," if where.field else ""
    return PaddingLeaks(
        f"{difference.name} is not finite over padding, and is in plain PyG on the same graphs: "
        f"{place}: {line}{of} {where.how} in padding rows. They hold the values of a real row "
        "(zeros in a field with missing values), but a padding graph may have no nodes, and a "
        "difference of two padding rows may be zero. Give the line a value there, such as "
        "count.clamp(min=1), (x.square().sum(-1) + eps).sqrt(), or torch.where(mask, value, 1) "
        "before it; check_padding=False turns this check off",
        None,
        place,
    )


def leak_of(
    difference: Difference,
    culprit: Culprit | None,
    model: torch.nn.Module,
    what: str,
    more: str = "",
) -> PaddingLeaks:
    """Returns the error, which names the layer if it is known; ``more`` is added to the remedy."""
    path, where, line = culprit or Culprit(None)
    remedy = LAYERS
    for kind in ("the buffer ", "the parameter "):
        if path is None and difference.name.startswith(kind):
            path = difference.name.removeprefix(kind).rpartition(".")[0]
    if path is None:
        named = "no layer does it: look at the loss, and at the function that calls the model"
        remedy = LOSSES
    elif path:
        layer = model.get_submodule(path)
        named = f"the first to differ is {path!r} ({type(layer).__name__})"
        remedy = NORMS if isinstance(layer, _BatchNorm) else LAYERS
    else:
        named = f"none does it: it is the forward of {type(model).__name__}"
    named += f", at {where}: {line}" if where else ""
    return PaddingLeaks(
        f"{what}. Of the layers, {named}. {remedy}{more}; sg.check(model, plan, store) lists "
        "every layer; check_padding=False, in the runner or in StaticGraphs, turns this check off",
        path,
        where,
    )
