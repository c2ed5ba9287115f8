"""One eager run of a model, watched for what a recording could not contain.

Tracing ends at the first thing it cannot trace, and lets some things pass that a CUDA graph cannot
record. Watching an ordinary run finds all of them, in order, with the line of the model that called
them. Each operation is inspected twice: as the Python call (``Tensor.item``, ``torch.tensor``) and
by what it does to tensors (a read of one number, an index by a mask, a result whose size is data).

Lines inside PyG are named only if no line of the model called them; this library's own code and
torch's are never named.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from staticgraph.internals.dispatch import TorchDispatchMode
from staticgraph.internals.hooks import checkpoints_told
from staticgraph.steps.tracing.obstacles import CUDAGRAPH_UNSAFE, Obstacle, is_mask

# Modules of this library on the call stack of any model that do no operations of their own.
_MACHINERY = frozenset(
    f"staticgraph.{name}"
    for name in (
        "checking.padding_check",
        "checking.padding_culprit",
        "checking.check",
        "checking.watching",
        "internals.hooks",
        "steps.computation.model_call",
        "steps.computation.computation",
        "steps.tracing.trace",
    )
)
# Runs the model; whoever calls it is no part of the model.
_CALLER = "staticgraph.checking.check"
# Plain PyG models that come with this library; their lines count as the model's.
_ZOO = "staticgraph.models."

# Python calls that read a number, and calls that copy to the host.
_READS: dict[Any, tuple[str, str]] = {
    Tensor.item: (".item()", "host read"),
    Tensor.tolist: (".tolist()", "host read"),
    Tensor.__repr__: ("a tensor as text", "host read"),
    Tensor.__format__: ("a tensor as text", "host read"),
    Tensor.__int__: ("int() of a tensor", "host read"),
    Tensor.__float__: ("float() of a tensor", "host read"),
    Tensor.__index__: ("a tensor as a number", "host read"),
    Tensor.__bool__: ("bool() of a tensor", "branch on data"),
    Tensor.__contains__: ("'in' a tensor", "branch on data"),
    torch.equal: ("torch.equal", "branch on data"),
    torch.allclose: ("torch.allclose", "branch on data"),
    torch.is_nonzero: ("is_nonzero", "branch on data"),
    Tensor.cpu: (".cpu()", "device-to-host copy"),
    Tensor.numpy: (".numpy()", "device-to-host copy"),
    Tensor.__array__: ("a NumPy array of a tensor", "device-to-host copy"),
}
# Functions that make tensors from host data; they copy, whatever device they are given.
_FROM_HOST = {torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy}
# Reads that execute no operation in which they could be noticed.
_UNSEEN = {Tensor.tolist, Tensor.__repr__, Tensor.__format__}
# Functions that make tensors on the CPU unless given a device.
_FACTORIES = {
    torch.arange,
    torch.empty,
    torch.eye,
    torch.full,
    torch.linspace,
    torch.ones,
    torch.rand,
    torch.randint,
    torch.randn,
    torch.randperm,
    torch.zeros,
}
_CHECKED = ("a check that only the CPU makes", "")
# PyG's own collation, whose sizes are always data.
_COLLATION = frozenset(
    f"torch_geometric.data.{name}" for name in ("batch", "collate", "separate", "on_disk_dataset")
)
_NO_BATCHES_INSIDE = (
    "PyG makes a Batch of graphs, or graphs of a Batch, inside the forward, whose sizes are data: "
    "use what came in (batch.x, batch.edge_index, batch.batch, batch.num_graphs), and make other "
    "graphs before training, as fields of the store"
)
_READ_ONE = "_local_scalar_dense"


class Watch:
    """Collects obstacles while :meth:`running` is entered.

    Attributes:
        obstacles: what was found, in order, each place once.
        module: the path of the running module; the caller keeps it up to date.
    """

    def __init__(self) -> None:
        self.obstacles: list[Obstacle] = []
        self.module = ""
        self._call: tuple[str, str] | None = None
        self._making = False

    @property
    def left(self) -> bool:
        """Whether a tensor was copied to the host."""
        return any(obstacle.kind == "device-to-host copy" for obstacle in self.obstacles)

    @contextmanager
    def running(self) -> Iterator[None]:
        """A ``with`` block that watches everything run in this thread."""
        with ExitStack() as stack:
            noted = partial(self.note_obstacle, "checkpoint", "activation checkpointing")
            stack.enter_context(checkpoints_told(noted))
            stack.enter_context(_Calls(self))
            stack.enter_context(_Operations(self))
            yield

    def note_obstacle(self, operation: str, kind: str) -> None:
        """Notes an obstacle at the line of the model that is running."""
        place = calling_line()
        if place is None:
            return
        file, number, line = place
        advice = _NO_BATCHES_INSIDE if _makes_a_batch() else None
        new = Obstacle(operation, f"{file}:{number}", line, kind, self.module, advice)
        if not any(new.where == old.where and new.kind == old.kind for old in self.obstacles):
            self.obstacles.append(new)


def _makes_a_batch() -> bool:
    """Whether PyG, called by the model, is joining graphs or taking them apart."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if _owner(frame) == "model":
            return False
        if frame.f_globals.get("__name__", "") in _COLLATION:
            return True
        frame = frame.f_back
    return False


