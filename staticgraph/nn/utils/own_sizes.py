"""Sizes that a model reads from the batch's own indices, answered without a host read.

The problem: ``batch[-1].item() + 1``, ``int(edge_index.max()) + 1``, a scatter of torch_scatter
without ``dim_size``: older models ask the device how many graphs or nodes there are, and a
recording cannot involve the host. The idea: while such a model runs, ``batch`` and ``edge_index``
are marked. The largest value of a marked index is the last graph or the last node, whatever its
values are, so reading it on the host returns a number of the bucket. Views of a marked index are
marked too, so that code which broadcasts it first (torch_scatter) works; anything else computed
from it is a plain tensor.

A field that counts the rows of each graph (``torch.repeat_interleave(x, batch.num_atoms)``) leaves
out padding; its counts are completed by those of padding graphs, and the size is the bucket's, as
is that of ``batch.num_atoms.sum().item()``.

The graph boundaries ``(batch[1:] - batch[:-1]).nonzero()`` are taken from ``ptr``: one row for each
graph but the first.

Invariant: the values of marked tensors are unchanged. Indices are marked only for a model that was
seen to read sizes (:func:`asks`), so no other model is traced differently.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.errors import NotStatic
from staticgraph.internals.dispatch import DisableTorchFunctionSubclass
from staticgraph.nn.context.bound_batch import Binding, present, traced_here
from staticgraph.nn.context.marked_tensor import GraphsOfRows, marked, note_size
from staticgraph.schema import Schema

# Not ``clone``: what is changed in place is copied first.
_VIEWS = {
    Tensor.contiguous, Tensor.cpu, Tensor.detach, Tensor.expand, Tensor.expand_as, Tensor.flatten,
    Tensor.long, Tensor.reshape, Tensor.squeeze, Tensor.to, Tensor.type, Tensor.type_as,
    Tensor.unsqueeze, Tensor.view, torch.flatten, torch.squeeze, torch.unsqueeze,
}  # fmt: skip
_LARGEST = {Tensor.max, torch.max, Tensor.amax, torch.amax}
_HOST = {Tensor.item, Tensor.__int__, Tensor.__index__, Tensor.tolist}
_CASTS = {Tensor.int, Tensor.long, Tensor.to, Tensor.detach, Tensor.cpu, Tensor.clone}
_OF_SIZES = {
    torch.zeros, torch.ones, torch.empty, torch.full,
    Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty, Tensor.new_full,
    Tensor.expand, Tensor.view, Tensor.reshape,
}  # fmt: skip
_TOTALS = {Tensor.sum, torch.sum}
_REPEATS = {Tensor.repeat_interleave, torch.repeat_interleave}
_IN_PLACE = {Tensor.add_, Tensor.sub_, Tensor.mul_}  # also ``n += 1``
_SUMS = {Tensor.add, Tensor.__add__, Tensor.__radd__, torch.add}
_SELECTS = ("index_select", "_new_index_select")  # torch's own, and the one PyG wraps it with
_NONZERO = {Tensor.nonzero, torch.nonzero}
_CHANGES = {Tensor.sub, Tensor.__sub__, torch.sub, Tensor.ne, Tensor.__ne__, torch.ne}


def _plain(func: Any, args: Any, kwargs: Any) -> Any:
    with DisableTorchFunctionSubclass():
        return func(*args, **(kwargs or {}))


def _of_size(func: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operation on a size, which does not know what it becomes in place."""
    if func in _IN_PLACE:
        raise NotStatic(
            "a size that is read from batch or edge_index is changed in place: write n = n + 1, or "
            "take batch.num_graphs or x.size(0)"
        )
    return _plain(func, args, kwargs)


def _present() -> StaticBatch | None:
    binding = present()
    return None if binding is None else binding.batch


class _Number(Tensor):
    """The number of rows of the ``levels``; the largest if there are several."""

    levels: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        batch = _present()
        if batch is not None and (func in _HOST or func in _OF_SIZES):
            note_size(cls.levels[0])
            rows = _most_rows(batch, cls.levels)
            return rows if func in _HOST else func(*_with_number(args, cls, rows), **kwargs or {})
        out = _of_size(func, args, kwargs)
        return marked(out, cls) if func in _CASTS else out


class _Last(Tensor):
    """The largest value of an index over rows of the ``levels``: the number of the last row."""

    levels: ClassVar[tuple[str, ...]] = ()
    number: ClassVar[type[_Number]] = _Number

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        batch = _present()
        if func in _HOST and batch is not None:
            note_size(cls.levels[0])
            return _most_rows(batch, cls.levels) - 1
        out = _of_size(func, args, kwargs)
        if func in _CASTS:
            return marked(out, cls)
        return marked(out, cls.number) if func in _SUMS and _one_more(args) else out


