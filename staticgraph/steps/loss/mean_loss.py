"""The mean of a loss over real rows, and over labelled targets.

``loss(out, batch)`` gives one value per row; the padded rows, and targets that are NaN (OGB's way
of saying "no label", see :mod:`staticgraph.steps.loss.missing_labels`), must take no part, neither
in the mean nor in a gradient. Rows may have weights, by whose sum a mean divides, and a term that
is no row's (a penalty on parameters, a KL term) is added once, so a loss gives ``values``,
``(values, weights)`` or ``(values, weights, added)``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.distributed.share import Share
from staticgraph.internals.autograd_shapes import shapes_before
from staticgraph.steps.loss.missing_labels import for_loss, labelled

Loss = Callable[[Any, StaticBatch], Any]
# Too narrow for a sum of many values.
HALVES = (torch.float16, torch.bfloat16)


class LossTerms(NamedTuple):
    """What a loss gives; a plain tuple does as well.

    Attributes:
        values: one value per row, or several: ``[rows, ...]``.
        weights: None for a plain mean; else numbers or bool with as many dimensions as ``values``,
            each as long or 1: the mean is ``sum(weights * values) / sum(weights)``.
        added: a 0-dim tensor or a number, added to the mean once.
    """

    values: Tensor
    weights: Tensor | None = None
    added: Tensor | float | None = None

    @classmethod
    def of(cls, result: Any) -> LossTerms:
        """The terms in what a loss returned.

        Raises:
            TypeError: something else than values, weights and a number.
            ValueError: weights that do not go with the values, or an addend that has rows.
        """
        several = isinstance(result, tuple) and 1 <= len(result) <= 3
        parts: tuple[Any, ...] = result if several else (result,)
        terms = cls(*parts)
        values, weights, added = terms
        if not isinstance(values, Tensor):
            raise TypeError(
                f"the loss gives a {type(values).__name__}: return a tensor of one value per row, "
                "such as F.mse_loss(out, batch.y, reduction='none'), or (values, weights), or "
                "(values, weights or None, a scalar to add once)"
            )
        if weights is not None:
            _check_weights(values, weights)
        if isinstance(added, Tensor) and added.dim():
            raise ValueError(
                f"the loss adds a tensor of shape {list(added.shape)}; what is added once is a "
                "scalar: take its sum, or sg.masked_mean(rows, batch) of a term of rows"
            )
        return terms

    def mean(self) -> Tensor:
        """The loss where every row is real: over an unpadded batch."""
        values, mean = self.values, self.values.mean()
        if self.weights is not None:
            wide = values.to(_added_up_in(values))
            shares = self.weights.to(wide.dtype).expand(values.shape)
            mean = _rounded((wide * shares).sum() / shares.sum(), values)
        return mean if self.added is None else mean + self.added


def _check_weights(values: Tensor, weights: object) -> None:
    if not isinstance(weights, Tensor):
        raise TypeError(
            f"the loss gives weights of type {type(weights).__name__}: return (values, weights) "
            "as two tensors"
        )
    fits = weights.dim() == values.dim() and all(
        own in (1, of) for own, of in zip(weights.shape, values.shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"the loss gives weights of shape {list(weights.shape)} with values of shape "
            f"{list(values.shape)}: give as many dimensions, each as long or 1 (weights[:, None] "
            "for one per row, weights[None] for one per task)"
        )


def mean_loss(loss: Loss, out: Any, batch: StaticBatch, given: StaticBatch | None = None) -> Tensor:
    """The mean of ``loss(out, batch)`` over real rows and labelled targets, 0-dim.

    Args:
        loss: one value per row, or :class:`LossTerms`.
        out: the model's output.
        batch: perhaps with other tensors that the model has set.
        given: as the model got it.

    Raises:
        ValueError: see :func:`masked_mean`.
    """
    given = batch if given is None else given
    terms, read = _terms(loss, out, batch, given)
    mean = _mean(terms.values, given, read, terms.weights)
    return mean if terms.added is None else mean + terms.added


def share_of_loss(
    loss: Loss, out: Any, batch: StaticBatch, given: StaticBatch | None = None
) -> Share:
    """What a batch adds to the mean over the batches of all ranks; as :func:`mean_loss`, which is
    its ``total / weight``. What is added once counts as much as the rows beside it."""
    given = batch if given is None else given
    terms, read = _terms(loss, out, batch, given)
    total, count = _masked_sum(terms.values, given, read, terms.weights)
    physical = max(1, terms.values.numel())
    total, weight = total / physical, count.to(total.dtype) / physical
    return Share(total if terms.added is None else total + terms.added * weight, weight)


def _terms(
    loss: Loss, out: Any, batch: StaticBatch, given: StaticBatch
) -> tuple[LossTerms, Sequence[str]]:
    """The loss, and the float fields that it read."""
    seen, fields = for_loss(batch, given)
    terms = LossTerms.of(loss(out, seen))
    if terms.weights is None:
        check_not_broadcast(terms.values, out)
        _check_level(terms.values, out, given)
    return terms, fields.read


def masked_mean(
    values: Tensor,
    batch: StaticBatch,
    read: Sequence[str] = (),
    *,
    weights: Tensor | None = None,
) -> Tensor:
    """The mean of a loss over the real rows of a batch.

    Args:
        values: ``[G, ...]``, ``[N, ...]``, ``[E, ...]`` or the rows of a type: one value per row,
            or several. Where targets are missing it has the target's shape, and missing entries are
            left out.
        batch: with its targets as they came, NaN included.
        read: the float fields that the loss read.
        weights: as in :class:`LossTerms`; where one is 0 the value counts for nothing, be it
            infinite.

    Returns:
        A 0-dim tensor in the dtype of ``values`` (half precisions are added up in float32, whole
        numbers as torch's default); 0 where nothing is real, NaN where a missing label cannot be
        left out.

    Raises:
        ValueError: a scalar, rows that are not the batch's, or a loss already summed over targets
            of which some are missing.
    """
    if weights is None:
        _warn_of_pairs(values, batch)
    return _mean(values, batch, read, weights)


def _mean(
    values: Tensor, batch: StaticBatch, read: Sequence[str], weights: Tensor | None
) -> Tensor:
    total, count = _masked_sum(values, batch, read, weights)
    count = count.clamp(min=1) if weights is None else torch.where(count == 0, 1, count)
    return _rounded(total / count, values)


def _warn_of_pairs(values: Tensor, batch: StaticBatch) -> None:
    """Of ``[R, R]`` that were made of ``[R, 1]`` or ``[R]``, in a loop of the user's own: an output
    ``[R, 1]`` less a target ``[R]`` is that. As many columns as the batch has rows are no reason to
    warn; without gradients a field of that shape tells that they are meant."""
    rows = values.shape[0] if values.dim() == 2 else 0
    if rows < 2 or values.shape[1] != rows or torch.compiler.is_compiling():
        return
    before = shapes_before(values)
    if before is None:
        paired = all(tensor.shape != values.shape for tensor in batch.tensors().values())
    else:
        paired = not before.isdisjoint({(rows, 1), (rows,)})
    if paired:
        warnings.warn(
            f"masked_mean() of values of shape {list(values.shape)}: if an output [R, 1] met a "
            "target [R], each row was compared with every row's target: use out.squeeze(1), or "
            "batch.y.view(-1, 1); for pairs of rows give weights=, 0 where one is padding",
            stacklevel=3,
        )


def _masked_sum(
    values: Tensor, batch: StaticBatch, read: Sequence[str], weights: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The sum of a loss over real rows and labelled targets, in float32 or wider, NaN where a
    missing label cannot be left out; and how many values that were, or the sum of their weights."""
    if values.dim() == 0:
        raise ValueError(
            "the loss is a scalar, so padded rows are already averaged in: return one value per "
            "row, such as F.mse_loss(out, batch.y, reduction='none'); a scalar of parameters (a "
            "penalty, a KL term) is added once: return (loss, None, scalar)"
        )
    try:
        rows = batch.mask_of(values)
    except ValueError as error:
        raise ValueError(
            f"the loss has no rows of this batch ({error}). Values of chosen rows, loss[mask], are "
            "as many as the mask has True: return (values, mask) of all rows instead; targets "
            "that are NaN are left out anyway, without a mask"
        ) from None
    mask = rows.view(-1, *(1,) * (values.dim() - 1)).expand(values.shape)
    mask, lost = labelled(values, batch, mask, read)
    wide = _added_up_in(values)
    if weights is None:
        total, count = torch.where(mask, values, 0).sum(dtype=wide), mask.sum()
    else:
        shares = torch.where(mask, weights.to(wide), 0)
        total, count = (torch.where(shares != 0, values, 0) * shares).sum(), shares.sum()
    return total if lost is None else torch.where(lost, torch.nan, total), count


def _added_up_in(values: Tensor) -> torch.dtype:
    """Of a loss: the sum of 1,300 values of 225 is more than float16 holds, and their mean is not;
    as whole numbers weights would be cut off."""
    if values.dtype in HALVES:
        return torch.float32
    return values.dtype if values.dtype.is_floating_point else torch.get_default_dtype()


def _rounded(mean: Tensor, values: Tensor) -> Tensor:
    """A mean as torch's own has it: in half precision that of values in half precision."""
    return mean.to(values.dtype) if values.dtype in HALVES else mean


def check_not_broadcast(values: Tensor, out: object) -> None:
    """Refuses the loss of an output ``[R, 1]`` against a target ``[R]``: each row against every
    target, ``[R, R]``, of which the mean is a number like any other.

    Raises:
        ValueError: the loss is that.
    """
    if not isinstance(out, Tensor) or out.dim() != 2 or not isinstance(values, Tensor):
        return
    rows = out.shape[0]
    if rows > 1 and out.shape[1] == 1 and tuple(values.shape) == (rows, rows):
        raise ValueError(
            f"the loss of an output of shape {list(out.shape)} has the shape {list(values.shape)}: "
            "each row was compared with every row's target; use out.squeeze(1), or "
            "batch.y.view(-1, 1); a loss of pairs gives (values, weights), 0 where a pair counts "
            "for nothing"
        )


def _check_level(values: Tensor, out: object, batch: StaticBatch) -> None:
    """Refuses the loss of an output ``[G, 1]`` against a target of nodes ``[N]``, or the other way
    round: each row against every row of another level.

    Raises:
        ValueError: the loss is that.
    """
    if not isinstance(out, Tensor) or out.dim() != 2 or out.shape[1] != 1 or values.dim() != 2:
        return
    if batch.layout.schema.hetero:
        return
    masks = {"graph": batch.graph_mask, "node": batch.node_mask, "edge": batch.edge_mask}
    rows = {level: mask.shape[0] for level, mask in masks.items()}
    of = next((level for level, count in rows.items() if count == values.shape[1]), None)
    own = next((level for level, count in rows.items() if count == out.shape[0]), None)
    if of is not None and own is not None and of != own and values.shape[0] == out.shape[0]:
        raise ValueError(
            f"the loss of an output of shape {list(out.shape)} has the shape {list(values.shape)}: "
            f"the model gives a row per {own}, and the target has a row per {of}; pool nodes to "
            "graphs in the model, or give the target the level of the output"
        )
