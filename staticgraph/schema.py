"""The fields that each graph of a data set has, with their level, shape and dtype.

The schema and a capacity are enough to allocate a batch of fixed shape, and to compile a model for
it, before any graph is read. This is why a plan contains the schema. Pure data.

Rows belong to nodes, edges or graphs, or to an *axis* defined by the data set: triplets, the second
side of a pair, the nodes or edges of one type. The values of an index field are row numbers of one
of these levels, and a batch offsets them by the rows of the preceding graphs (PyG's ``__inc__``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from staticgraph.text.some import some

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
_DOES = """argument blank clone cpu cuda first_places get keys level_of mask_of metadata of release
    replace tensors to to_data_list unpad with_tensors without_pointers"""
RESERVED = frozenset(f"{_ARRAYS} {_SIZES} {_IS} {_DOES}".split())
# Names that ``batch["type"]`` reserves, for one type of nodes or edges.
RESERVED_OF_TYPE = frozenset({*AXIS_ARRAYS, "num_nodes", "num_edges", "keys"})
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
        at = self.cat_dim or 0
        return (*self.shape[:at], rows, *self.shape[at:])

    def describe(self) -> str:
        """A description such as ``float32 [9] per node``, for error messages and tables."""
        dims = ", ".join(map(str, (self.rows, *self.shape) if self.rows > 1 else self.shape))
        named = f" ({some(self.classes)})" if self.classes else ""
        return f"{self.dtype} [{dims}] per {self.level}{named}"

    def to_dict(self) -> dict[str, Any]:
        """The field as plain values, for JSON."""
        values = asdict(self)
        return values if self.classes else {k: v for k, v in values.items() if k != "classes"}


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

    Raises:
        ValueError: a field appears twice, or has a name that batches reserve.
    """

    fields: tuple[Field, ...]
    axes: tuple[Axis, ...] = ()
    molecules: bool = False
    keep_order: bool = False

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
            own = {f"{axis.name}_{part}" for part in AXIS_ARRAYS}
            taken = sorted(name for name in own if name in names or self._is_taken(name))
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
            names |= own

    def lets(self, name: str) -> bool:
        """Whether ``name`` is free for an additional array of a batch."""
        own = [f"{axis.name}_{part}" for axis in self.axes for part in AXIS_ARRAYS]
        return not self._is_taken(name) and name not in own

    def _is_taken(self, name: str) -> bool:
        """Whether a batch reserves the name, so that no field or axis array may have it."""
        if name in RESERVED or name.startswith(PRIVATE):
            return True
        for axis in self.axes:
            if axis.type and name.startswith(f"{axis.name}."):
                own = name.removeprefix(f"{axis.name}.")
                return own in RESERVED_OF_TYPE or own.startswith(PRIVATE)
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
        return len(self.node_axes) > 0  # not bool(): torch 2.11 cannot trace it on a tuple

    @property
    def has_vectors(self) -> bool:
        """Whether nodes have positions or another float field of three numbers, whose differences
        along padding edges must not be zero: these join distinct padding nodes."""
        return self.positions_of("node") is not None or any(
            (field.level, field.shape) == ("node", (3,)) and field.dtype.startswith("float")
            for field in self
        )

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
                }
            )
            for field in values["fields"]
        )
        axes = (Axis(**{**axis, "type": tuple(axis["type"])}) for axis in values.get("axes", ()))
        flags = (bool(values.get(flag, False)) for flag in ("molecules", "keep_order"))
        return cls(tuple(fields), tuple(axes), *flags)
