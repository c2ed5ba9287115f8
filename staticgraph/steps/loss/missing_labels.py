"""Missing labels: NaN in whatever float fields a loss reads.

The problem: OGB and others write NaN where a graph has no label, and a target may have any name, or
several. Missing entries must not contribute to the mean, nor reach a gradient, where zero times NaN
is NaN. The idea: the loss receives the batch with zeros for NaN, and the batch notes which float
fields were read; an entry that is NaN in one of them is left out. NaN is searched for in the step
itself, on the device: later data may have missing labels even if the data that the step was
compiled for had none.

Invariant: a NaN that cannot be left out, because the loss has another shape than the field, raises
an error if the data are known to have NaN, and otherwise makes the loss NaN; never a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.internals.tracing import watched
from staticgraph.schema import Field


class ReadFields(Mapping[str, Tensor]):
    """The arrays of a batch, with zeros for NaN in float fields; notes which float fields are read.

    Args:
        tensors: the arrays.
        watched: the names of the float fields.

    Attributes:
        read: the float fields that were read, in order.
    """

    def __init__(self, tensors: Mapping[str, Tensor], watched: Sequence[str]) -> None:
        self._tensors = tensors
        self._watched = watched
        self.read: list[str] = []

    def __getitem__(self, name: str) -> Tensor:
        value = self._tensors[name]
        if name not in self._watched:
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


def for_loss(batch: StaticBatch, received: StaticBatch) -> tuple[StaticBatch, ReadFields]:
    """Returns a batch for a loss to read, and the fields that note its reads.

    Args:
        batch: the batch, perhaps with other tensors that the model has set.
        received: the batch as the model received it; only a field that is unchanged since can be a
            label.
    """
    arrays, came = batch.tensors(), received.tensors()
    watched = [
        field.name
        for field in batch.layout.schema
        if field.dtype.startswith("float") and arrays.get(field.name) is came[field.name]
    ]
    fields = ReadFields(arrays, watched)
    return batch.with_tensors(fields), fields


def labelled(
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
    level = batch.level_of(values)
    for name in read:
        field, label = batch.layout.schema[name], batch[name]
        if field.level == level and label.numel() == values.numel():
            mask = mask & ~torch.isnan(label).view(values.shape)
        elif _of_another_type(field, level, batch):
            continue  # ``batch.y_dict`` reads the labels of all types; a loss is over one type
        elif field.has_nan:
            raise ValueError(
                f"some values of {name!r} are missing (NaN), so the loss must have the shape of "
                f"{name}, {list(label.shape)}, for them to be left out; it has "
                f"{list(values.shape)}"
            )
        else:
            missing = torch.isnan(label).any()
            lost = missing if lost is None else lost | missing
    return mask, lost


def check_labelled(values: Tensor, batch: StaticBatch) -> None:
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