def calling_line() -> tuple[str, int, str] | None:
    """Returns file, number and source of the innermost line outside torch, Python and this library.

    If that line is PyG's, the line of the model that led there is returned, if there is one. None
    if a static form of this library made the call.
    """
    frame: FrameType | None = sys._getframe(1)
    place: tuple[str, int] | None = None
    while frame is not None and frame.f_globals.get("__name__") != _CALLER:
        owner = _owner(frame)
        if owner == "model" or (owner == "torch_geometric" and place is None):
            place = frame.f_code.co_filename, frame.f_lineno
        if owner == "model":
            break
        if owner == "staticgraph" and place is None:
            return None
        frame = frame.f_back
    return None if place is None else (*place, linecache.getline(*place).strip())


def _owner(frame: FrameType) -> str:
    """Returns ``torch``, ``torch_geometric``, ``staticgraph``, ``python`` or ``model``.

    It goes by module, not by file: PyG writes the code of its message passing into files elsewhere.
    """
    name = frame.f_globals.get("__name__", "")
    top = name.split(".")[0]
    if name.startswith(_ZOO):
        return "model"
    if name in _MACHINERY or top in sys.stdlib_module_names:
        return "model" if name == "__main__" else "python"
    return top if top in ("torch", "torch_geometric", "staticgraph") else "model"


class _Calls(TorchFunctionMode):
    """Inspects Python calls."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        watch = self._watch
        before, watch._call = watch._call, _READS.get(func)
        making, watch._making = watch._making, watch._making or func in _FROM_HOST
        if func is F.one_hot:
            watch._call = _one_hot(*args, **kwargs)
        try:
            copies = watch._call is not None and watch._call[1] == "device-to-host copy"
            if watch._call is not None and (copies or func in _UNSEEN):
                watch.note_obstacle(*watch._call)
            elif func is Tensor.to and _names_cpu((*args[1:], *kwargs.values())):
                watch.note_obstacle(".to('cpu')", "device-to-host copy")
            elif func is Tensor.to and watch.left and isinstance(args[-1], torch.device):
                watch.note_obstacle(".to(device)", "host-to-device copy")  # and back again
            out = func(*args, **kwargs)
            _look_at_made(watch, func, args, kwargs, out)
            return out
        finally:
            watch._call, watch._making = before, making


def _one_hot(tensor: Tensor, num_classes: int = -1) -> tuple[str, str]:
    """Returns the kind of read that ``one_hot`` makes.

    On the CPU it always reads the largest class, to check it; on a GPU, and in a compiled step,
    only if it is not given the number of classes.
    """
    return ("one_hot without num_classes", "host read") if num_classes < 0 else _CHECKED


def _names_cpu(values: tuple[Any, ...]) -> bool:
    # Not torch.device("cpu"): on the CPU that is what to(x.device) names, which follows the model.
    # If the model is elsewhere, the copy itself is noticed.
    return any(isinstance(v, str) and v.startswith("cpu") for v in values)


def _look_at_made(watch: Watch, func: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Finds a tensor made on the host: from values, or by a factory without a device."""
    if func in _FROM_HOST:
        source = args[0] if args else kwargs.get("data", kwargs.get("obj"))
        stays = kwargs.get("device") is None and (out.dim() == 0 or _inside_pyg())
        if not isinstance(source, Tensor) and not stays:
            watch.note_obstacle(f"torch.{func.__name__}", "host-to-device copy")
        return
    told_no_device = func in _FACTORIES and kwargs.get("device") is None
    if told_no_device and out.dim() > 0 and out.device.type == "cpu" and not _inside_pyg():
        watch.note_obstacle(f"torch.{func.__name__} without device=", "host-to-device copy")


def _inside_pyg() -> bool:
    """Whether PyG's own code, rather than a line of the model, is running."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _owner(frame) in ("torch", "python"):
        frame = frame.f_back
    return frame is not None and _owner(frame) != "model"


class _Operations(TorchDispatchMode):
    """Inspects what is done to tensors."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        watch, name = self._watch, func._schema.name.removeprefix("aten::")
        if name == _READ_ONE and watch._call is not _CHECKED:
            watch.note_obstacle(*(watch._call or ("a number of a tensor", "host read")))
        elif name == "index":
            if is_mask(args[1]):
                watch.note_obstacle("x[mask]", "index with a mask")
        elif name in ("index_put", "index_put_", "_index_put_impl_"):
            if is_mask(args[1]) and args[2].numel() != 1:
                watch.note_obstacle("x[mask] = y", "write through a mask")
        elif name in ("equal", "allclose", "is_nonzero"):
            watch.note_obstacle(*(watch._call or (name, "branch on data")))
        elif name == "lift_fresh":  # new_tensor, FloatTensor, from_numpy, x[[0, 2]]
            if args[0].dim() > 0 and not watch._making and not _inside_pyg():
                watch.note_obstacle("a tensor of the host's values", "host-to-device copy")
        elif name == "repeat_interleave" and kwargs.get("output_size") is not None:
            pass  # given its output size, it does not read the counts
        elif torch.Tag.dynamic_output_shape in func.tags or name == "bincount":
            watch.note_obstacle(name.lstrip("_"), "size from data")
        elif CUDAGRAPH_UNSAFE in func.tags:
            watch.note_obstacle(name.replace("::", "."), "cannot be recorded")
        out = func(*args, **kwargs)
        if name in ("_to_copy", "copy_"):
            self._look_at_copy(args, out)
        return out

    def _look_at_copy(self, args: Any, out: Any) -> None:
        source = args[1] if len(args) > 1 and isinstance(args[1], Tensor) else args[0]
        here, there = source.device.type, out.device.type
        if here != there and "cpu" in (here, there):
            kind = "host-to-device copy" if here == "cpu" else "device-to-host copy"
            self._watch.note_obstacle("a copy between devices", kind)
