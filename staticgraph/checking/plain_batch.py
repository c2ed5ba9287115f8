"""The graphs of a padded batch as plain PyG batches them, for a model that is called either way.

A model written for a :class:`StaticBatch` may read its masks; here all rows are real, so all masks
are True, and the real counts are the numbers of rows. Anything else that only a static batch has is
missing here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from staticgraph.batches.batch.real_batch import RealBatch
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.internals.hooks import has_pyg
from staticgraph.schema import Schema
from staticgraph.steps.loss.mean_loss import Loss, LossTerms
from staticgraph.steps.loss.weighted_means import StockMeans, warn_of_stock_means
from staticgraph.store.record import Record


class PlainBatch:
    """A PyG ``Batch`` that provides a model's arguments as a StaticBatch does."""

    def __init__(self, data: Any) -> None:
        self._data = data

    @property
    def __class__(self) -> type:  # pyright: ignore  # what isinstance reads
        return type(self._data)

    def fresh(self) -> PlainBatch:
        """Returns a copy on which a model may set attributes."""
        return PlainBatch(self._data.clone())

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._data, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_data":
            object.__setattr__(self, name, value)
        else:
            setattr(self._data, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._data, name)

    def __iter__(self) -> Any:
        return iter(self._data)

    def __getitem__(self, name: Any) -> Any:
        return self._data[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._data[name] = value

    def __contains__(self, name: object) -> bool:
        return name in self._data

    def mask_of(self, value: Tensor) -> Tensor:
        """Returns the mask of a tensor's rows: all are real."""
        return torch.ones(value.shape[:1], dtype=torch.bool, device=value.device)

    def level_of(self, value: Tensor) -> str:
        """Returns no level: a mean over all rows does not depend on it."""
        return ""

    def argument(self, name: str) -> Any:
        """Returns the argument for a model's parameter of this name; None if there is none."""
        value = getattr(self._data, name, None)
        if value is None and hasattr(self._data, "node_types"):  # x: one of each type
            value = getattr(self._data, f"{name}_dict", None)
        return value


def plain_batch(batch: StaticBatch) -> PlainBatch:
    """Returns the real graphs of a batch, without padding, on its device.

    Without PyG they are the real rows of the batch's own tensors.
    """
    if not has_pyg():
        real = RealBatch(batch)
        names = [*batch.keys(), "num_nodes", "num_edges", "num_graphs", "batch_size"]
        return PlainBatch(Record(**{name: getattr(real, name) for name in names}).clone())
    from torch_geometric.data import Batch

    graphs: list[Any] = list(batch.to_data_list())
    data: Any = Batch.from_data_list(graphs, follow_batch=_followed(batch.layout.schema))
    data = data.to(str(batch.device))
    if not batch.layout.schema.hetero:
        for level, rows in (
            ("node", data.num_nodes),
            ("edge", data.num_edges),
            ("graph", data.num_graphs),
        ):
            if f"{level}_mask" not in data:
                data[f"{level}_mask"] = torch.ones(rows, dtype=torch.bool, device=batch.device)
            if f"num_real_{level}s" not in data:
                data[f"num_real_{level}s"] = torch.tensor(rows, device=batch.device)
    own = {entry.name for entry in batch.layout.entries}
    for name in [*batch.keys()]:
        if name not in own and name not in data:
            data[name] = _real_rows(batch, getattr(batch, name))
    return PlainBatch(data)


def _real_rows(batch: StaticBatch, value: Any) -> Any:
    """Returns the real rows of what was set on a batch; itself if it has none of the batch's."""
    if isinstance(value, Tensor):
        for level, rows in batch.layout.rows.items():
            if value.shape[:1] == (rows,):
                return value[: batch.real_counts.of(level)]
    return value


def _followed(schema: Schema) -> list[str]:
    """The fields whose ``x_batch`` and ``x_ptr`` a static batch has besides those of nodes."""
    return [] if schema.hetero else [field.name for field in schema]


class ReadBatch(PlainBatch):
    """A plain batch that notes which of its fields are read."""

    def __init__(self, data: PlainBatch) -> None:
        super().__init__(data._data)
        object.__setattr__(self, "_names", set())

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        self._names.add(name)
        return value

    def __getitem__(self, name: Any) -> Any:
        self._names.add(name)
        return super().__getitem__(name)

    def read(self) -> set[Any]:
        """Returns the names read so far."""
        return self._names


class _Asking(TorchFunctionMode):
    """Notes whether anything tests which numbers are missing."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "").strip("_")
        itself = name in ("eq", "ne") and len(args) == 2 and args[0] is args[1]
        self.asked |= itself or name in ("isnan", "isfinite", "nan_to_num")
        return func(*args, **(kwargs or {}))


def has_gaps(batch: StaticBatch) -> bool:
    """Whether the data have missing labels, which a padded step leaves out of its mean."""
    return any(field.has_nan for field in batch.layout.schema)


def plain_loss(loss: Loss, out: Any, data: PlainBatch) -> Tensor:
    """Returns the mean of a loss over all rows of an unpadded batch."""
    return _terms_of(loss, out, data).mean()


def _terms_of(loss: Loss, out: Any, data: Any) -> LossTerms:
    """Returns a loss over real rows alone; warns of targets that torch's own mean leaves out."""
    with StockMeans() as watch:
        terms = LossTerms.of(loss(out, data))
    if not watch.passed:  # a step warns of what is passed, with or without a check
        warn_of_stock_means(loss, watch, terms.weights)
    return terms


def labelled_loss(loss: Loss, out: Any, data: PlainBatch) -> Tensor | None:
    """Returns the mean of a loss over the labelled entries of an unpadded batch.

    The batch has its original labels, NaN where they are missing. If the loss tests which are
    missing and gives such an entry a finite value other than 0, that counts as well. Computed
    without gradients, which NaN would reach; None if there is no mean (it is not finite, or the
    loss raises on a NaN).
    """
    view = ReadBatch(data)
    try:
        with torch.no_grad():
            with _Asking() as asking:
                terms = _terms_of(loss, out, view)
            values = terms.values
            labelled = torch.ones_like(values, dtype=torch.bool)
            for name in view.read():
                if name not in data:
                    continue
                label = data[name]
                if isinstance(label, Tensor) and label.numel() == values.numel():
                    labelled &= ~torch.isnan(label).view(values.shape)
            if asking.asked:
                labelled |= torch.isfinite(values) & (values != 0)
            shares = labelled if terms.weights is None else labelled * terms.weights
            shares = shares.to(values.dtype).expand(values.shape)
            mean = (torch.where(shares != 0, values, 0) * shares).sum() / shares.sum()
            mean = terms.add_to(mean)
    except Exception:  # whatever the loss raises on a NaN
        return None
    return mean if bool(torch.isfinite(mean)) else None
