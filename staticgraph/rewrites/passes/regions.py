"""Parts of a forward that run in a different state: without gradients, under autocast.

``with torch.no_grad(): s = scatter(...)`` appears in the captured graph as two calls around the
others. Calls inside compute something else than the same calls outside, and a rewrite that merged
them into a call outside would change the gradient. The home state is the one that most of the graph
is in: for a model trained under autocast, autocast. Invariant: no node of another state, and none
whose gradient a hook reads, is a canonical operation
(:func:`staticgraph.rewrites.captured_graph.canonical_ops.is_call`), so that no rewrite matches it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.fx import Graph, Node

from staticgraph.internals.dispatch import enter_autocast, exit_autocast, set_grad_enabled
from staticgraph.rewrites.captured_graph.canonical_ops import Call, drops_nothing, fence, value

# Name prefixes of torch's functions that set a state which this module does not track.
_OTHERS = ("_set_", "_enter_", "_exit_", "_push_", "_pop_")


def fence_regions(graph: Graph) -> tuple[Any, ...] | None:
    """Fences all nodes that are not in the state that most of the graph is in, and those that
    change the state; returns the arguments of that state's ``torch.autocast``, or None."""
    states: dict[Call, Any] = {}
    switches = [node for node in graph.nodes if node.target is set_grad_enabled]
    # A region restores what it found, so the last switch gives the state at the head of the graph.
    gradient: Any = switches[-1].args[0] if switches else None
    entered: list[Any] = []
    for node in graph.nodes:
        target = node.target if node.op == "call_function" else None
        if target is set_grad_enabled:
            gradient = node.args[0]
        elif target is enter_autocast:
            entered.append(node.args)
        elif target is exit_autocast and entered:
            entered.pop()
        elif getattr(target, "__name__", "").startswith(_OTHERS):
            entered.append(node)  # its end is not known: the rest counts as another state
        else:
            if node.op not in ("placeholder", "output"):
                states[node] = (gradient, *entered)
            if getattr(target, "__name__", "") == "register_hook":
                node.target = register_hook
                for tensor in _same_tensor(node.args[0]):
                    fence(tensor)
            continue
        fence(node)  # right before it may be another state
    if not states:
        return None
    home, _ = Counter(states.values()).most_common(1)[0]
    for node, state in states.items():
        if state != home:
            fence(node)
    autocast = [state for state in home[1:] if isinstance(state, tuple)]
    return autocast[-1] if autocast else None


def register_hook(tensor: Tensor, body: Callable[..., Any], *others: Any) -> Tensor:
    """Registers a hook that is called with a gradient only: autograd gives None for an operand of a
    call whose other operands have one, where plain PyG has no call, and so no hook."""
    tensor.register_hook(lambda slope: None if slope is None else body(slope, *others))
    return tensor


def _same_tensor(node: Call) -> list[Call]:
    """A node, and those below it whose result it returns as it is."""
    nodes = [node]
    while node.args and isinstance(below := node.args[0], Node):
        if value(below) is not value(node) and not drops_nothing(node):
            break
        node = below
        nodes.append(node)
    return nodes
