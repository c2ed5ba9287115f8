"""One trace for all buckets, made in symbolic sizes and run in numbers.

The problem: Dynamo follows every line of a model, a second or more for each bucket, and finds the
same graph each time in other sizes; of a warm-up of four buckets that was three quarters. The idea:
it is traced once, with the sizes as the shape of an argument
(:mod:`staticgraph.batches.slots.sizes`). Whatever the model or a layer branched on is then a
condition on sizes, and a bucket that meets all conditions gets a copy of the graph in which every
size is its number, which is what a trace of its own would have found.

Invariant: a bucket uses the trace only if every condition holds in its sizes. Where one does not,
where the trace fails, or where the graph has parts that cannot be run node by node, the bucket is
traced alone, as if there were one bucket.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from staticgraph.batches.slots.sizes import sizes_of
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.errors import NotStatic
from staticgraph.internals.dispatch import switched_back
from staticgraph.internals.symbols import APPLY, Symbols, as_number, mark_symbolic
from staticgraph.steps.compilation.guards import GuardedCall

# Compiles a graph in numbers; None if the bucket has to be traced alone.
Compile = Callable[[GraphModule], Callable[..., Any] | None]
# A graph in a bucket's sizes, of the inputs that Dynamo passes to the symbolic one.
Run = Callable[[tuple[Any, ...]], Any]


class SharedTrace:
    """A function of a batch's arrays and sizes, traced once.

    Args:
        function: ``Computation.of_tensors(..., any_bucket=True)`` with its own code object.

    Attributes:
        usable: whether it has a trace in symbolic sizes, or may get one.
        guards: how many guards it has.
    """

    def __init__(self, function: FunctionType) -> None:
        self.usable: bool = True
        self.guards: int | None = None
        self._function = function
        self._call: Callable[..., Any] = torch.compile(
            function, fullgraph=True, dynamic=False, backend=self._take
        )
        self._graph: _SymbolicGraph | None = None
        self._guarded: GuardedCall | None = None
        self._here = threading.local()
        self._first: tuple[tuple[Tensor, ...], Compile] | None = None
        self._ran = False

    def bucket(
        self, layout: SlotLayout, tensors: tuple[Tensor, ...], compile: Compile
    ) -> tuple[Any, Run] | None:
        """Returns the result for a first batch of a bucket, and the graph in its sizes, which
        :meth:`run` and :meth:`call` take; None if the bucket needs a trace of its own.

        Args:
            layout: of the bucket.
            tensors: the arrays of the batch.
            compile: called with the graph in the bucket's sizes.
        """
        sizes = sizes_of(layout.capacity)
        if self._guarded is None:
            return self._trace(layout, tensors, sizes, compile)
        inputs = (*tensors, sizes)
        if self._graph is None or not self._guarded.holds(inputs):
            return None
        try:
            run = self._graph.compiled(inputs, compile)
        except Exception:  # its own trace says why, if there is no way at all
            return None
        if run is None:
            return None
        return self.run(run, sizes, tensors), run

    def _trace(
        self, layout: SlotLayout, tensors: tuple[Tensor, ...], sizes: Tensor, compile: Compile
    ) -> tuple[Any, Run] | None:
        lengths = {*layout.lengths, *(length + 1 for length in layout.lengths)}
        # Copies, on which the marks stay, and whose places in memory are no symbols.
        arrays = tuple(tensor.clone() for tensor in tensors)
        for value in arrays:
            mark_symbolic(value, lengths)
        mark_symbolic(sizes, {*sizes.shape[1:]})
        self._first = (*arrays, sizes), compile
        try:
            result = self._call(*arrays, sizes)
        except Exception:
            if self._ran:
                raise
            self.usable = False  # its own trace says why, if it cannot be traced at all
            return None
        finally:
            self._first = None
        self._guarded = GuardedCall(self._function, self._call)
        return result, self._here.run

    def run(self, run: Run, sizes: Tensor, tensors: tuple[Tensor, ...]) -> Any:
        """Runs the graph of one bucket, after the guards; raises what ``torch.compile`` raises if
        one fails."""
        assert self._guarded is not None
        self._here.run = run
        return self._guarded((*tensors, sizes))

    def call(self, run: Run, sizes: Tensor, *tensors: Tensor) -> Any:
        """Runs the graph of one bucket through torch.compile's own function, which checks its
        guards itself."""
        self._here.run = run
        return self._call(*tensors, sizes)

    def _take(self, module: GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        if self._first is None:
            raise NotStatic(f"{self._function.__name__} is compiled")
        arguments, compile = self._first
        name = self._function.__code__.co_varnames[0]
        self._graph = _SymbolicGraph(module, Symbols(name, arguments))
        run = self._graph.compiled(arguments, compile)
        if run is None:
            raise NotStatic("the graph has no form in numbers")
        self._here.run = run

        def dispatch(*inputs: Any) -> Any:
            """Runs the graph of the bucket that is being run."""
            self._ran = True
            return self._here.run(inputs)

        return dispatch


class _SymbolicGraph:
    """A graph in symbolic sizes, as Dynamo captured it."""

    def __init__(self, module: GraphModule, symbols: Symbols) -> None:
        self._symbols, self._module = symbols, module

    def compiled(self, arguments: tuple[Tensor, ...], compile: Compile) -> Run | None:
        """Returns a function of the graph's inputs, compiled in the sizes of these arguments of the
        traced function; None if there is none."""
        numbers = self._symbols.numbers(arguments)
        graph = None if numbers is None else self._in_numbers(numbers)
        run = None if graph is None else compile(graph)
        if run is None:
            return None
        placeholders = [node for node in self._module.graph.nodes if node.op == "placeholder"]
        examples = [node.meta["example_value"] for node in placeholders]
        places = [place for place, value in enumerate(examples) if isinstance(value, Tensor)]
        return lambda inputs: run(*[inputs[place] for place in places])

    def _in_numbers(self, numbers: dict[Any, int]) -> GraphModule | None:
        """Returns the graph in these sizes, as a trace in them would have found it; None if it has
        parts that cannot be run node by node."""
        graph = Graph()
        values: dict[Node, Any] = {}  # in numbers
        nodes: dict[Node, Any] = {}  # of the new graph, or what is a number there
        with self._symbols.mode, switched_back():  # tensors without values draw no numbers
            for node in self._module.graph.nodes:
                if node.op == "output":
                    graph.node_copy(node, nodes.__getitem__)
                    continue
                value = self._value(node, values, numbers)
                if value is _UNKNOWN:
                    return None
                values[node] = value
                if _is_number(value):
                    nodes[node] = value
                    continue
                copy = nodes[node] = graph.node_copy(node, nodes.__getitem__)
                if "example_value" in copy.meta:
                    copy.meta["example_value"] = value
        return GraphModule(self._module, graph)

    def _value(self, node: Node, values: dict[Node, Any], numbers: dict[Any, int]) -> Any:
        """The example value of a node in numbers, from those of its operands."""
        if node.op == "placeholder":
            return _input(node.meta["example_value"], numbers)
        if node.op == "get_attr":
            held = operator.attrgetter(str(node.target))(self._module)
            if isinstance(held, GraphModule):  # a part of the graph that a call runs
                parts = {user.target for user in node.users}
                return held if parts <= {APPLY} else _UNKNOWN
            return node.meta.get("example_value", _UNKNOWN)
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        function: Any = node.target
        stateful = str(getattr(function, "__module__", "")).startswith(_STATEFUL)
        if stateful and function is not APPLY:
            return _UNKNOWN
        return function(*args, **kwargs)


_UNKNOWN = object()
# Functions that push and pop states of functorch's, which running a node alone would leave behind.
_STATEFUL = ("torch._functorch", "torch._C._functorch")


def _is_number(value: Any) -> bool:
    """Whether a trace in fixed sizes would have made a constant of it."""
    if isinstance(value, tuple | list):
        return len(value) > 0 and all(_is_number(item) for item in value)
    return isinstance(value, int | float)


def _input(example: Any, numbers: dict[Any, int]) -> Any:
    """An input without values, in numbers; called under its mode."""
    if not isinstance(example, Tensor):
        return as_number(example, numbers)
    shape, stride = (
        [as_number(n, numbers) for n in each] for each in (example.shape, example.stride())
    )
    value = torch.empty_strided(shape, stride, dtype=example.dtype, device=example.device)
    if isinstance(example, torch.nn.Parameter):
        return torch.nn.Parameter(value, example.requires_grad)
    return value.requires_grad_(example.requires_grad)
