"""The state of one captured graph while it is rewritten.

It knows which arrays are the batch's own, inserts new calls, and records what was done.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from staticgraph.internals.dispatch import tree_leaves
from staticgraph.internals.fakes import FakeTensorMode
from staticgraph.internals.tracing import ConstantSource
from staticgraph.kernels.edges import Edges, order_edges
from staticgraph.nn.context.leaf_calls import batch_facts
from staticgraph.rewrites.captured_graph.canonical_ops import (
    SELECT,
    Call,
    dtype,
    is_call,
    shape,
    tensor,
    under_shape,
    value,
)
from staticgraph.rewrites.captured_graph.user_code import differentiated, has_line, line_of


class Rewritten(NamedTuple):
    """One place of a model that was rewritten, or nearly was.

    Attributes:
        rewrite: the name of the rewrite, which is that of its file.
        line: the line in the user's code; see
            :func:`staticgraph.rewrites.captured_graph.user_code.line_of`.
        layer: the module's path, ``""`` in the forward of the model itself.
        reason: the single reason why it was not rewritten; None if it was.
        computes: what a message computes, in the names of the captured graph.
    """

    rewrite: str
    line: str
    layer: str
    reason: str | None = None
    computes: str = ""

    def __str__(self) -> str:
        where = f"{self.layer or 'the model'}, {self.line}"
        return f"{self.rewrite}: {where}" + ("" if self.reason is None else f": {self.reason}")


class EdgeSet(NamedTuple):
    """Edges that a model makes, or reads from a field: two indices of equal length.

    Attributes:
        source, target: the keys of both indices (:func:`index_key`).
        sources: how many rows the first one gathers from.
        nodes: rows that are gathered from, and reduced to.
        rows: how many edges there are.
        against: whether these are the batch's own, read against their direction: only what is
            reduced so is rewritten then.
    """

    source: Any
    target: Any
    sources: int
    nodes: int
    rows: int
    against: bool


def index_key(node: Call) -> Any:
    """What equal indices of a graph share: the node that computes it, or the rows of a matrix
    that it selects."""
    node = under_shape(node)
    if is_call(node, SELECT) and node.args[1] == 0 and isinstance(node.args[2], int):
        matrix, _, row = cast(tuple[Any, int, int], node.args)
        rows = shape(matrix)
        if rows is not None:
            return under_shape(matrix), row % rows[0]
    return node


class RewriteTarget(NamedTuple):
    """What runs the rewritten graph.

    Attributes:
        device: ``cpu`` or ``cuda``.
        compiled: whether Inductor compiles it; otherwise it runs operation by operation.
    """

    device: str
    compiled: bool


@dataclass(eq=False)
class Captured:
    """A graph and what is known about it.

    Every call that a rewrite inserts is run on the example values of its operands, and stands for
    the old node only if both results agree (:meth:`replace`): the condition that all rewrites
    share.

    Attributes:
        module: the torch.fx module, changed in place.
        target: what runs it.
        done: places that were rewritten.
        missed: places that nearly were, by node.
        folded: gathers of small tables, and the operands of an equivalent single lookup.
        over: edges of the model's own that are rewritten now, in place of the batch's.
        refused: whether the graph must run unchanged.
        autocast: the arguments of ``torch.autocast`` in most of the graph; None without it.
        fake_mode: the fake mode of a dry run; None elsewhere.
    """

    module: GraphModule
    target: RewriteTarget
    fake_mode: FakeTensorMode | None = None
    done: list[Rewritten] = field(default_factory=list)
    missed: dict[Call, Rewritten] = field(default_factory=dict)
    folded: dict[Call, tuple[Call, Call | None, Call]] = field(default_factory=dict)
    over: EdgeSet | None = None
    refused: bool = False
    autocast: tuple[Any, ...] | None = None
    _shared: dict[Any, Call] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._mode: Any = nullcontext()
        self._trains = False
        self._stated: Call | None = None
        for node in self.graph.nodes:
            if is_call(node, batch_facts):
                self._stated = node
            example = tensor(node)
            self._mode = getattr(example, "fake_mode", self._mode)
            if example is not None and node.op.startswith("call"):
                self._trains |= example.requires_grad
        self.differentiated: set[Call] = differentiated(self.graph)

    @property
    def facts(self) -> dict[str, Call]:
        """The batch's own arrays by name; empty if it has none that layers read."""
        return {} if self._stated is None else self._stated.kwargs

    @property
    def has_edges(self) -> bool:
        """Whether it is known which edges messages are over."""
        return bool(self.facts) or self.over is not None

    @contextmanager
    def reading_over(self, edges: EdgeSet) -> Iterator[None]:
        """A ``with`` block in which edges of the model's own stand for the batch's."""
        self.over = edges
        yield
        self.over = None

    def look_again(self) -> None:
        """Updates :attr:`differentiated` for nodes inserted since the last call."""
        if self.differentiated:
            self.differentiated = differentiated(self.graph)

    @property
    def graph(self) -> torch.fx.Graph:
        """The graph itself."""
        return self.module.graph

    # ------------------------------------------------------------------ what an index is

    def index(self, node: Any) -> str | None:
        """Which of the batch's own indices a node is: ``src``, ``dst`` or ``batch``; else None.

        While edges of the model's own are rewritten, ``src`` and ``dst`` are theirs.
        """
        node = under_shape(node)
        if not isinstance(node, Node):
            return None
        if self.facts and node is self.facts["batch"]:
            return "batch"
        if self.over is not None:
            ends = {self.over.source: "src", self.over.target: "dst"}
            return ends.get(index_key(node))
        if not self.facts:
            return None
        if not is_call(node, SELECT) or under_shape(node.args[0]) is not self.facts["edge_index"]:
            return None
        dim, place = cast(tuple[Any, int], node.args[1:])
        return ("src", "dst")[place % 2] if dim == 0 and place in (0, 1, -1, -2) else None

    def end(self, place: int) -> Call:
        """The node of the sources (0) or destinations (1)."""
        if self.over is None:
            key = self.facts["edge_index"], place
        else:
            key = (self.over.source, self.over.target)[place]
        return self.once(("end", key), SELECT, key[0], 0, key[1]) if type(key) is tuple else key

    @property
    def all_edges(self) -> Edges:
        """The batch's edges, or those of the model's own, as operators over neighbours take
        them."""
        ends: Any = (self.end(0), self.end(1))
        if self.over is not None:
            order = self.once(("order", self.over), order_edges, *ends, *self.over[2:4])
            places = range(len(Edges._fields) - 2)
            each = (self.once(("order", self.over, n), operator.getitem, order, n) for n in places)
            return Edges(*ends, *each)
        return Edges(*ends, *(cast(Any, self.facts[name]) for name in Edges._fields[2:]))

    @property
    def nodes(self) -> int:
        """``N``: nodes that edges lead to."""
        if self.over is not None:
            return self.over.nodes
        fake = tensor(self.facts["batch"])
        assert fake is not None
        return fake.size(0)

    def nodes_at(self, end: str | None) -> int:
        """How many nodes there are at an end of the edges; -1 for anything but ``src`` or
        ``dst``."""
        if end == "src" and self.over is not None:
            return self.over.sources
        return self.nodes if end in ("src", "dst") else -1

    @property
    def edges(self) -> int:
        """``E``."""
        if self.over is not None:
            return self.over.rows
        fake = tensor(self.facts["edge_index"])
        assert fake is not None
        return fake.size(1)

    @property
    def graphs(self) -> int:
        """``G``."""
        fake = tensor(self.facts["graph_mask"])
        assert fake is not None
        return fake.size(0)

    def calls(self, *targets: Any) -> Iterator[Call]:
        """The calls of these functions that something reads, in order; the graph may be changed
        meanwhile."""
        for node in list(self.graph.nodes):
            if is_call(node, *targets) and node.users:
                yield node

    # ------------------------------------------------------------------ new calls

    def shared(self, key: Any, insert: Callable[[], Call]) -> Call:
        """The call that several places read: ``insert()`` at the first request, and again if it
        was dropped as unread since."""
        if key not in self._shared or self._shared[key]._erased:
            self._shared[key] = insert()
        return self._shared[key]

    def once(self, key: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
        """A call at the head of the graph, which several places read."""

        def insert() -> Call:
            """Inserts the call after the placeholders and its operands."""
            operands = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Node)]
            nodes = self.graph.nodes
            *_, last = (node for node in nodes if node.op == "placeholder" or node in operands)
            with self.graph.inserting_after(last):
                return self._call(function, args, kwargs)

        return self.shared(key, insert)

    def before(
        self,
        anchor: Call,
        function: Callable[..., Any],
        *args: Any,
        like: Call | None = None,
        **kwargs: Any,
    ) -> Call:
        """Inserts a call right before ``anchor``; its place in the user's code is that of ``like``,
        by default the anchor's."""
        assert not anchor._erased
        with self.graph.inserting_before(anchor):
            call = self._call(function, args, kwargs)
        origin: Any = anchor if like is None else like
        call.meta.update({key: origin.meta[key] for key in _KEPT if key in origin.meta})
        call.meta["inserted"] = True
        return call

    def _call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Call:
        call = self.graph.call_function(function, args, kwargs)
        try:
            call.meta["example_value"] = self._example(function, args, kwargs)
        except Exception as error:  # of a function of torch or of a kernel's rule for shapes
            call.meta["failure"] = str(error)
        return call

    def _example(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The function's result on the example values of its operands."""
        examples = map_arg((args, kwargs), value)
        region = nullcontext() if self.autocast is None else torch.autocast(*self.autocast)
        with self._mode, region, torch.no_grad():
            result = function(*examples[0], **examples[1])
        if self._trains and any(
            isinstance(example, Tensor) and example.requires_grad
            for example in tree_leaves(examples)
        ):
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.is_leaf:
                    leaf.requires_grad_()
        return result

    def reshaped(self, anchor: Call, rows: Any, *sizes: int) -> Any:
        """The numbers of a node in other sizes, -1 for the rest; the node itself if it has them."""
        old_sizes = shape(rows)
        if old_sizes is None or (
            len(old_sizes) == len(sizes)
            and all(size in (-1, old) for size, old in zip(sizes, old_sizes, strict=True))
        ):
            return rows
        return self.before(anchor, torch.reshape, rows, sizes, like=rows)

    def item(self, anchor: Call, of: Call, place: int, like: Call) -> Call:
        """Inserts access to one item of a call's result, right before ``anchor``."""
        return self.before(anchor, operator.getitem, of, place, like=like)

    def constant(self, name: str, values: Tensor) -> Call:
        """A constant tensor of this library's own at the head of the graph, given on the CPU and
        moved to the graph's device."""

        def insert() -> Call:
            """Registers the tensor as a buffer of the graph."""
            attribute, held, example = f"_staticgraph_{name}", values, values
            if self.fake_mode is not None:  # a dry run: there is no device to move it to
                with self.fake_mode:
                    held = self.fake_mode.from_tensor(values).to(self.target.device)
            else:
                held = values.to(self.target.device)
            example = held
            if not isinstance(self._mode, nullcontext):
                with self._mode:  # the graph's, which is not that of a dry run
                    example = torch.empty_strided(
                        held.shape, held.stride(), dtype=held.dtype, device=held.device
                    )
            self.module.register_buffer(attribute, held, persistent=False)
            sources = getattr(self.module, "_param_name_to_source", None)
            if sources is not None:  # Inductor looks up where each tensor of a graph comes from
                sources[attribute] = ConstantSource(attribute)
            *_, last = (node for node in self.graph.nodes if node.op == "placeholder")
            with self.graph.inserting_after(last):
                constant = self.graph.get_attr(attribute)
            constant.meta["example_value"] = example
            return constant

        return self.shared(("constant", name), insert)

    def replace(
        self,
        old: Call,
        new: Call,
        name: str | None = None,
        *,
        last: Call | None = None,
        computes: str = "",
    ) -> bool:
        """Makes every user of ``old`` use ``new`` and erases ``old``; returns whether it did.

        Where the two results differ in shape, dtype, gradient or strides, the graph stays as it is
        and the difference is recorded as the reason.

        Args:
            old: the node to replace.
            new: an inserted call.
            name: the rewrite, to be recorded; None records nothing.
            last: the end of a chain of calls from ``old``, each used by the next alone, all of
                which are replaced.
            computes: what the new node computes, to be recorded.
        """
        end: Call = old if last is None else last
        if (reason := _difference(end, new)) is not None:
            self.miss(name or "replacement", old, reason)
            return False
        if name is not None:
            self.rewrote(name, old, computes)
        while end is not old:
            previous = next(node for node in end.all_input_nodes if _leads_from(node, old))
            end.replace_all_uses_with(new)
            self.graph.erase_node(end)
            end = previous
        old.replace_all_uses_with(new)
        self.graph.erase_node(old)
        return True

    # ------------------------------------------------------------------ what was done

    def rewrote(self, name: str, node: Call, computes: str = "") -> None:
        """Records that a rewrite replaced a node."""
        self.done.append(Rewritten(name, *line_of(node), computes=computes))

    def miss(self, name: str, node: Call, reason: str, why: Call | None = None) -> None:
        """Records the single reason that prevented a rewrite at a node.

        ``why`` is the node that is the reason, if there is one. Only the first reason recorded for
        a node is kept, since that rewrite came closest.
        """
        place = node if why is None or not has_line(why) else why
        self.missed.setdefault(node, Rewritten(name, *line_of(place), reason))

    def refuse(self, name: str, node: Call, reason: str) -> None:
        """Records why nothing in the graph can be rewritten."""
        self.refused = True
        self.miss(name, node, reason)


def _leads_from(node: Call, first: Call) -> bool:
    """Whether a chain of calls, each used by the next alone, leads from ``first`` to ``node``."""
    while node is not first:
        if len(first.users) != 1:
            return False
        first = next(iter(first.users))
        if first.op == "output":
            return False
    return True


def _difference(old: Call, new: Call) -> str | None:
    """How the result of a replacement differs from that of the old node; None if it does not."""
    if "failure" in new.meta:
        return f"its replacement has no result: {new.meta['failure']}"
    expected, result = value(old), value(new)
    if not isinstance(expected, Tensor) or not isinstance(result, Tensor):
        return None if type(expected) is type(result) else "its replacement gives no tensor"
    for aspect in ("shape", "dtype", "device"):
        first, second = getattr(expected, aspect), getattr(result, aspect)
        if first != second:
            words = [tuple(item) if aspect == "shape" else item for item in (second, first)]
            return f"its replacement has {aspect} {words[0]} instead of {words[1]}"
    if expected.requires_grad and not result.requires_grad:
        return "its replacement has no gradient"
    dense = result.is_contiguous() or result.stride() == expected.stride()
    return None if dense else "its replacement has other strides"


# The metadata of a node that says where it is in a model.
PLACE = ("stack_trace", "nn_module_stack")
_KEPT = ("source_fn_stack", *PLACE)


def same_dtype(*nodes: Any) -> bool:
    """Whether all given nodes (other than None) have one dtype."""
    dtypes = {dtype(node) for node in nodes if node is not None}
    return len(dtypes) == 1
