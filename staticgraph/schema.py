"""The fields that each graph of a data set has, with their level, shape and dtype.

The schema and a capacity are enough to allocate a batch of fixed shape, and to compile a model for
it, before any graph is read. This is why a plan contains the schema. Pure data.

Rows belong to nodes, edges or graphs, or to an *axis* defined by the data set: triplets, the second
side of a pair, the nodes or edges of one type. The values of an index field are row numbers of one
of these levels, and a batch offsets them by the rows of the preceding graphs (PyG's ``__inc__``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from staticgraph.text.how_many import some

# "node", "edge", "graph", or the name of an axis.
Level = str
LEVELS: tuple[Level, ...] = ("node", "edge", "graph")
AxisKind = Literal["rows", "node", "edge"]

# The arrays that a batch has for every axis: "triplets_mask" and so on.
AXIS_ARRAYS = ("mask", "batch", "ptr")
POSITIONS = "pos"
EDGE_INDEX = "edge_index"
# The edges of each node: CSR offsets by destination, CSR offsets by source, and the permutation
# that sorts the edges by source.
POINTERS = ("row_ptr", "col_ptr", "transpose")

# How edges are ordered, by whether a schema keeps their order.
ORDERS = ("sorted by destination", "in the order of the data set")

# The attributes that PyG's ``Data`` has as None where a data set lacks them.
OPTIONAL = frozenset(
    ["x", "edge_index", "edge_weight", "edge_attr", "y", "pos", "batch", "time", "face"]
)

# The prefix of a batch's private arrays. No field's name may start with it, so a private array
# cannot be mistaken for a field.
PRIVATE = "_"
# The number of real rows of each component, ``[3 + axes]`` int64.
COUNTS = f"{PRIVATE}counts"

# Names that a batch reserves: arrays, sizes, attributes and methods, all in one list. A data set
# with a field of such a name is refused, since the field would be inaccessible, or a layer or
# kernel would read it in place of the batch's own value.
_ARRAYS = """batch ptr edge_index row_ptr col_ptr transpose graph_ids
    node_mask edge_mask graph_mask"""
_SIZES = """num_nodes num_edges num_graphs batch_size num_real_nodes num_real_edges num_real_graphs
    num_features num_node_features num_edge_features real real_counts
    real_nodes real_edges real_graphs"""
_IS = """bucket capacity layout device buffer levels node_types edge_types
    node_masks edge_masks"""
_DOES = """argument blank clone cpu cuda first_places get keys level_of mask_of metadata of
    pin_memory release replace self tensors to to_data_list unpad with_tensors without_pointers"""
RESERVED = frozenset(f"{_ARRAYS} {_SIZES} {_IS} {_DOES}".split())
# Names that ``batch["type"]`` reserves, for one type of nodes or edges.
_OF_TYPE = """num_nodes num_edges num_features num_node_features num_edge_features keys values items
    get pop popitem update setdefault clear to_dict"""
RESERVED_OF_TYPE = frozenset({*AXIS_ARRAYS, *_OF_TYPE.split()})
# ``batch.x_dict`` collects the ``x`` of every type.
DICT_SUFFIX = "_dict"


@dataclass(frozen=True, slots=True)
class Field:
    """One attribute of every graph, such as ``x`` or ``y``.

    Attributes:
        name: the attribute's name in PyG.
        level: whether a row belongs to a node, an edge or a graph, or the name of an axis.
        shape: the shape of one row without the row dimension, ``()`` for one scalar per row.
        dtype: the NumPy name of the dtype that a model sees.
        rows: rows per graph; 1 except for graph-level attributes with several rows, which PyG
            concatenates (``[G * rows, *shape]``).
        has_nan: whether any value is NaN, which in a target means "no label".
        cat_dim: the dimension of the rows in the tensor, PyG's ``__cat_dim__``: 1 for an index of
            shape ``[2, rows]``. None for an attribute that PyG stacks instead of concatenating.
        counts: the levels that the values index, one per scalar of a row or one for all of them;
            ``""`` for a scalar that is not an index. Empty for a field without indices.
        classes: the names of the values 0, 1, ... of a target, if the data has names for them;
            otherwise empty.
        pad: the ``rows * width`` numbers of one padding row (of one graph's rows); empty for the
            values of a real row.
    """

    name: str
    level: Level
    shape: tuple[int, ...]
    dtype: str
    rows: int = 1
    has_nan: bool = False
    cat_dim: int | None = 0
    counts: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    pad: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        """The number of scalars in one row."""
        return math.prod(self.shape)

    @property
    def is_index(self) -> bool:
        """Whether filling a batch with this field takes more than copying rows."""
        return len(self.counts) > 0 or self.cat_dim not in (0, None)

    @property
    def layout(self) -> tuple[Any, ...]:
        """The attributes that determine the shape and meaning of the field's array in a batch."""
        return (
            self.name,
            self.level,
            self.shape,
            self.dtype,
            self.rows,
            self.cat_dim,
            self.counts,
        )

    def physical(self, rows: int) -> tuple[int, ...]:
        """The shape of the array that holds ``rows`` rows."""
        dim = self.cat_dim or 0
        return (*self.shape[:dim], rows, *self.shape[dim:])

    def describe(self) -> str:
        """A description such as ``float32 [9] per node``, for error messages and tables."""
        dims = ", ".join(map(str, (self.rows, *self.shape) if self.rows > 1 else self.shape))
        named = f" ({some(self.classes)})" if self.classes else ""
        return f"{self.dtype} [{dims}] per {self.level}{named}"

    def to_dict(self) -> dict[str, Any]:
        """The field as plain values, for JSON."""
        rare = ("classes", "pad")
        return {k: v for k, v in asdict(self).items() if k not in rare or v}


def read_path(batch: Any, path: str) -> Any:
    """Returns what a batch of any class has under a name; dots lead to attributes of attributes.

    Raises:
        ValueError: there is nothing of this name.
    """
    value = batch
    for name in path.split("."):
        try:
            by_key = isinstance(value, Mapping) or hasattr(value, "keys")
            value = (
                value[name] if by_key and hasattr(value, "__getitem__") else getattr(value, name)
            )
        except (AttributeError, KeyError, IndexError, TypeError):
            raise ValueError(f"a {type(batch).__name__} has no {path!r}") from None
    return value


def read_rows(batch: Any, path: str, dense: tuple[str, ...]) -> Any:
    """Returns what a batch has under a name, flat where nodes are laid out by a mask.

    Args:
        batch: of any class.
        path: the name.
        dense: as :attr:`Schema.dense`; of the mask itself, the graph of each node is returned.

    Raises:
        ValueError: there is nothing of this name.
    """
    value = read_path(batch, path)
    if path not in dense:
        return value
    mask = read_path(batch, dense[0])
    return mask.nonzero()[:, 0] if path == dense[0] else value[mask]


def attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the items or attributes of an object, those in slots included."""
    if hasattr(value, "stores"):  # PyG's: to ask a HeteroData for an attribute adds a node type
        yield from (item for store in value.stores for item in store.items())
        return
    if is_read_by_key(value):
        yield from ((name, value[name]) for name in value.keys())  # noqa: SIM118
        return
    names = [*getattr(value, "_fields", ()), *getattr(value, "__dict__", {})]
    for kind in type(value).__mro__:
        slots = getattr(kind, "__slots__", ())
        names += [slots] if isinstance(slots, str) else slots
    for name in dict.fromkeys(names):
        if name != "__weakref__" and hasattr(value, name):
            yield name, getattr(value, name)


def is_read_by_key(value: Any) -> bool:
    """Whether an object is read and written by key, as mappings and a ``TensorDict`` are: its class
    is, since an instance may hand names on to another object."""
    return callable(getattr(type(value), "keys", None)) and hasattr(value, "__setitem__")


def dtype_name(value: Any) -> str:
    """Returns the name of a tensor's or array's dtype: ``float32``."""
    return str(value.dtype).removeprefix("torch.")


def parts_of_pad(value: Any, width: int, name: str) -> tuple[float, ...]:
    """Returns the numbers of one padding row, flat.

    Raises:
        ValueError: they are neither one number nor as many as a row has.
    """
    value = value.tolist() if hasattr(value, "tolist") else value
    flat = [value]
    while any(isinstance(item, list | tuple) for item in flat):
        flat = [part for item in flat for part in item]
    if len(flat) not in (1, width):
        raise ValueError(
            f"pad[{name!r}] has {len(flat)} numbers, and a padding row of it {width}: give a "
            "number, or a row"
        )
    return tuple(flat * width if len(flat) == 1 else flat)


@dataclass(frozen=True, slots=True)
class Axis:
    """A kind of row that the data set defines; each such row belongs to one graph.

    Attributes:
        name: its name as a level and in array names: ``paper``, ``author__writes__paper``.
        kind: ``node`` or ``edge`` for the nodes or edges of one type, ``rows`` for any other rows.
        type: the type in PyG: ``("paper",)`` or ``("author", "writes", "paper")``; empty for rows.
    """

    name: str
    kind: AxisKind = "rows"
    type: tuple[str, ...] = ()

    @property
    def key(self) -> Any:
        """The type's key in PyG: a string for nodes, a triple for edges; else the name."""
        return self.type if self.kind == "edge" else self.type[0] if self.type else self.name


@dataclass(frozen=True, slots=True)
class Schema:
    """The fields of a data set, in order, without those that every batch has.

    A schema with axes of kind ``node`` describes a heterogeneous data set: its batches have
    ``edge_index`` and ``batch`` only per type.

    Attributes:
        fields: the fields, in order.
        axes: the kinds of rows that the data set defines.
        molecules: whether nodes and edges are atoms and bonds with the features that this library
            computes from a SMILES string (OGB's), so that a new graph may be given as SMILES.
        keep_order: whether edges keep the order of the data set instead of being sorted by
            destination; batches then have no row pointers, and padding edges come in pairs.
        names: for batches of a user's own class, its name of every array, with the array's name in
            a :class:`StaticBatch`; dots lead to attributes of attributes (``graph.x``).
        sizes: that class's whole numbers that count rows, each with its level.
        dense: of a class that lays out nodes as ``[graphs, most nodes, ...]``, its name of the mask
            of real nodes, and its names of such tensors.
        like: an object of that class without tensors, if models are given such objects.

    Raises:
        ValueError: a field appears twice, or has a name that batches reserve.
    """

    fields: tuple[Field, ...]
    axes: tuple[Axis, ...] = ()
    molecules: bool = False
    keep_order: bool = False
    names: tuple[tuple[str, str], ...] = ()
    sizes: tuple[tuple[str, Level], ...] = ()
    like: Any = dataclasses.field(default=None, repr=False, compare=False)
    dense: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [field.name for field in self.fields]
        if len(set(names)) < len(names):
            raise ValueError(f"a field appears twice in {names}")
        self._check_axes(set(names))
        taken = sorted(name for name in names if self._is_taken(name))
        if taken == [EDGE_INDEX] and self._joins_two():
            return
        if taken:
            raise ValueError(
                f"{', '.join(map(repr, taken))}: every batch has an attribute of this name, or "
                "keeps such names for itself; rename the field, or leave it out with "
                "exclude=[...]"
            )

    def _check_axes(self, names: set[str]) -> None:
        """Refuses an axis with an array name that is reserved, a field's or another axis's."""
        for axis in self.axes:
            arrays = {f"{axis.name}_{part}" for part in AXIS_ARRAYS}
            taken = sorted(name for name in arrays if name in names or self._is_taken(name))
            if taken:
                remedy = (
                    f"rename the type {axis.key!r}"
                    if axis.type
                    else "name these rows otherwise with levels={field: 'rows'} for the field that "
                    "has them, or rename that field"
                )
                clash = "appears twice, being a field" if taken[0] in names else "every batch has"
                raise ValueError(
                    f"{axis.name!r} is the name of rows that belong to neither nodes, edges nor "
                    f"graphs, so a batch has {taken[0]!r} for them, a name that {clash}: {remedy}"
                )
            names |= arrays

    def lets(self, name: str) -> bool:
        """Whether ``name`` is free for an additional array of a batch."""
        arrays = [f"{axis.name}_{part}" for axis in self.axes for part in AXIS_ARRAYS]
        return not self._is_taken(name) and name not in arrays

    def _is_taken(self, name: str) -> bool:
        """Whether a batch reserves the name, so that no field or axis array may have it."""
        if name in RESERVED or name.startswith(PRIVATE):
            return True
        for axis in self.axes:
            if axis.type and name.startswith(f"{axis.name}."):
                short = name.removeprefix(f"{axis.name}.")
                return short in RESERVED_OF_TYPE or short.startswith(PRIVATE)
        return self.hetero and name.endswith(DICT_SUFFIX)

    def _joins_two(self) -> bool:
        """Whether ``edge_index`` is a valid field that joins two kinds of rows."""
        field = self[EDGE_INDEX]
        ends = len(field.counts) == 2 and all(field.counts)
        return not self.hetero and (field.level, field.shape, ends) == ("edge", (2,), True)

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __contains__(self, name: object) -> bool:
        return any(field.name == name for field in self.fields)

    def __getitem__(self, name: str) -> Field:
        for field in self.fields:
            if field.name == name:
                return field
        raise KeyError(f"no field {name!r}; there are {', '.join(f.name for f in self.fields)}")

    @property
    def two_sided(self) -> bool:
        """Whether ``edge_index`` leads from rows of one level to rows of another, as in a bipartite
        graph; it is then a field, whose ``counts`` name the two levels."""
        return EDGE_INDEX in self

    @property
    def edge_fields(self) -> tuple[tuple[Level, str], ...]:
        """The edge levels whose endpoints are stored in a field, each with the field's name: one
        per edge type, or one for the edges of a bipartite graph. Empty if ``edge_index`` joins
        nodes of one kind."""
        if self.two_sided:
            return (("edge", EDGE_INDEX),)
        return tuple((axis.name, f"{axis.name}.{EDGE_INDEX}") for axis in self.edge_axes)

    @property
    def node_axes(self) -> tuple[Axis, ...]:
        """The node types of a heterogeneous data set; empty for any other."""
        return tuple(axis for axis in self.axes if axis.kind == "node")

    @property
    def edge_axes(self) -> tuple[Axis, ...]:
        """The edge types of a heterogeneous data set; empty for any other."""
        return tuple(axis for axis in self.axes if axis.kind == "edge")

    @property
    def hetero(self) -> bool:
        """Whether nodes have types, as in a heterogeneous data set."""
        # Not bool(), which torch 2.11 cannot trace on a tuple; a trace follows every call.
        return len(self.axes) > 0 and len(self.node_axes) > 0

    @property
    def has_vectors(self) -> bool:
        """Whether nodes have positions or another float field of three numbers, whose differences
        along padding edges must not be zero: these join distinct padding nodes."""
        return self.positions_of("node") is not None or any(
            (field.level, field.shape) == ("node", (3,)) and field.dtype.startswith("float")
            for field in self
        )

    @property
    def ends(self) -> tuple[str, ...]:
        """The fields with the two nodes of every edge, where a batch of a user's own class has them
        as one index or two (or one, of edges that belong to a node); empty otherwise."""
        names = [x.name for x in self if x.level == "edge" and x.counts == ("node",)]
        return (names[0], names[-1]) if names else ()

    @property
    def one_kind(self) -> bool:
        """Whether ``edge_index`` joins nodes of one kind, so that it is not a field."""
        return not (self.hetero or self.two_sided)

    @property
    def has_pointers(self) -> bool:
        """Whether batches can have row pointers: edges are of one kind, sorted by destination."""
        return self.one_kind and not self.keep_order

    @property
    def components(self) -> tuple[str, ...]:
        """The names of the columns of a size: nodes, edges, and the axes."""
        return ("nodes", "edges", *(axis.name for axis in self.axes))

    @property
    def counts_edges(self) -> bool:
        """Whether any field indexes edges, so that a batch must always have a padding edge."""
        return any("edge" in field.counts for field in self.fields)

    def positions_of(self, level: Level) -> str | None:
        """The name of the floating-point field with the positions of a level's nodes, or None:
        ``pos``, or ``type.pos`` for a node type."""
        name = POSITIONS if level == "node" else f"{level}.{POSITIONS}"
        if name not in self:
            return None
        field = self[name]
        floating = field.level == level and field.width > 0 and field.dtype.startswith("float")
        return name if floating else None

    def axis(self, name: str) -> Axis | None:
        """The axis with this name, or None."""
        return next((axis for axis in self.axes if axis.name == name), None)

    def to_dict(self) -> dict[str, Any]:
        """The schema as plain values, for JSON."""
        values: dict[str, Any] = {"fields": [field.to_dict() for field in self.fields]}
        for flag in ("molecules", "keep_order"):
            if getattr(self, flag):
                values[flag] = True
        if self.axes:
            values["axes"] = [asdict(axis) for axis in self.axes]
        for pairs in ("names", "sizes"):
            if getattr(self, pairs):
                values[pairs] = dict(getattr(self, pairs))
        if self.dense:
            values["dense"] = self.dense
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Schema:
        """Restores a schema from the output of :meth:`to_dict`."""
        fields = (
            Field(
                **{
                    **field,
                    "shape": tuple(field["shape"]),
                    "counts": tuple(field.get("counts", ())),
                    "classes": tuple(field.get("classes", ())),
                    "pad": tuple(field.get("pad", ())),
                }
            )
            for field in values["fields"]
        )
        axes = (Axis(**{**axis, "type": tuple(axis["type"])}) for axis in values.get("axes", ()))
        return cls(
            tuple(fields),
            tuple(axes),
            bool(values.get("molecules", False)),
            bool(values.get("keep_order", False)),
            tuple(dict(values.get("names", {})).items()),
            tuple(dict(values.get("sizes", {})).items()),
            dense=tuple(values.get("dense", ())),
        )

    @classmethod
    def of_batch(
        cls,
        example: Any,
        *,
        node: Iterable[str] = (),
        edge: Iterable[str] = (),
        graph: Iterable[str] = (),
        index: Mapping[str, str | tuple[str, ...]] | None = None,
        pad: Mapping[str, Any] | None = None,
        dense: Iterable[str] = (),
        mask: str = "mask",
        **rows: Iterable[str],
    ) -> Schema:
        """The fields of a batch of any class, from one batch and what its owner says of it.

        Args:
            example: a mapping, dataclass, ``TensorDict`` or any other object with tensors. Names
                with dots lead to attributes of attributes (``graph.x``).
            node, edge, graph: the tensors with a row per node, edge or graph; a tensor of graphs
                may have several rows per graph (``[3 * G, 3]``).
            index: the tensors whose values are row numbers, each with the level that they count:
                ``{"edge_index": "node", "batch": "graph", "rev_edge_index": "edge"}``. Its own rows
                are of the level that lists it or, if none does, of the only level with as many
                rows. The index from nodes to graphs is what tells the graphs apart; without any,
                all rows are one graph's.
            pad: what the padding rows of a tensor hold instead of a real row's values: a number, or
                the rows of one graph (``{"cell": torch.eye(3)}``).
            dense: the tensors ``[graphs, most nodes, ...]``, with a row per place of a node.
            mask: the tensor ``[graphs, most nodes]`` bool, True where there is a node.
            **rows: the tensors of any other kind of row, by its name: ``triplet=("angle",)``.

        Raises:
            ValueError: a name is missing in the example, or the level of an index is ambiguous.
        """
        levels: dict[Level, tuple[str, ...]] = {
            "node": tuple(node),
            "edge": tuple(edge),
            "graph": tuple(graph),
            **{level: tuple(names) for level, names in rows.items()},
        }
        index, laid_out = dict(index or {}), tuple(dense)
        if laid_out:
            index[mask], laid_out = "graph", (mask, *laid_out)
            levels["node"] += laid_out[1:]
        return _Example(example, levels, index, dict(pad or {}), laid_out).schema()


class _Example:
    """A batch of a user's own class, from which a schema is learned; see :meth:`Schema.of_batch`.

    Args:
        batch: the batch.
        levels: the names of the tensors of each level.
        index: what the values of each index count.
        pad: the values of padding rows.
        dense: the mask and the tensors that are laid out by it.

    Raises:
        ValueError: a name is missing in the batch.
    """

    def __init__(
        self,
        batch: Any,
        levels: Mapping[Level, tuple[str, ...]],
        index: dict[str, str | tuple[str, ...]],
        pad: dict[str, Any],
        dense: tuple[str, ...],
    ) -> None:
        self._dense = dense
        self._batch, self._levels, self._index, self._pad = batch, levels, index, pad
        names = [name for listed in levels.values() for name in listed]
        self._values = {
            name: _checked(name, read_rows(batch, name, dense), name in index)
            for name in dict.fromkeys([*names, *index])
        }
        unknown = [name for name in pad if name not in self._values]
        if unknown:
            raise ValueError(f"pad= names {unknown[0]!r}, which is of no level: list it in one")
        self._listed = {name: level for level, listed in levels.items() for name in listed}
        self._rows = {
            level: len(self._values[name])
            for level, listed in levels.items()
            for name in listed
            if level != "graph" and name not in index
        }
        for name, value in self._values.items():  # an index whose shape says what its rows are
            if _tail(name) == EDGE_INDEX and name not in self._listed:
                self._rows.setdefault("edge", value.shape[-1])
        self._rows["graph"] = self._graphs()

    @property
    def _has_ptr(self) -> bool:
        """Whether the batch says where the nodes of each graph begin, as PyG's does."""
        try:
            return "ptr" not in self._listed and hasattr(read_path(self._batch, "ptr"), "shape")
        except ValueError:
            return False

    def _graphs(self) -> int:
        """The number of graphs: by their index, else one."""
        if self._has_ptr:
            return len(read_path(self._batch, "ptr")) - 1
        owners = [self._values[name] for name, counted in self._index.items() if counted == "graph"]
        return max((int(value.max()) + 1 for value in owners if len(value)), default=1)

    def schema(self) -> Schema:
        """Returns the schema."""
        fields, names = [], {}
        placed = {name: self._level_of(name) for name in self._values}
        for name, (level, dim) in placed.items():
            array = self._array(name, level)
            names[name] = array
            owner = name in self._index and array in ("batch", f"{level}_batch")
            if owner or array == EDGE_INDEX:
                continue
            fields.append(self._field(name, array, level, dim))
        if self._has_ptr:
            names["ptr"] = "ptr"
        twice = {array for array in names.values() if [*names.values()].count(array) > 1}
        if twice:
            raise ValueError(f"two tensors of the batch would be called {twice.pop()!r}")
        axes = tuple(Axis(level) for level in self._levels if level not in LEVELS)
        return Schema(
            tuple(fields),
            axes,
            keep_order=True,
            names=tuple(names.items()),
            sizes=self._sizes(),
            like=self._batch,
            dense=self._dense,
        )

    def _level_of(self, name: str) -> tuple[Level, int]:
        """The level of a tensor's rows, and the dimension that they are along."""
        shape = tuple(self._values[name].shape)
        level = self._listed.get(name)
        if level is None:
            if _tail(name) == EDGE_INDEX:
                return "edge", len(shape) - 1
            fits = [
                candidate
                for candidate, rows in self._rows.items()
                if rows in (shape[:1] + shape[-1:])
            ]
            if "node" in fits and self._index[name] == "graph" and self._rows["node"]:
                fits = ["node"]
            if len(fits) != 1:
                raise ValueError(
                    f"the index {name!r} of shape {list(shape)} has the rows of "
                    f"{' or '.join(fits) or 'no level'}: list it in node=, edge=, graph= or the "
                    "name of its rows"
                )
            level = fits[0]
        rows = self._rows.get(level)
        if rows is None and shape[1:] == (2,) != shape[:1]:
            rows = shape[0]  # pairs, of rows that nothing else has
        along = name in self._index and len(shape) > 1 and shape[0] != rows
        return level, len(shape) - 1 if along else 0

    def _array(self, name: str, level: Level) -> str:
        """The name of a tensor in a :class:`StaticBatch`."""
        counted = self._index.get(name)
        if counted == "graph" and level not in ("graph", "edge"):
            return "batch" if level == "node" else f"{level}_batch"
        if _tail(name) == EDGE_INDEX and (counted != "node" or level != "edge"):
            raise ValueError(
                f"{name!r} counts {counted} along {level}s; edges join nodes of one kind: give an "
                "index of another kind another name"
            )
        return _tail(name)

    def _field(self, name: str, array: str, level: Level, dim: int) -> Field:
        value, counted = self._values[name], self._index.get(name, ())
        rows = 1
        if level == "graph":
            rows, more = divmod(len(value), self._rows["graph"])
            if more or not rows:
                raise ValueError(
                    f"{name!r} has {len(value)} rows, and the batch {self._rows['graph']} graphs: "
                    "it has no whole number of rows per graph"
                )
        elif value.shape[dim] != self._rows.get(level, value.shape[dim]):
            raise ValueError(
                f"{name!r} has {value.shape[dim]} rows, and the batch {self._rows[level]} of level "
                f"{level}"
            )
        shape = tuple(int(size) for place, size in enumerate(value.shape) if place != dim)
        dtype = dtype_name(value)
        pad: tuple[float, ...] = ()
        if name in self._pad:
            pad = parts_of_pad(self._pad[name], rows * math.prod(shape), name)
        return Field(
            array,
            level,
            shape,
            dtype,
            rows,
            dtype.startswith("float") and bool((value != value).any()),
            dim,
            (counted,) if isinstance(counted, str) else tuple(counted),
            pad=pad,
        )

    def _sizes(self) -> tuple[tuple[str, Level], ...]:
        """The batch's whole numbers that are the number of rows of one level."""
        counts = {rows: level for level, rows in self._rows.items()}  # graphs come last
        return tuple(
            (name, counts[value])
            for name, value in attributes_of(self._batch)
            if type(value) is int and value > 1 and value in counts
        )


def _checked(name: str, value: Any, is_index: bool) -> Any:
    """Returns a tensor or array that can be a field, or an index of one.

    Raises:
        ValueError: it is something else: a list, a number, sparse, of a dtype that NumPy lacks.
    """
    kind = np.sctypeDict.get(dtype_name(value)) if getattr(value, "shape", ()) else None
    sparse = "sparse" in str(getattr(value, "layout", ""))
    if kind is None or sparse or (is_index and not issubclass(kind, np.integer)):
        raise ValueError(
            f"{name!r} is a {type(value).__name__} ({getattr(value, 'dtype', 'no tensor')}); a "
            "batch has dense tensors with a row per node, edge or graph, of a dtype that NumPy "
            "has, and indices of whole numbers: give it so (bfloat16 as float32), or leave it out"
        )
    return value


def _tail(path: str) -> str:
    """The name of an array: the last part of a path, without leading underscores."""
    return path.rsplit(".", 1)[-1].lstrip(PRIVATE)