def _with_number(args: Any, kind: type[Tensor], number: int) -> Any:
    """Arguments with a host number in place of a tensor of this kind, also within a shape."""
    if isinstance(args, tuple | list):
        return tuple(_with_number(each, kind, number) for each in args)
    return number if isinstance(args, kind) else args


def _most_rows(batch: StaticBatch, levels: tuple[str, ...]) -> int:
    most = 0
    for level in levels:
        most = max(most, batch.capacity.rows(level))
    return most


def _one_more(args: Any) -> bool:
    return len(args) == 2 and type(args[1]) is int and args[1] == 1


class _Changes(Tensor):
    """Where ``batch`` changes from one graph to the next."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        batch = _present()
        if func in _NONZERO and batch is not None:
            note_size("first nodes")
            places = batch.ptr[1:-1] - 1
            return (places,) if (kwargs or {}).get("as_tuple") else places[:, None]
        return _plain(func, args, kwargs)


class _Part(Tensor):
    """``batch[1:]`` or ``batch[:-1]``."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = _plain(func, args, kwargs)
        both = len(args) == 2 and isinstance(args[0], cls) and isinstance(args[1], cls)
        return marked(out, _Changes) if func in _CHANGES and both else out


class _Graphs(GraphsOfRows):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = _plain(func, args, kwargs)
        return marked(out, cls) if _is_view(func, out) and out.dim() == 1 else out


class _Vector(Tensor):
    """A vector that indexes rows, such as one end of each edge."""

    last: ClassVar[type[_Last]] = _Last
    ascends: ClassVar[bool] = False
    # If every graph has a row, the vector changes exactly where a graph begins.
    every_graph: ClassVar[bool] = False

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = _plain(func, args, kwargs)
        if func in _LARGEST and len(args) == 1 and not kwargs:
            return marked(out, cls.last)
        if func is Tensor.__getitem__:
            if cls.ascends and type(args[1]) is int and args[1] == -1 and out.dim() == 0:
                return marked(out, cls.last)
            if cls.every_graph and type(args[1]) is slice and _is_shift(args[1]):
                return marked(out, _Part)
            return cls._chosen(out) if isinstance(args[1], Tensor) else out
        if func.__name__ in _SELECTS:
            return cls._chosen(out)
        return marked(out, cls) if _is_view(func, out) else out

    @classmethod
    def _chosen(cls, out: Tensor) -> Tensor:
        """Some of its values, in any order."""
        return out


class _OfRows(_Vector):
    """The graph of each row of a level; a graph may have no such rows."""

    ascends = True

    @classmethod
    def _chosen(cls, out: Tensor) -> Tensor:
        return marked(out, _Graphs) if out.dim() == 1 else out


class _OfNodes(_OfRows):
    """The graph of each node."""

    every_graph = True


class _Ends(Tensor):
    """The ends of edges, ``[2, E]``; each row of it may index another level."""

    last: ClassVar[type[_Last]] = _Last
    source: ClassVar[type[_Vector]] = _Vector
    target: ClassVar[type[_Vector]] = _Vector

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = _plain(func, args, kwargs)
        if func in _LARGEST and len(args) == 1 and not kwargs:
            return marked(out, cls.last)
        if func is Tensor.__getitem__:
            end = _end(args[1])
            if type(end) is int and out.dim() == 1:
                return marked(out, cls.source if end in (0, -2) else cls.target)
            return out
        if func in (Tensor.unbind, torch.unbind, Tensor.__iter__):
            source, target = out
            return marked(source, cls.source), marked(target, cls.target)
        same = _is_view(func, out) and out.dim() == 2
        return marked(out, cls) if same else out


class _Counts(Tensor):
    """A field with a number for each graph, perhaps how many nodes or rows of an axis it has."""

    field: ClassVar[str] = ""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, binding = kwargs or {}, present()
        repeats = kwargs.get("repeats", args[-1] if len(args) < 3 else args[1]) if args else None
        if func in _REPEATS and isinstance(repeats, cls) and binding is not None:
            counts = _plain(Tensor.detach, (repeats,), None)
            level = _counted_level(binding, cls.field, counts)
            if level:
                note_size("counts")
                counts = torch.where(*_of_padding(binding.batch, level, counts))
                args = tuple(counts if each is repeats else each for each in args)
                kwargs = {**kwargs, "output_size": binding.batch.capacity.rows(level)}
                if "repeats" in kwargs:
                    kwargs["repeats"] = counts
                return func(*args, **kwargs)
        out = _plain(func, args, kwargs)
        if func in _TOTALS and len(args) == 1 and not kwargs and binding is not None:
            level = _counted_level(binding, cls.field, _plain(Tensor.detach, args, None))
            return marked(out, _kind_of(_Last, (level,)).number) if level else out
        return marked(out, cls) if _is_view(func, out) and out.dim() == 1 else out


