"""The plan: the few capacities that hold a whole data set, kept as a human-readable file.

The problem: a recorded CUDA graph has one shape, so every shape that training will meet must be
known before the first step, and must be the same for every run that resumes it. The idea: choose
the capacities once (:mod:`staticgraph.plans.choose_capacities`) and write them down together with
what they were chosen for. The invariant: a plan is never silently used with data other than it was
made for; its digest detects that, and the error says what changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from staticgraph.errors import PlanMismatch
from staticgraph.files import document
from staticgraph.files.document import read_document
from staticgraph.packing.packing_result import Packing
from staticgraph.plans.packings import packing_from_dict, packing_to_dict
from staticgraph.schema import Schema
from staticgraph.sizes.capacity import NODES_EDGES, Capacity
from staticgraph.sizes.histogram import SizeHistogram
from staticgraph.sizes.reserves import with_pairs
from staticgraph.sizes.whole_numbers import IntArray, whole_numbers
from staticgraph.text.how_many import how_many, how_many_of
from staticgraph.text.numeric_options import real_option, whole_option
from staticgraph.text.table import as_preformatted

FORMAT = "staticgraph.plan"
VERSION = 1
# In a histogram; the sizes of this many graphs, one by one, are 8 GiB.
MOST_GRAPHS = 1 << 29


@dataclass(frozen=True, slots=True)
class BucketPlan:
    """A few capacities and what they were chosen for.

    Attributes:
        capacities: ascending; the index in this tuple is the bucket's number.
        batch_size: graphs in every training batch except the last; None where batches are packed.
        schema: the fields of the data set, so that a runner can warm up without data.
        digest: :attr:`SizeHistogram.digest` of the data it was made for; None accepts any data.
        strategy: how the capacities were chosen.
        num_graphs: graphs in that data; 0 where the digest is None.
        maxima: the largest value of each size component, nodes and edges first.
        margin: how far the main bucket's limits lie above the mean batch, as a share of it.
        efficiency: expected real rows over physical rows of nodes, edges and graphs.
        note: for people.
        versions: names and versions of the software that made it.
        shares: of batches drawn at random, the expected share of each bucket; see
            :func:`staticgraph.plan_stream`.
        misses: the expected share of such batches that fit no bucket; None for other batches.
        packings: packs that were made once, to which graphs are assigned (``window=None``); see
            :mod:`staticgraph.plans.packings`.
        source: returns the store it was made for, while that exists, or a few of the graphs, so
            that a runner can warm up with them; in this process only.

    Raises:
        ValueError: no capacities, not ascending ones, or none that holds ``batch_size`` graphs.
    """

    capacities: tuple[Capacity, ...]
    batch_size: int | None = None
    schema: Schema | None = None
    digest: str | None = None
    strategy: str = "given"
    num_graphs: int = 0
    maxima: tuple[int, ...] = ()
    margin: float | None = None
    efficiency: tuple[float, ...] = ()
    note: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    shares: tuple[float, ...] = ()
    misses: float | None = None
    packings: tuple[Packing, ...] = field(default=(), repr=False, compare=False)
    source: Callable[[], Any] = field(default=type(None), repr=False, compare=False)

    def __getstate__(self) -> list[Any]:
        # A weak reference cannot be pickled.
        return [getattr(self, each.name) for each in fields(self)[:-1]] + [type(None)]

    def __post_init__(self) -> None:
        if not self.capacities:
            raise ValueError("a plan needs at least one capacity")
        if list(self.capacities) != sorted(set(self.capacities)):
            raise ValueError(
                f"the capacities {', '.join(map(str, self.capacities))} are not ascending and "
                "distinct: BucketPlan.of(capacities) puts them in order"
            )
        self._check_plain_values()
        if self.batch_size is not None:
            most = max(capacity.graph_limit for capacity in self.capacities)
            if most < self.batch_size:
                raise ValueError(
                    f"batch_size={self.batch_size}, but the largest bucket takes "
                    f"{how_many(most, 'graph')} (one graph is kept for padding): give a capacity "
                    f"of at least {how_many(self.batch_size + 1, 'graph')}, or a smaller batch_size"
                )

    def _check_plain_values(self) -> None:
        """Numbers become Python's; a value of another kind is refused, whoever wrote the file."""
        give = partial(object.__setattr__, self)
        if self.batch_size is not None:
            give("batch_size", whole_option("batch_size", self.batch_size, 1))
        if self.margin is not None:
            give("margin", real_option("margin", self.margin))
        give("num_graphs", whole_option("num_graphs", self.num_graphs, 0))
        give("maxima", tuple(whole_option("maxima", most, 0) for most in self.maxima))
        if self.misses is not None:
            give("misses", real_option("misses", self.misses))
        give("shares", tuple(real_option("shares", share) for share in self.shares))
        give("efficiency", tuple(real_option("efficiency", share) for share in self.efficiency))
        texts = {"strategy": self.strategy, "note": self.note, **dict(self.versions)}
        if self.digest is not None:
            texts["digest"] = self.digest
        for name, text in texts.items():
            if not isinstance(text, str):
                raise ValueError(f"{name}={text!r}: give a text")

    _repr_html_ = as_preformatted

    def __str__(self) -> str:
        """One line per bucket, and what they were chosen for."""
        batches = (
            "any number of graphs per batch"
            if self.batch_size is None
            else f"batches of {how_many(self.batch_size, 'graph')}"
        )
        filled = ", ".join(
            f"{share:.1%} of {name}"
            for share, name in zip(self.efficiency, ("nodes", "edges", "graphs"), strict=False)
        )
        lines = [
            f"{how_many(len(self.capacities), 'bucket')}, {batches}"
            + (f", expected to be real: {filled}" if filled else ""),
            *(f"bucket {number}: {each}" for number, each in enumerate(self.capacities)),
        ]
        return "\n".join([*lines, self.note] if self.note else lines)

    @property
    def has_edges(self) -> bool | None:
        """Whether any graph that it was made for has an edge; None where the data is unknown."""
        return self.maxima[1] > 0 if len(self.maxima) > 1 else None

    @classmethod
    def of(
        cls, capacities: Iterable[Capacity | tuple[int, ...]], batch_size: int | None = None
    ) -> BucketPlan:
        """A plan with given capacities, for any data; tuples are ``(nodes, edges, graphs[, M])``.

        Raises:
            TypeError: ``capacities`` is a file name, or not a list of capacities.
        """
        named = isinstance(capacities, str | Path)
        if named or hasattr(capacities, "schema") or not isinstance(capacities, Iterable):
            what = repr(str(capacities)) if named else f"a {type(capacities).__name__}"
            raise TypeError(
                f"{what} is not a plan: BucketPlan.load(path) reads one from its file, "
                "plan_buckets(store, ...) makes one"
            )
        checked = (c if isinstance(c, Capacity) else Capacity.of(c) for c in capacities)
        return cls(tuple(sorted(set(checked))), batch_size=batch_size)

    def with_bucket_for(self, sizes: ArrayLike) -> BucketPlan:
        """This plan with one more bucket, placed last, that holds each of these graphs by itself.

        The new bucket is at least as large as the previous last one in every component, so the
        numbers of the other buckets do not change.
        """
        rows = np.asarray(sizes, dtype=np.int64)
        nodes, edges, *more = rows.max(axis=0).tolist()
        last = self.capacities[-1]
        largest = max(nodes, last.max_graph_nodes)
        extra = Capacity.distinct(
            max(last.nodes, largest + last.node_reserve),
            max(last.edges, edges + last.edge_reserve),
            last.graphs,
            largest,
            [(name, max(n, m + 1)) for (name, n), m in zip(last.extra, more, strict=True)],
            last.edge_reserve,
            last.node_reserve,
        )
        return replace(self, capacities=(*self.capacities, with_pairs(extra, self.schema)))

    def check(self, source: Any) -> None:
        """Raises if this plan was made for other data.

        Args:
            source: a :class:`SizeHistogram`, a digest, or anything with ``.sizes`` ``[n, C]``.

        Raises:
            PlanMismatch: the digest differs; the message says what changed and what to do.
        """
        if self.digest is None:
            return
        if isinstance(source, str):
            if source != self.digest:
                raise PlanMismatch(
                    f"the plan was made for data with digest {self.digest}, this data has "
                    f"{source}: make a new plan with plan_buckets(store, ...)"
                )
            return
        histogram = histogram_of(source)
        if histogram.digest == self.digest:
            return
        changes = [f"digest {self.digest} then, {histogram.digest} now"]
        if self.num_graphs != histogram.num_graphs:
            changes.append(
                f"{how_many(self.num_graphs, 'graph')} then, {histogram.num_graphs:,} now"
            )
        maxima = tuple(histogram.maxima.tolist())
        for name, then, now in zip(histogram.components, self.maxima, maxima, strict=False):
            if then != now:
                changes.append(f"at most {how_many_of(then, name)} per graph then, {now:,} now")
        if len(changes) == 1:
            changes.append("as many graphs and the same maxima, but other sizes between")
        raise PlanMismatch(
            f"the plan was made for other data: {'; '.join(changes)}. Make a new plan with "
            "plan_buckets(store, ...), or drop the check with "
            "BucketPlan.of(plan.capacities, plan.batch_size)"
        )

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain values, in a sensible reading order."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "strategy": self.strategy,
            "note": self.note,
            "batch_size": self.batch_size,
            "capacities": [capacity.to_dict() for capacity in self.capacities],
            "margin": self.margin,
            "efficiency": dict(zip(("nodes", "edges", "graphs"), self.efficiency, strict=False)),
            "data": {
                "digest": self.digest,
                "num_graphs": self.num_graphs,
                "maxima": list(self.maxima),
            },
            "versions": dict(self.versions),
            "schema": None if self.schema is None else self.schema.to_dict(),
            **(
                {"stream": {"shares": [*self.shares], "misses": self.misses}} if self.shares else {}
            ),
            **({"packings": [packing_to_dict(p) for p in self.packings]} if self.packings else {}),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> BucketPlan:
        """Rebuilds a plan from the output of :meth:`to_dict`.

        Raises:
            ValueError: not a plan, another version of the format, or a missing or unknown field.
        """
        if not isinstance(values, dict):
            raise ValueError(f"not a plan: a {type(values).__name__} where an object should be")
        if values.get("format") != FORMAT:
            raise ValueError(f"not a plan: format is {values.get('format')!r}, expected {FORMAT!r}")
        if values.get("version") != VERSION:
            raise ValueError(
                f"the plan has version {values.get('version')!r} of the format, this staticgraph "
                f"reads version {VERSION}: make the plan again with `staticgraph plan --out`"
            )
        try:
            data = values["data"]
            schema, stream = values.get("schema"), values.get("stream", {})
            return cls(
                capacities=tuple(Capacity.from_dict(c) for c in values["capacities"]),
                batch_size=values["batch_size"],
                schema=None if schema is None else Schema.from_dict(schema),
                digest=data["digest"],
                strategy=values.get("strategy", "given"),
                num_graphs=data.get("num_graphs", 0),
                maxima=tuple(data.get("maxima", ())),
                margin=values.get("margin"),
                efficiency=tuple(values.get("efficiency", {}).values()),
                note=values.get("note", ""),
                versions=tuple(values.get("versions", {}).items()),
                shares=tuple(stream.get("shares", ())),
                misses=stream.get("misses"),
                packings=tuple(packing_from_dict(p) for p in values.get("packings", ())),
            )
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"the plan is incomplete or has an unknown field: {error}") from error

    def save(self, path: str | Path) -> None:
        """Writes human-readable JSON atomically, with a checksum."""
        document.save(path, self.to_dict(), indent=2)

    @classmethod
    def load(cls, path: str | Path) -> BucketPlan:
        """Reads what :meth:`save` wrote.

        Raises:
            FileNotFoundError: no such file.
            ValueError: not JSON, not a plan, another version, or changed since it was written; the
                message names the file.
        """
        return read_document(path, "a plan", cls.from_dict)


