"""The state of one captured graph while it is rewritten.

It knows which arrays are the batch's own, inserts new calls, and records what was done.
"""

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
    """One place of a model that was rewritten, or nearly was.

    Attributes:
        rewrite: the name of the rewrite, which is that of its file.
        line: the line in the user's code; see
            :func:`staticgraph.rewrites.captured_graph.user_code.line_of`.
        layer: the module's path, ``""`` in the forward of the model itself.
        reason: the single reason why it was not rewritten; None if it was.
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
        compiled: whether Inductor compiles it; otherwise it runs operation by operation.
    """

    device: str
    compiled: bool


@dataclass(eq=False)
class Captured:
    """A graph and what is known about it.

    Attributes:
        module: the torch.fx module, changed in place.
        target: what runs it.
        facts: the batch's own arrays by name; empty if the batch carries no row pointers.
        done: places that were rewritten.
        missed: places that nearly were, by node.
        relied: sources, in Dynamo's notation, of tensors for which a rewrite checked whether they
            have a gradient.
        folded: gathers of small tables, and the operands of an equivalent single lookup.
        refused: whether the graph must run unchanged.
        degrees: inverse roots and self-loop weights of GCN's normalisation, by its options.
        made: slices that several places read, by what they are slices of.
        fake_mode: the fake mode of a dry run; None elsewhere.
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
        """Updates :attr:`differentiated` for nodes inserted since the last call."""
        if self.differentiated:
            self.differentiated = differentiated(self.graph)

    @property
    def graph(self) -> torch.fx.Graph:
        """The graph itself."""
        return self.module.graph

    # ------------------------------------------------------------------ what an index is

    def index(self, node: Any) -> str | None:
        """Which of the batch's own indices a node is: ``src``, ``dst`` or ``batch``; else None."""
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
        """The arguments that operators over neighbours take after their operands."""
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
        """Whether a gradient with respect to a node is needed.

        The answer is guarded, at every parameter and input that the node is computed from.
        """
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
        """A call at the head of the graph, made at the first request and then reused."""
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
        """Inserts a call right before ``anchor``; its metadata is copied from ``like``, by default
        the anchor."""
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
        """Inserts access to one item of a call's result, right before ``anchor``."""
        return self.before(anchor, operator.getitem, of, place, like=like)

    def constant(self, name: str, found: Tensor) -> Call:
        """A constant tensor of this library's own at the head of the graph, given on the CPU and
        moved to the graph's device."""
        made = self._constants
        if name not in made:
            attribute = f"_staticgraph_{name}"
            if self.fake_mode is not None:  # a dry run: there is no device to move it to
                with self.fake_mode:
                    found = self.fake_mode.from_tensor(found).to(self.target.device)
            else:
                found = found.to(self.target.device)
            self.module.register_buffer(attribute, found, persistent=False)
            sources = getattr(self.module, "_param_name_to_source", None)
            if sources is not None:  # Inductor looks up where each tensor of a graph comes from
                sources[attribute] = ConstantSource(attribute)
            last = [node for node in self.graph.nodes if node.op == "placeholder"][-1]
            with self.graph.inserting_after(last):
                made[name] = self.graph.get_attr(attribute)
            made[name].meta["example_value"] = found
        return made[name]

    def replace(self, old: Call, new: Call) -> None:
        """Makes every user of ``old`` use ``new``, and erases ``old``."""
        old.replace_all_uses_with(new)
        self.graph.erase_node(old)

    def replace_chain(self, first: Call, last: Call, new: Call) -> None:
        """:meth:`replace` for a chain of calls, each used by the next alone."""
        while last is not first:
            before = next(node for node in last.all_input_nodes if _leads_from(node, first))
            last.replace_all_uses_with(new)
            self.graph.erase_node(last)
            last = before
        self.replace(first, new)

    # ------------------------------------------------------------------ what was done

    def rewrote(self, name: str, node: Call) -> None:
        """Records that a rewrite replaced a node."""
        self.done.append(Rewritten(name, *line_of(node)))

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


# The metadata of a node that says where it is in a model.
PLACE = ("stack_trace", "nn_module_stack")
_KEPT = ("example_value", "source_fn_stack", *PLACE)


def same_dtype(*nodes: Any) -> bool:
    """Whether all given nodes (other than None) have one dtype."""
    found = {dtype(node) for node in nodes if node is not None}
    return len(found) == 1
