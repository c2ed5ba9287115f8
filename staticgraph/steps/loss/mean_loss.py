"""The mean of a loss over real rows and labelled targets.

``loss(out, batch)`` returns one value per row. Padded rows, and targets that are NaN (OGB's way of
saying "no label"), must contribute neither to the mean nor to a gradient. Rows may have weights,
whose sum the mean then divides by. A term that belongs to no row (a penalty on parameters) is added
once per update, and of other rows (a KL term over nodes) the mean is added. So a loss returns
``values``, ``(values, weights)`` or ``(values, weights, added)``.

Labels may be missing in whatever float fields a loss reads, and zero times NaN is NaN in a
gradient. So the loss receives the batch with zeros for NaN, and the batch notes which float fields
were read; an entry that is NaN in one of them is left out. NaN is searched for in the step itself,
on the device: later data may have missing labels even if the data that the step was compiled for
had none. Invariant: a NaN that cannot be left out, because the loss has another shape than the
field, raises an error if the data are known to have NaN, and otherwise makes the loss NaN; never a
number.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.batches.batch.batch_arrays import wide_mask
from staticgraph.batches.batch.own_class import static_of
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.distributed.reduction import Share
from staticgraph.internals.dispatch import shapes_before
from staticgraph.internals.tracing import watched
from staticgraph.schema import LEVELS, Field

Loss = Callable[[Any, StaticBatch], Any]
# Dtypes too narrow for a sum of many values.
HALVES = (torch.float16, torch.bfloat16)


class LossTerms(NamedTuple):
    """What a loss returns; a plain tuple works as well.

    Attributes:
        values: one value per row, or several: ``[rows, ...]``.
        weights: None for a plain mean; else numbers or bool with as many dimensions as ``values``,
            each of the same size or 1: the mean is ``sum(weights * values) / sum(weights)``.
        added: a 0-dim tensor or a number, added to the mean once; or other rows of the batch, whose
            mean over the real ones is added. Of several processes the mean is over the rows of all;
            a number that depends on the graphs is not, so give its rows.
    """

    values: Tensor
    weights: Tensor | None = None
    added: Tensor | float | None = None

    @classmethod
    def of(cls, result: Any) -> LossTerms:
        """Returns the terms in what a loss returned.

        Raises:
            TypeError: it is something other than values, weights and a number.
            ValueError: the weights do not fit the values.
        """
        several = isinstance(result, tuple) and 1 <= len(result) <= 3
        parts: tuple[Any, ...] = result if several else (result,)
        terms = cls(*parts)
        values, weights, _ = terms
        if not isinstance(values, Tensor):
            raise TypeError(
                f"the loss gives a {type(values).__name__}: return a tensor of one value per row, "
                "such as F.mse_loss(out, batch.y, reduction='none'), or (values, weights), or "
                "(values, weights or None, a scalar to add once, or other rows)"
            )
        if weights is not None:
            _check_weights(values, weights)
        return terms

    @property
    def adds_rows(self) -> bool:
        """Whether the mean of other rows is added, not a scalar."""
        return isinstance(self.added, Tensor) and self.added.dim() > 0

    def add_to(self, mean: Tensor) -> Tensor:
        """Returns a mean over an unpadded batch with what is added to it."""
        added = self.added
        if added is None:
            return mean
        return mean + (added.mean() if isinstance(added, Tensor) else added)

    def mean(self) -> Tensor:
        """Returns the loss over an unpadded batch, where every row is real."""
        values, mean = self.values, self.values.mean()
        if self.weights is not None:
            wide = values.to(_added_up_in(values))
            shares = self.weights.to(wide.dtype).expand(values.shape)
            mean = _rounded((wide * shares).sum() / shares.sum(), values)
        return self.add_to(mean)


def _check_weights(values: Tensor, weights: object) -> None:
    if not isinstance(weights, Tensor):
        raise TypeError(
            f"the loss gives weights of type {type(weights).__name__}: return (values, weights) "
            "as two tensors"
        )
    fits = weights.dim() == values.dim() and all(
        length in (1, of) for length, of in zip(weights.shape, values.shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"the loss gives weights of shape {list(weights.shape)} with values of shape "
            f"{list(values.shape)}: give as many dimensions, each as long or 1 (weights[:, None] "
            "for one per row, weights[None] for one per task)"
        )


def mean_loss(
    loss: Loss, out: Any, batch: StaticBatch, received: StaticBatch | None = None
) -> Tensor:
    """The mean of ``loss(out, batch)`` over real rows and labelled targets, 0-dim.

    Args:
        loss: returns one value per row, or :class:`LossTerms`.
        out: the model's output.
        batch: the batch, perhaps with other tensors that the model has set.
        received: the batch as the model received it.

    Raises:
        ValueError: see :func:`masked_mean`.
    """
    received = batch if received is None else received
    terms, read = _terms(loss, out, batch, received)
    mean = _mean(terms.values, received, read, terms.weights)
    added = terms.added
    if isinstance(added, Tensor) and terms.adds_rows:
        total, count = _sum_of_added(added, received)
        added = _rounded(total / count.clamp(min=1), added)
    return mean if added is None else mean + added


# What sums are divided by before ranks add them: the same for every bucket, a power of two, which
# changes no bit of the mean, and about the rows of a batch, so that gradients in half precision are
# neither too large nor too small.
SHARES_OF = 256


def share_of_loss(
    loss: Loss, out: Any, batch: StaticBatch, received: StaticBatch | None = None
) -> Share:
    """Returns what a batch contributes to the mean over the batches of all ranks.

    Without added rows :func:`mean_loss` is its ``total / weight``. A scalar that is added once has
    the weight of the batch's rows.
    """
    received = batch if received is None else received
    terms, read = _terms(loss, out, batch, received)
    total, count = _masked_sum(terms.values, received, read, terms.weights)
    total, weight = total / SHARES_OF, count.to(total.dtype) / SHARES_OF
    added = terms.added
    if added is None:
        return Share(total, weight)
    added = torch.as_tensor(added, device=total.device)
    if not added.dim():
        return Share(total + added * weight, weight, added.detach())
    rows, count = _sum_of_added(added, received)
    rows, row_weight = rows / SHARES_OF, count.to(rows.dtype) / SHARES_OF
    return Share(total, weight, rows=rows, row_weight=row_weight)


def _sum_of_added(added: Tensor, batch: StaticBatch) -> tuple[Tensor, Tensor]:
    """Returns the sum of the real rows of what a loss adds, and the number of values in it."""
    try:
        return _masked_sum(added, batch, (), None)
    except ValueError:
        raise ValueError(
            f"the loss adds a tensor of shape {list(added.shape)}, whose rows are not the batch's: "
            "add a scalar, or one value per row, of which the mean over the real rows is taken"
        ) from None


def _terms(
    loss: Loss, out: Any, batch: StaticBatch, received: StaticBatch
) -> tuple[LossTerms, Sequence[str]]:
    """Returns the loss terms, and the float fields that the loss read.

    Only a field that is unchanged since the model received it can be a label; one that the loss may
    differentiate by is none.
    """
    arrays, came = batch.tensors(), received.tensors()
    floats = [
        field.name
        for field in batch.layout.schema.fields
        if field.dtype.startswith("float")
        and arrays.get(field.name) is came[field.name]
        and not came[field.name].requires_grad
    ]
    fields = ReadFields(arrays, floats)
    terms = LossTerms.of(loss(out, batch.with_tensors(fields)))
    if terms.weights is None:
        _check_not_broadcast(terms.values, out, received)
    return terms, fields.read


def masked_mean(
    values: Tensor | Callable[[StaticBatch], Any],
    batch: StaticBatch,
    read: Sequence[str] = (),
    *,
    weights: Tensor | None = None,
) -> Tensor:
    """The mean of a loss over the real rows of a batch.

    Args:
        values: ``[G, ...]``, ``[N, ...]``, ``[E, ...]`` or the rows of a type: one value per row,
            or several. Where targets are missing (NaN), a function of the batch that returns
            values of the target's shape, or :class:`LossTerms`: it receives the batch with zeros
            for NaN, and missing entries are left out of the mean and of every gradient.
        batch: with its original targets, NaN included; or what a padder with ``like=`` returned.
        read: the float fields that values were computed from, with their NaN replaced.
        weights: as in :class:`LossTerms`; a value with weight 0 counts for nothing, even if
            infinite.

    Returns:
        A 0-dim tensor in the dtype of ``values`` (half precisions are summed in float32, whole
        numbers in torch's default dtype); 0 if nothing is real, NaN if a missing label cannot be
        left out.

    Raises:
        TypeError: the batch is PyG's.
        ValueError: the loss is a scalar, its rows are not the batch's, it was already summed over
            targets of which some are missing, or (on the CPU) it was computed from missing targets
            and would make every gradient NaN.
    """
    if not isinstance(batch, StaticBatch):
        batch = static_of(batch) or batch
    if hasattr(batch, "_slice_dict"):  # PyG's Batch
        raise TypeError(
            f"masked_mean() takes a padded batch, not a {type(batch).__name__}, which has no "
            "padding: values.mean() is its mean"
        )
    if not isinstance(values, Tensor):
        return mean_loss(lambda _, seen: values(seen), None, batch)
    if weights is None:
        _warn_of_pairs(values, batch)
    if values.requires_grad and values.device.type == "cpu":
        _check_labelled(values, batch)
    return _mean(values, batch, read, weights)


def _mean(
    values: Tensor, batch: StaticBatch, read: Sequence[str], weights: Tensor | None
) -> Tensor:
    total, count = _masked_sum(values, batch, read, weights)
    count = count.clamp(min=1) if weights is None else torch.where(count == 0, 1, count)
    return _rounded(total / count, values)


def _warn_of_pairs(values: Tensor, batch: StaticBatch) -> None:
    """Warns of values ``[R, R]`` broadcast from ``[R, 1]`` and ``[R]`` in a user's loop.

    An output ``[R, 1]`` minus a target ``[R]`` is such a case. Having as many columns as the batch
    has rows is no reason to warn by itself; without gradients, a field of that shape shows that
    they are intended.
    """
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
    """Sums a loss over real rows and labelled targets, in float32 or wider.

    Returns:
        The sum, NaN if a missing label cannot be left out; and the number of values in it, or the
        sum of their weights.
    """
    if values.dim() == 0:
        raise ValueError(
            "the loss is a scalar, so padded rows are already averaged in: return one value per "
            "row, such as F.mse_loss(out, batch.y, reduction='none'); a scalar of parameters (a "
            "penalty) is added once: return (loss, None, scalar)"
        )
    try:
        rows = batch.mask_of(values)
    except ValueError as error:
        raise ValueError(
            f"the loss has no rows of this batch ({error}). Values of chosen rows, loss[mask], are "
            "as many as the mask has True: return (values, mask) of all rows instead; targets "
            "that are NaN are left out anyway, without a mask"
        ) from None
    mask = wide_mask(rows, values).expand(values.shape)
    mask, lost = _labelled(values, batch, mask, read)
    wide = _added_up_in(values)
    if weights is None:
        total, count = torch.where(mask, values, 0).sum(dtype=wide), mask.sum()
    else:
        shares = torch.where(mask, weights.to(wide), 0)
        total, count = (torch.where(shares != 0, values, 0) * shares).sum(), shares.sum()
    return total if lost is None else torch.where(lost, torch.nan, total), count


class ReadFields(Mapping[str, Tensor]):
    """The arrays of a batch, with zeros for NaN in float fields; notes which float fields are read.

    Args:
        tensors: the arrays.
        floats: the names of the float fields.

    Attributes:
        read: the float fields that were read, in order.
    """

    def __init__(self, tensors: Mapping[str, Tensor], floats: Sequence[str]) -> None:
        self._tensors = tensors
        self._floats = floats
        self.read: list[str] = []

    def __getitem__(self, name: str) -> Tensor:
        value = self._tensors[name]
        if name not in self._floats:
            return value
        if name not in self.read:
            self.read.append(name)
        return torch.where(torch.isnan(value), 0, value)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def get(self, name: str, default: Tensor | None = None) -> Tensor | None:  # pyright: ignore
        """Returns the named field, noted as read; ``default`` if there is none."""
        return self[name] if name in self._tensors else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _labelled(
    values: Tensor, batch: StaticBatch, mask: Tensor, read: Sequence[str]
) -> tuple[Tensor, Tensor | None]:
    """Removes from ``mask`` the entries of a loss whose label is missing.

    Args:
        values: the loss, one or several values per row.
        batch: with its original labels, NaN included.
        mask: bool, of the shape of ``values``.
        read: the float fields that the loss read.

    Returns:
        The mask, and a 0-dim bool: whether a label is missing that the mask cannot leave out; None
        if there is no such field.

    Raises:
        ValueError: some values of a field are known to be missing, and the loss has another shape.
    """
    lost: Tensor | None = None
    if not read:
        return mask, lost
    level = batch.level_of(values)
    for field in batch.layout.schema.fields:
        if field.name not in read:
            continue
        label = batch[field.name]
        if field.level == level and label.numel() == values.numel():
            mask = mask & ~torch.isnan(label).view(values.shape)
        elif _of_another_type(field, level, batch):
            continue  # ``batch.y_dict`` reads the labels of all types; a loss is over one type
        elif field.has_nan:
            raise ValueError(
                f"some values of {field.name!r} are missing (NaN), so the loss must have the shape "
                f"of {field.name}, {list(label.shape)}, for them to be left out; it has "
                f"{list(values.shape)}"
            )
        else:
            missing = torch.isnan(label).any()
            lost = missing if lost is None else lost | missing
    return mask, lost


def _check_labelled(values: Tensor, batch: StaticBatch) -> None:
    """Refuses values of a loss on the CPU that were computed from missing labels.

    Leaving them out of a mean keeps them out of its value, not of its gradient: the derivative of
    such a value is NaN, and zero times NaN is NaN in every parameter.

    Raises:
        ValueError: a value is NaN where a float field of its shape is.
    """
    fields = batch.tensors()
    if torch.compiler.is_compiling() or isinstance(fields, ReadFields):
        return  # a runner's own loss, whose labels are replaced
    if not watched() and bool(torch.isnan(values.detach().sum())):
        for field in batch.layout.schema:
            label = fields[field.name]
            same = label.numel() == values.numel() and label.is_floating_point()
            if same and bool((torch.isnan(values.view(label.shape)) & torch.isnan(label)).any()):
                raise ValueError(
                    f"some values of the loss were computed from labels that are missing (NaN) in "
                    f"{field.name!r}, which makes every gradient NaN even where they are left out "
                    "of the mean: give masked_mean the loss as a function, "
                    f"sg.masked_mean(lambda batch: F.mse_loss(out, batch.{field.name}, "
                    "reduction='none'), batch)"
                )


def _of_another_type(field: Field, level: str, batch: StaticBatch) -> bool:
    axis = batch.layout.schema.axis(field.level)
    return axis is not None and len(axis.type) > 0 and field.level != level


def _added_up_in(values: Tensor) -> torch.dtype:
    """The dtype that a loss is summed in.

    The sum of 1,300 values of 225 overflows float16, although their mean does not; in whole
    numbers, weights would be truncated.
    """
    if values.dtype in HALVES:
        return torch.float32
    return values.dtype if values.dtype.is_floating_point else torch.get_default_dtype()


def _rounded(mean: Tensor, values: Tensor) -> Tensor:
    """Returns a mean in torch's own dtype for it: half precision for such values."""
    return mean.to(values.dtype) if values.dtype in HALVES else mean


def _check_not_broadcast(values: Tensor, out: object, batch: StaticBatch) -> None:
    """Refuses the loss of an output ``[R, 1]`` against a target ``[R]``, or of another level.

    It compares each row with every target, ``[R, R]``, and its mean looks like any other number.

    Raises:
        ValueError: the loss was broadcast in this way.
    """
    if not isinstance(out, Tensor) or out.dim() != 2 or out.shape[1] != 1 or values.dim() != 2:
        return
    rows, columns = values.shape
    if rows != out.shape[0] or columns == 1:  # a bucket may have just one edge
        return
    shapes = (
        f"the loss of an output of shape {list(out.shape)} has the shape {list(values.shape)}: "
    )
    if rows == columns:
        raise ValueError(
            f"{shapes}each row was compared with every row's target; use out.squeeze(1), or "
            "batch.y.view(-1, 1); a loss of pairs gives (values, weights), 0 where a pair counts "
            "for nothing"
        )
    levels = {count: level for level, count in batch.layout.rows.items() if level in LEVELS}
    if "node" in batch.layout.rows and rows in levels and columns in levels:
        raise ValueError(
            f"{shapes}the model gives a row per {levels[rows]}, and the target has a row per "
            f"{levels[columns]}; pool nodes to graphs in the model, or give the target the level "
            "of the output"
        )