def sizes_of(source: Any) -> IntArray:
    """``[n, C]`` int64 sizes of a store, a histogram (its graphs one by one) or an array.

    Raises:
        TypeError: ``source`` is a collection of graphs without a table of sizes, or nothing that
            has sizes.
        ValueError: not a table of nodes and edges, or too many graphs to list one by one.
    """
    if isinstance(source, SizeHistogram):
        if source.num_graphs > MOST_GRAPHS:
            raise ValueError(
                f"the histogram counts {how_many(source.num_graphs, 'graph')}, and a plan draws "
                f"them one by one, at most {MOST_GRAPHS:,}: scale the counts down"
            )
        return np.repeat(source.sizes, source.counts, axis=0)
    check_is_collection(source)
    if lists_graphs(source):
        raise TypeError(
            f"a {type(source).__name__} of graphs has no table of sizes: make a store of it first, "
            "sg.GraphStore.from_pyg(graphs)"
        )
    # A store keeps the narrow table anyway; the wide one need not be built as well.
    name = "narrow_sizes" if hasattr(source, "narrow_sizes") else "sizes"
    rows = np.asarray(getattr(source, name, source))
    if rows.shape == (0,):
        rows = np.zeros((0, 2), np.int64)
    if rows.ndim != 2 or rows.shape[1] < 2:
        raise ValueError(f"sizes has shape {rows.shape}, expected [n, 2]: nodes, edges")
    return np.ascontiguousarray(whole_numbers(rows, "sizes of graphs"))


