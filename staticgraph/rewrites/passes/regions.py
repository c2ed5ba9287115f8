"""Parts of a forward that run in a state of their own: without gradients, under autocast.

``with torch.no_grad(): s = scatter(...)`` stands in the captured graph as two calls around the
others. What is inside computes something else than the same calls outside, and a rewrite that drew
it into a call of the outside would change the gradient. Home is the state that most of the graph
stands in: a model trained under autocast stands in that. Invariant: no node of another state is a
canonical operation (:func:`staticgraph.rewrites.captured_graph.canonical_ops.is_call`), so that no
rewrite takes it up.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.fx import Graph

from staticgraph.internals.states import enter_autocast, exit_autocast, set_grad_enabled
from staticgraph.rewrites.captured_graph.canonical_ops import Call, fence

# Names of torch's functions that set a state which this module does not follow.
_OTHERS = ("_set_", "_enter_", "_exit_", "_push_", "_pop_")


def fence_regions(graph: Graph) -> None:
    """Marks what does not stand in the state that most of a graph stands in."""
    states: dict[Call, Any] = {}
    switches = [node for node in graph.nodes if _calls(node, set_grad_enabled)]
    # A region puts back what it found: the last one what was there at the head of the graph.
    gradient: Any = switches[-1].args[0] if switches else None
    entered: list[Any] = []
    for node in graph.nodes:
        target = node.target if node.op == "call_function" else None
        if target is set_grad_enabled:
            gradient = node.args[0]
        elif target is enter_autocast:
            entered.append(("autocast", *map(str, node.args)))
        elif target is exit_autocast and entered:
            entered.pop()
        elif getattr(target, "__name__", "").startswith(_OTHERS):
            entered.append(node)  # nothing known ends it: the rest stays as it is
        elif node.op not in ("placeholder", "get_attr", "output"):
            states[node] = (gradient, *entered)
    if len(set(states.values())) < 2:
        return
    home, _ = Counter(states.values()).most_common(1)[0]
    for node, state in states.items():
        if state != home:
            fence(node)


def _calls(node: Call, function: Any) -> bool:
    return node.op == "call_function" and node.target is function
