"""What in a traced step depends on data, and so cannot have a fixed shape.

``torch.compile(fullgraph=True)`` does not prove static shapes: it traces ``x.max().item()`` and
``nonzero()`` as symbols without a value and compiles them, and the recording fails or is skipped
later. It also compiles ``x[mask] = y``, which has a fixed shape and yet counts the mask on the
device, and copies from the host, which a recording would repeat with stale or freed memory. This
module reads the traced graph before it is compiled and names each such operation with its line.
"""

from __future__ import annotations

import operator
import re
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from staticgraph.internals.dispatch import OpOverloadPacket

# The kinds of obstacles: why each prevents a recording, and what to write instead.
KINDS: dict[str, tuple[str, str]] = {
    "host read": (
        "the host waits for a number of the device; a recording has no host in it",
        "give sizes instead of reading them (batch.num_graphs, x.size(0)), and keep numbers in "
        "tensors",
    ),
    "branch on data": (
        "which way Python goes is decided once, when the step is recorded",
        "compute both and choose with torch.where",
    ),
    "size from data": (
        "the size of the result is data",
        "keep all rows and use torch.where(mask, x, 0) instead of choosing rows",
    ),
    "index with a mask": (
        "as many results as the mask has True: the size is data",
        "keep all rows and use torch.where(mask, x, 0) instead of x[mask]",
    ),
    "write through a mask": (
        "the mask is counted on the device and the count read by the host",
        "use torch.where(mask, new, x) instead of x[mask] = new",
    ),
    "host-to-device copy": (
        "a recording would copy again from memory of the host that may be gone",
        "make it once, in __init__ with register_buffer, or on the device (torch.arange(n, "
        "device=x.device))",
    ),
    "device-to-host copy": (
        "the host waits for the device; a recording has no host in it",
        "keep the tensor on the device, and move it after the step",
    ),
    "cannot be recorded": (
        "the operator is tagged cudagraph_unsafe: torch records what is before and after it, each "
        "by itself, and says nothing",
        "use another operator, or mode='default', which records nothing",
    ),
    "activation checkpointing": (
        "it saves and restores the random state on the host, in forward and backward",
        "leave it out, and give the plan smaller buckets, or let torch.compile recompute",
    ),
    "refused": ("it has no static form", ""),  # the message names the remedy
    "the model raises": (
        "the model does not run on this batch, in eager either",
        "",  # it depends on what it raises
    ),
    "cannot be traced": (
        "torch.compile stops here",
        "write this part in operations on tensors, or run this model with mode='eager'",
    ),
    "raises while it is traced": (
        "the model or the loss runs in eager; torch.compile, which follows it with tensors alone, "
        "meets this exception",
        "write this part in operations on tensors, or run this model with mode='eager'",
    ),
    "padding reaches real rows": (
        "what stands in padding rows changes the result of real ones",
        "reduce over nodes with a pool and the batch vector, or mask with batch.node_mask",
    ),
    "edges by their position": (
        "edges were sorted by destination, so the position of an edge is another",
        "GraphStore.from_pyg(..., keep_order=True), staticgraph convert --keep-order, or a Padder "
        "without sort_edges=True",
    ),
    "padding breaks a gradient": (
        "a padding graph has no nodes, and features of zero no length: to divide by the number, or "
        "to take a root or a norm, has no finite derivative there",
        "give it one: count.clamp(min=1) before a division, (x.square().sum(-1) + eps).sqrt()",
    ),
    "the mean of the loss": (
        "this function's own mean divides by the weights of its targets, the runner's by the rows",
        "return (values, weights): F.cross_entropy(out, batch.y, reduction='none'), w[batch.y] for "
        "weights of classes, and batch.y != i for ignore_index=i",
    ),
    "differs from plain PyG": (
        "on the same graphs without padding the model gives something else",
        "look for a number of nodes, edges or graphs that it takes from a shape, and for a mean "
        "over the width of a dense block",
    ),
}


# An operator's author tags it so; None in a torch without the tag.
CUDAGRAPH_UNSAFE = getattr(torch.Tag, "cudagraph_unsafe", None)
# Fixed-shape replacements for what some operations are mostly used for.
INSTEAD = {
    "nonzero": "each graph's first node is batch.ptr[:-1], its last batch.ptr[1:] - 1",
    "unique": "the number of graphs is batch.num_graphs, nodes per graph batch.ptr.diff()",
    "bincount": "nodes per graph are batch.ptr.diff()",
}
# Kinds that allow a step to be compiled in one graph, and only prevent its recording.
RECORDING_ALONE = frozenset(
    {"device-to-host copy", "cannot be recorded", "activation checkpointing", "host read"}
)
# Kinds that mean wrong results, and say nothing about how a step can run.
RESULTS = frozenset(
    {
        "padding reaches real rows",
        "edges by their position",
        "padding breaks a gradient",
        "differs from plain PyG",
    }
)


