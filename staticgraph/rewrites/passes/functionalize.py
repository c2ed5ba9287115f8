"""Turns in-place changes into plain calls: the pass before all others.

A rewrite moves a read to the place where its result is used. That is sound if a tensor does not
change once it is made; ``m = h[src]; h += 1`` is a graph in which it does. Which nodes share memory
is determined from the storages of Dynamo's trace, so every view counts, however it was made.

Invariant: after this pass either nothing that a rewrite may move reads memory that changes later,
or ``captured.refused`` is set, and the graph runs unchanged.
"""

from __future__ import annotations

import inspect
import operator
from itertools import count
from types import FunctionType
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from staticgraph.internals.dispatch import HigherOrderOperator, OpOverload, OpOverloadPacket
from staticgraph.nn.norm.batch_norm import normed
from staticgraph.rewrites.captured_graph.canonical_ops import (
    Call,
    drops_nothing,
    fence,
    is_fenced,
    shape,
    storage,
    tensor,
    value,
)
from staticgraph.rewrites.captured_graph.captured import Captured

NAME = "in place"
_OPERATORS = {
    getattr(operator, f"i{name}"): getattr(operator, name)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
} | {operator.iand: operator.and_, operator.ior: operator.or_, operator.ixor: operator.xor}
# Methods that end in "_" and change no value.
_NO_VALUE = ("requires_grad_", "detach_", "retain_grad_", "share_memory_")
# Methods without an equivalent plain call, most of which change a tensor's metadata or storage.
_NO_PLAIN = ("set_", "resize_", "resize_as_", "t_", "transpose_", "squeeze_", "unsqueeze_", "copy_")

Memory = frozenset[int]


def functionalize(captured: Captured) -> None:
    """Replaces in-place changes by calls that return a new tensor, or by changes of a copy, where
    nothing else sees the change; refuses the graph where something does."""
    seen, left = [], list(captured.graph.nodes)
    memory = _Memory()
    while left:
        node = left.pop(0)
        if written := written_by(node):
            harmful = _read_before(seen, memory.of_any(written), memory)
            alone = not is_fenced(node) and _alone(written, seen, set(left), memory)
            if alone and _as_plain_call(node, written[0], left, memory):
                pass  # the node is a plain call now
            elif alone and harmful:
                seen.append(_on_a_copy(captured, node, written[0], left, memory))
            elif harmful:
                remedy = "it makes a new tensor (h = h + x for h += x)"
                if node.target is normed:
                    remedy = "its running statistics are read after the norm alone"
                captured.refuse(
                    NAME,
                    node,
                    "its operand is changed in place after it was read: nothing of this forward "
                    f"is rewritten until {remedy}",
                )
                return
        memory.see(node)
        seen.append(node)
    written = [node for node in seen if written_by(node)]
    held = _mark(seen, written, memory)
    if any(fact in held for fact in captured.facts.values() if isinstance(fact, Node)):
        captured.refuse(NAME, written[0], "an index of the batch's own is changed in place")


def written_by(node: Call) -> list[Call]:
    """Returns the tensors that a call writes to; none for a call that returns a new one."""
    first = node.args[0] if node.args else None
    if node.op == "call_method":
        name = str(node.target)
        if name == "__setitem__" or (
            name.endswith("_") and not name.endswith("__") and name not in _NO_VALUE
        ):
            return _tensors([first])
        return []
    if node.op != "call_function":
        return []
    if node.target is normed:  # its running statistics
        return _tensors(list(node.args[4:7]))
    if node.target in _OPERATORS or node.target is operator.setitem or _asked_in_place(node):
        return _tensors([first])
    if _is_mutating(node.target):
        return _tensors(list(node.all_input_nodes))
    name = getattr(node.target, "__name__", "")
    word_of_python = getattr(node.target, "__module__", "") == "_operator"  # and_, or_, not_
    in_place = name.endswith("_") and not name.endswith("__") and not word_of_python
    written = [first] if in_place else []
    out = node.kwargs.get("out")
    return _tensors([*written, *(out if isinstance(out, list | tuple) else [out])])


def _tensors(nodes: list[Any]) -> list[Call]:
    return [node for node in nodes if tensor(node) is not None]


def _is_mutating(target: Any) -> bool:
    """Whether an operator's schema says that it changes an argument: a custom operator, or a user's
    Triton kernel."""
    if isinstance(target, OpOverloadPacket):
        return any(_is_mutating(getattr(target, name)) for name in target.overloads())
    if isinstance(target, OpOverload):
        return target._schema.is_mutable
    return isinstance(target, HigherOrderOperator) and "mutation" in target.name()


def _asked_in_place(node: Call) -> bool:
    """Whether a Python function with an ``inplace`` argument is called with it set."""
    return bool(_bound(node).get("inplace", False))


def _bound(node: Call) -> dict[str, Any]:
    if not isinstance(node.target, FunctionType):
        return {}
    signature = inspect.signature(node.target)
    if "inplace" not in signature.parameters:
        return {}
    try:
        return dict(signature.bind(*node.args, **node.kwargs).arguments)
    except TypeError:
        return {}