def check_is_collection(source: Any) -> None:
    """Refuses what is no sequence of graphs or sizes: a single graph, a batch, a loader.

    Raises:
        TypeError: the message says what to give instead.
    """
    if hasattr(source, "sizes"):
        return
    sequence = hasattr(source, "__len__") and hasattr(source, "__getitem__")
    if not sequence or hasattr(source, "num_nodes") or isinstance(source, Mapping | str):
        raise TypeError(
            f"a {type(source).__name__} is neither a list of graphs nor one of sizes: give the "
            "data set itself or a list of its graphs (loader.dataset, batch.to_data_list(), "
            "[data], list(generator)), a store, a histogram, or sizes [n, 2]"
        )


def lists_graphs(source: Any) -> bool:
    """Whether a source is a sequence of graphs without a table of their sizes."""
    return not hasattr(source, "sizes") and len(source) > 0 and hasattr(source[0], "num_nodes")


def histogram_of(source: Any) -> SizeHistogram:
    """The histogram of a store, an array, or a histogram itself."""
    if isinstance(source, SizeHistogram):
        return source
    return SizeHistogram.from_sizes(sizes_of(source), components_of(source))


def components_of(source: Any) -> tuple[str, ...]:
    """The names of the columns of :func:`sizes_of`."""
    if isinstance(source, SizeHistogram):
        return source.components
    schema = getattr(source, "schema", None)
    return NODES_EDGES if schema is None else schema.components