def _of_padding(batch: StaticBatch, level: str, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The graphs that are real, their counts, and how many rows of a level padding graphs have."""
    rows = (batch.ptr if level == "node" else batch[f"{level}_ptr"]).diff()
    return batch.graph_mask, counts, rows


def _counted_level(binding: Binding, field: str, counts: Tensor) -> str | None:
    """The level whose rows a field counts, by its values; in a trace, which has none, the noted
    level, or, where there are no rows of other kinds, nodes: torch refuses a sum that is not the
    number of rows.

    Raises:
        NotStatic: in a trace, if rows of several kinds come into question.
    """
    known = binding.context.counted
    if traced_here():
        if field not in known and _row_axes(binding.batch.layout.schema):
            raise NotStatic(
                f"which rows {field!r} counts is known from graphs alone: give some to warmup(), a "
                "store or a batch"
            )
        return known.get(field, "node")
    levels = _note_level(binding.batch, known, field, counts)
    return known[field] if known.get(field) in levels else next(iter(levels), None)


def _note_level(batch: StaticBatch, known: dict[str, str], field: str, counts: Tensor) -> list[str]:
    """Returns the levels of which each real graph has as many rows as a field says, and notes it
    if there is one: a molecule of a single atom also has a single ring."""
    levels = []
    for level in ("node", *_row_axes(batch.layout.schema)):
        real, _, rows = _of_padding(batch, level, counts)
        if torch.equal(torch.where(real, counts, 0), torch.where(real, rows, 0)):
            levels.append(level)
    if len(levels) == 1:
        known[field] = levels[0]
    return levels


def note_counts(batch: StaticBatch, known: dict[str, str]) -> None:
    """Notes which rows the fields count whose values say so, for the traces to come."""
    for name in _count_fields(batch.layout.schema):
        _note_level(batch, known, name, batch[name])


def _row_axes(schema: Schema) -> list[str]:
    return [axis.name for axis in schema.axes if axis.kind == "rows"]


def _count_fields(schema: Schema) -> list[str]:
    """The fields with a whole number per graph, of data whose nodes have no types."""
    fields = () if schema.hetero else schema
    plain = ((), "int64", 1, 0, ())
    return [field.name for field in fields if field.level == "graph" and field.layout[2:] == plain]


def _end(key: Any) -> Any:
    """The row that a key takes of ``edge_index``: ``[0]``, or ``[0, :]``."""
    whole = type(key) is tuple and len(key) == 2 and type(key[1]) is slice
    if whole and (key[1].start, key[1].stop, key[1].step) == (None, None, None):
        return key[0]
    return key


def _is_shift(part: slice) -> bool:
    return part.step is None and (part.start, part.stop) in ((1, None), (None, -1), (0, -1))


def _is_view(func: Any, out: Any) -> bool:
    return func in _VIEWS and isinstance(out, Tensor) and out.dtype == torch.int64


# The marked tensor types by the levels they index. Made when a batch is first marked, which is not
# in a trace: a model runs in eager mode before it is traced.
_KINDS: dict[tuple[str, ...], Any] = {}


def _kind_of(base: type[Tensor], levels: tuple[str, ...]) -> Any:
    """``base`` for rows of these levels, with the types of the tensors computed from it."""
    key = (base.__name__, *levels)
    if key not in _KINDS:
        members: dict[str, Any] = {}
        if base is _Last:
            members["levels"] = levels
            members["number"] = type("_Number", (_Number,), {"levels": levels})
        else:
            members["last"] = _kind_of(_Last, levels)
        if base is _Ends:
            members["source"] = _kind_of(_Vector, levels[:1])
            members["target"] = _kind_of(_Vector, levels[1:])
        _KINDS[key] = type(base.__name__, (base,), members)
    return _KINDS[key]


def _kind_of_counts(field: str) -> Any:
    key = (_Counts.__name__, field)
    if key not in _KINDS:
        _KINDS[key] = type(_Counts.__name__, (_Counts,), {"field": field})
    return _KINDS[key]


def with_own_sizes(batch: StaticBatch) -> StaticBatch:
    """Returns the batch with its own indices marked: ``batch`` and ``edge_index``, or, where nodes
    have types or are of two kinds, those of each."""
    schema, tensors = batch.layout.schema, batch.tensors()
    kinds: dict[str, Any] = {}
    for _, field in schema.edge_fields:
        kinds[field] = _kind_of(_Ends, schema[field].counts)
    for axis in schema.node_axes if schema.hetero else schema.axes if schema.two_sided else ():
        kinds[f"{axis.name}_batch"] = _kind_of(_OfRows, ("graph",))
    if not schema.hetero:
        kinds["batch"] = _kind_of(_OfNodes, ("graph",))
        kinds.setdefault("edge_index", _kind_of(_Ends, ("node", "node")))
        kinds |= {name: _kind_of_counts(name) for name in _count_fields(schema)}
    return batch.replace(**{name: marked(tensors[name], kind) for name, kind in kinds.items()})