class _Memory:
    """Which memory each node's tensors are in, as the graph is read from its head.

    A storage of the trace is one memory until an in-place change becomes a plain call: from there
    on it is another.
    """

    def __init__(self) -> None:
        self._number = count()
        self._now: dict[int, int] = {}
        self._by_node: dict[Call, Memory] = {}

    def see(self, node: Call) -> None:
        """Records the memory of a node's tensors at its place in the graph."""
        numbers = set()
        for fake in _values(value(node)):
            if drops_nothing(node):
                self._now[storage(fake)] = next(iter(self.find_memory(node.args[0])))
            numbers.add(self._now.setdefault(storage(fake), next(self._number)))
        self._by_node[node] = frozenset(numbers)

    def find_memory(self, node: Call) -> Memory:
        """The memory of a node; empty if it was not seen yet."""
        return self._by_node.get(node, frozenset())

    def of_any(self, nodes: list[Call]) -> Memory:
        """The memory of several nodes."""
        return frozenset().union(*map(self.find_memory, nodes))

    def begin(self, node: Call) -> None:
        """Makes the storage of a node's tensor new memory from here on."""
        for fake in _values(value(node)):
            self._now[storage(fake)] = next(self._number)


def _values(example: Any) -> list[Tensor]:
    if isinstance(example, Tensor):
        return [example]
    if isinstance(example, list | tuple):
        return [fake for part in example for fake in _values(part)]
    return []


def _alone(written: list[Call], seen: list[Call], later: set[Call], memory: _Memory) -> bool:
    """Whether the tensor written to was made in the graph, and later reads use only its own
    node."""
    if len(written) != 1:
        return False
    old = written[0]
    for other in seen:
        if not memory.find_memory(other) & memory.find_memory(old):
            continue
        if other.op in ("placeholder", "get_attr") or len(memory.find_memory(other)) != 1:
            return False
        if other is not old and any(user in later for user in other.users):
            # Reads by the call itself do not matter: it reads before it writes.
            return False
    return True


def _read_before(seen: list[Call], target: Memory, memory: _Memory) -> bool:
    """Whether a call has read memory for its values, and not only to make a view."""
    for reader in seen:
        if written_by(reader) or not memory.of_any(reader.all_input_nodes) & target:
            continue
        if not memory.find_memory(reader) or not memory.find_memory(reader) <= target:
            return True
    return False


def _as_plain_call(node: Call, old: Call, left: list[Call], memory: _Memory) -> bool:
    """Turns an in-place change into a call that returns a new tensor, if there is one."""
    call = _plain_call(node)
    if call is None:
        return False
    op, target, args, kwargs = call
    if not _gives_the_same(old, op, target, args, kwargs):
        return False
    node.op, node.target, node.args, node.kwargs = op, target, args, kwargs
    node.meta["example_value"] = value(old)
    _reads_from_now(old, node, left)
    memory.begin(old)
    return True


def _on_a_copy(
    captured: Captured, node: Call, old: Call, left: list[Call], memory: _Memory
) -> Call:
    """Makes a call change a copy, which is read from there on."""
    copy = captured.before(node, torch.clone, old, like=old)
    copy.meta["example_value"] = value(old)  # later views, as traced, are of this storage
    _reads_from_now(old, copy, [node, *left])
    memory.begin(old)
    memory.see(copy)
    return copy


def _reads_from_now(old: Call, new: Call, left: list[Call]) -> None:
    later = set(left)
    if is_fenced(old):  # a hook may read its gradient, and that of what it has become
        fence(new)
    for user in list(old.users):
        if user in later:
            user.replace_input_with(old, new)


def _plain_call(node: Call) -> tuple[str, Any, tuple[Any, ...], dict[str, Any]] | None:
    """The call that returns a new tensor and is equivalent to an in-place change, or None."""
    if node.op == "call_method":
        name = str(node.target)
        if name in _NO_PLAIN or not hasattr(Tensor, name[:-1]):
            return None
        return "call_method", name[:-1], node.args, dict(node.kwargs)
    if "out" in node.kwargs:
        return None
    if node.target is operator.setitem:
        return _masked_fill(*node.args)
    if node.target in _OPERATORS:
        return "call_function", _OPERATORS[node.target], node.args, {}
    if bound := _bound(node):
        del bound["inplace"]
        first, *rest = bound
        return "call_function", node.target, (bound[first],), {key: bound[key] for key in rest}
    name = getattr(node.target, "__name__", "")[:-1]
    function = getattr(torch, name, getattr(torch.nn.functional, name, None))
    return None if function is None else ("call_function", function, node.args, dict(node.kwargs))


def _masked_fill(x: Call, key: Any, number: Any) -> tuple[str, Any, tuple[Any, ...], Any] | None:
    """``x[mask] = number``, as PyG uses it to replace infinite degrees."""
    mask = tensor(key)
    if mask is None or mask.dtype != torch.bool or shape(key) != shape(x):
        return None
    return ("call_method", "masked_fill", (x, key, number), {}) if _is_number(number) else None


def _is_number(number: Any) -> bool:
    return isinstance(number, int | float)


def _gives_the_same(old: Call, op: str, target: Any, args: Any, kwargs: Any) -> bool:
    """Whether the plain call's result has the shape, dtype and strides of the operand."""
    fake = tensor(old)
    assert fake is not None
    mode = getattr(fake, "fake_mode", None)
    if mode is None:
        return False
    examples, named = map_arg((args, kwargs), value)
    with mode, torch.no_grad():
        try:
            new = (
                getattr(examples[0], target)(*examples[1:], **named)
                if op == "call_method"
                else target(*examples, **named)
            )
        except Exception:
            return False
    alike = isinstance(new, Tensor) and new.shape == fake.shape and new.dtype == fake.dtype
    return alike and new.stride() == fake.stride()


def _mark(nodes: list[Call], writers: list[Call], memory: _Memory) -> set[Call]:
    """Marks every node whose memory a call writes to, and the calls that write."""
    target = frozenset().union(*(memory.of_any(written_by(node)) for node in writers))
    held = {node for node in nodes if memory.find_memory(node) & target}
    for node in held:
        node.meta["written"] = True
    for node in writers:
        node.meta["writes"] = True
    return held
