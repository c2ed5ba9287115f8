"""One captured graph while it is rewritten: which of its arrays are the batch's own, where new
calls go, and what was done, for whoever asks afterwards."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from staticgraph.internals.fakes import FakeTensorMode
from staticgraph.internals.tracing import ConstantSource
from staticgraph.nn.context.leaf import FACTS, batch_facts
from staticgraph.rewrites.captured_graph.canonical_ops import (
    SELECT,
    Call,
    dtype,
    is_call,
    tensor,
    under_shape,
)
from staticgraph.rewrites.captured_graph.user_code import differentiated, has_line, line_of


class Rewritten(NamedTuple):
    """One place of a model that was rewritten, or that nearly was.

    Attributes:
        rewrite: its name, which is that of its file.
        line: where in the user's code; see
            :func:`staticgraph.rewrites.captured_graph.user_code.line_of`.
        layer: the module's path, ``""`` in the forward of the model itself.
        reason: the one thing that stood in the way; None where it was rewritten.
    """

    rewrite: str
    line: str
    layer: str
    reason: str | None = None

    def __str__(self) -> str:
        where = f"{self.layer or 'the model'}, {self.line}"
        return f"{self.rewrite}: {where}" + ("" if self.reason is None else f": {self.reason}")


class RewriteTarget(NamedTuple):
    """What runs the rewritten graph.

    Attributes:
        device: ``cpu`` or ``cuda``.
        compiled: whether Inductor compiles it, or it runs as it is.
    """

    device: str
    compiled: bool


@dataclass(eq=False)
class Captured:
    """A graph and what is known of it.

    Attributes:
        module: of torch.fx, changed in place.
        target: what runs it.
        facts: the batch's own arrays by name; empty where the batch carries no row pointers.
        done: what was rewritten.
        missed: what nearly was, by the node.
        relied: the sources, in Dynamo's words, of tensors that a rewrite asked whether they have
            a gradient.
        folded: gathers of small tables, and what of them one lookup takes.
        refused: whether the graph must run as it came.
        degrees: roots and loops of GCN's normalisation, by its options.
        made: slices that several places read, by what they are of.
        fake_mode: of the dry run that this is; None elsewhere.
    """

    module: GraphModule
    target: RewriteTarget
    fake_mode: FakeTensorMode | None = None
    facts: dict[str, Call] = field(default_factory=dict)
    done: list[Rewritten] = field(default_factory=list)
    missed: dict[Call, Rewritten] = field(default_factory=dict)
    relied: set[str] = field(default_factory=set)
    folded: dict[Call, tuple[Call, Call | None, Call]] = field(default_factory=dict)
    refused: bool = False
    degrees: dict[Any, list[Call]] = field(default_factory=dict)
    made: dict[Any, Call] = field(default_factory=dict)
    _heads: dict[Any, Call] = field(default_factory=dict)
    _constants: dict[str, Call] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.graph.nodes:
            if is_call(node, batch_facts):
                self.facts = dict(zip(FACTS, node.args, strict=True))
        self.differentiated: set[Call] = differentiated(self.graph)

    def look_again(self) -> None:
        """Notes of nodes that were put in meanwhile whether their derivative is taken."""
        if self.differentiated:
            self.differentiated = differentiated(self.graph)

    @property
    def graph(self) -> torch.fx.Graph:
        """The graph itself."""
        return self.module.graph

    # ------------------------------------------------------------------ what an index is

    def index(self, node: Any) -> str | None:
        """What an index is of the batch's own: ``src``, ``dst`` or ``batch``; None for another."""
        node = under_shape(node)
        if not self.facts or not isinstance(node, Node):
            return None
        if node is self.facts["batch"]:
            return "batch"
        if not is_call(node, SELECT) or under_shape(node.args[0]) is not self.facts["edge_index"]:
            return None
        dim, place = cast(tuple[Any, int], node.args[1:])
        return ("src", "dst")[place % 2] if dim == 0 and place in (0, 1, -1, -2) else None

    def end(self, place: int) -> Call:
        """The node of the sources (0) or destinations (1), at the head of the graph."""
        return self.once(("end", place), SELECT, self.facts["edge_index"], 0, place)

    @property
    def pointers(self) -> tuple[Call, Call, Call, Call, Call]:
        """What the operators over neighbours take behind their operands."""
        facts = self.facts
        rest = (facts["row_ptr"], facts["col_ptr"], facts["transpose"])
        return self.end(0), self.end(1), *rest

    @property
    def nodes(self) -> int:
        """``N``."""
        found = tensor(self.facts["batch"])
        assert found is not None
        return found.size(0)

    @property
    def edges(self) -> int:
        """``E``."""
        found = tensor(self.facts["edge_index"])
        assert found is not None
        return found.size(1)

    @property
    def graphs(self) -> int:
        """``G``."""
        found = tensor(self.facts["graph_mask"])
        assert found is not None
        return found.size(0)

    def has_gradient(self, node: Any) -> bool:
        """Whether a gradient by a node is wanted; what it says is guarded, at every parameter and
        input that the node is made of."""
        left, seen = [node], {node}
        while left:
            one = left.pop()
            if not isinstance(one, Node):
                continue
            before = [other for other in one.all_input_nodes if other not in seen]
            left += before
            seen.update(before)
            source = getattr(one.meta.get("grapharg"), "source", None)
            given = tensor(one)
            if source is not None and (given is None or given.is_floating_point()):
                name = source.name
                self.relied.add(str(name() if callable(name) else name))
        found = tensor(node)
        return found is not None and found.requires_grad

    # ------------------------------------------------------------------ new calls

    def once(self, key: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Call:
        """A call at the head of the graph, made at the first request and then the same."""
        made = self._heads
        if key not in made:
            last = [node for node in self.graph.nodes if node.op == "placeholder"][-1]
            after = next(reversed(made.values()), last)
            with self.graph.inserting_after(after):
                made[key] = self._call(function, args, kwargs)
        return made[key]

    def before(
        self,
        anchor: Call,
        function: Callable[..., Any],
        *args: Any,
        like: Call | None = None,
        **kwargs: Any,
    ) -> Call:
        """A call right before ``anchor``; what it gives looks like ``like``, which is the anchor
        itself where nothing is said."""
        with self.graph.inserting_before(anchor):
            made = self._call(function, args, kwargs)
        shown: Any = anchor if like is None else like
        made.meta.update({key: shown.meta[key] for key in _KEPT if key in shown.meta})
        return made

    def _call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Call:
        made = self.graph.call_function(function, args, kwargs)
        if function is SELECT:
            base = tensor(args[0])
            assert base is not None
            made.meta["example_value"] = base.select(*args[1:])
        return made

    def item(self, anchor: Call, of: Call, place: int, like: Call) -> Call:
        """One item of what a call gives, right before ``anchor``."""
        return self.before(anchor, operator.getitem, of, place, like=like)

    def constant(self, name: str, found: Tensor) -> Call:
        """A tensor of this library's own in the graph, at its head: given on the CPU, put on the
        graph's device."""
        made = self._constants
        if name not in made:
            attribute = f"_staticgraph_{name}"
            if self.fake_mode is not None:  # a dry run: there is no device to put it on
                with self.fake_mode:
                    found = self.fake_mode.from_tensor(found).to(self.target.device)
            else:
                found = found.to(self.target.device)
            self.module.register_buffer(attribute, found, persistent=False)
            sources = getattr(self.module, "_param_name_to_source", None)
            if sources is not None:  # Inductor asks where each tensor of a graph is from
                sources[attribute] = ConstantSource(attribute)
            last = [node for node in self.graph.nodes if node.op == "placeholder"][-1]
            with self.graph.inserting_after(last):
                made[name] = self.graph.get_attr(attribute)
            made[name].meta["example_value"] = found
        return made[name]

    def replace(self, old: Call, new: Call) -> None:
        """Whatever read ``old`` reads ``new``."""
        old.replace_all_uses_with(new)
        self.graph.erase_node(old)

    def replace_chain(self, first: Call, last: Call, new: Call) -> None:
        """The same of a chain of calls, each read by the next alone."""
        while last is not first:
            before = next(node for node in last.all_input_nodes if _leads_from(node, first))
            last.replace_all_uses_with(new)
            self.graph.erase_node(last)
            last = before
        self.replace(first, new)

    # ------------------------------------------------------------------ what was done

    def rewrote(self, name: str, node: Call) -> None:
        """Notes that a rewrite took the place of a node."""
        self.done.append(Rewritten(name, *line_of(node)))

    def miss(self, name: str, node: Call, reason: str, why: Call | None = None) -> None:
        """Notes the one thing that stood in the way of a rewrite at a node; ``why`` is the node
        that is that thing, if it is one. The first that says so of a node comes nearest."""
        place = node if why is None or not has_line(why) else why
        self.missed.setdefault(node, Rewritten(name, *line_of(place), reason))

    def refuse(self, name: str, node: Call, reason: str) -> None:
        """Notes why nothing of the graph can be rewritten."""
        self.refused = True
        self.miss(name, node, reason)


def _leads_from(node: Call, first: Call) -> bool:
    """Whether a chain of calls, each read by the next alone, leads from ``first`` to ``node``."""
    while node is not first:
        if len(first.users) != 1:
            return False
        first = next(iter(first.users))
        if first.op == "output":
            return False
    return True


# Of a node's notes, those that say where in a model it stands.
PLACE = ("stack_trace", "nn_module_stack")
_KEPT = ("example_value", "source_fn_stack", *PLACE)


def same_dtype(*nodes: Any) -> bool:
    """Whether all nodes that are tensors have one dtype."""
    found = {dtype(node) for node in nodes if node is not None}
    return len(found) == 1