class Obstacle(NamedTuple):
    """One operation that prevents a recording, and where the model calls it.

    Attributes:
        operation: the operation that is called.
        where: ``file:line`` in the model, or in PyG where the model's own line is not known.
        line: the source at that line.
        kind: one of :data:`KINDS`.
        module: the path of the module that was running.
        advice: what to write instead, where the kind alone does not tell; empty for no advice.
    """

    operation: str
    where: str
    line: str
    kind: str = "size from data"
    module: str = ""
    advice: str | None = None

    @property
    def reason(self) -> str:
        """Why the operation prevents a recording."""
        return KINDS[self.kind][0]

    @property
    def remedy(self) -> str:
        """What to write instead; empty if nothing applicable is known."""
        if self.advice is not None:
            return self.advice
        more = INSTEAD.get(self.operation.strip(".()"), "")
        return "; ".join(filter(None, (KINDS[self.kind][1], more)))

    def __str__(self) -> str:
        return f"{self.operation} at {self.where}: {self.line}"


def obstacles(graph: torch.fx.GraphModule) -> list[Obstacle]:
    """Finds the operations that depend on data or cross between host and device, in order.

    These bring a size or a number from data into the trace, write through a mask, or copy from host
    to device; operations that only pass such a size on are left out. What one line does again and
    again, as ``tolist`` reads each number, is in the list once.
    """
    obstacles_here, known = [], set()
    for node in graph.graph.nodes:
        value = node.meta.get("example_value")
        if node.op not in ("call_function", "call_method", "call_module"):
            known |= _unbacked(value)
            continue
        fresh = _unbacked(value) - known
        kind = "size from data" if fresh else None
        if _writes_through_mask(node):
            kind = "write through a mask"
        elif _crosses(node):
            kind = "host-to-device copy"
        if kind:
            where, line = place_of(node.stack_trace or "")
            obstacles_here.append(Obstacle(_name(node.target), where, line, kind))
        known |= fresh
    return list(dict.fromkeys(obstacles_here))


def unrecordable(graph: torch.fx.GraphModule) -> list[Obstacle]:
    """Finds the operators that their author has tagged as unfit for CUDA graphs, in order."""
    unfit = []
    for node in graph.graph.nodes:
        operators = [node.target]
        if isinstance(node.target, OpOverloadPacket):
            operators = [getattr(node.target, name) for name in node.target.overloads()]
        if any(CUDAGRAPH_UNSAFE in getattr(op, "tags", ()) for op in operators):
            where, line = place_of(node.stack_trace or "")
            unfit.append(Obstacle(_name(node.target), where, line, "cannot be recorded"))
    return list(dict.fromkeys(unfit))


def is_mask(index: Any) -> bool:
    """Whether an index selects rows by a boolean mask."""
    if isinstance(index, tuple | list):
        return any(is_mask(item) for item in index)
    return (
        isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) and index.dim() > 0
    )


def _writes_through_mask(node: torch.fx.Node) -> bool:
    if node.target not in (operator.setitem, torch.index_put, "index_put", "index_put_"):
        return False
    index, value = (_example(arg) for arg in node.args[1:3])
    # A single number makes a masked fill, which has a fixed shape and counts nothing.
    return is_mask(index) and isinstance(value, Tensor) and value.numel() != 1


def _crosses(node: torch.fx.Node) -> bool:
    """Whether a CPU tensor is copied to another device here."""
    out = node.meta.get("example_value")
    if not isinstance(out, Tensor) or out.device.type == "cpu":
        return False
    if node.target is torch.tensor or node.target is torch.as_tensor:
        return True
    tensors = [value for arg in node.args if isinstance(value := _example(arg), Tensor)]
    moves = node.target in ("to", "cuda", "copy_", "type_as")
    return moves and any(tensor.device.type == "cpu" for tensor in tensors)


def _example(arg: Any) -> Any:
    if isinstance(arg, torch.fx.Node):
        return arg.meta.get("example_value")
    if isinstance(arg, tuple | list):
        return tuple(_example(item) for item in arg)
    return arg


def _unbacked(value: Any) -> set[Any]:
    if isinstance(value, tuple | list):
        return set().union(*(_unbacked(item) for item in value))
    if isinstance(value, torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool):
        return set(free_unbacked_symbols(value))
    return set()


def _name(target: Any) -> str:
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def place_of(stack: str) -> tuple[str, str]:
    """Returns place and source of the innermost frame of a stack trace given as text."""
    frames = re.findall(r'File "(.+?)", line (\d+), in .+\n\s+(.+)', stack)
    if not frames:
        return "an unknown place", ""
    file, number, line = frames[-1]
    return f"{file}:{number}", line.strip()
