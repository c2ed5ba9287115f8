"""Where two runs of a model diverge: the first layer, and the line, whose real rows differ.

Both runs are followed operation by operation, as Python calls them, and module by module; every
result is kept on the host, without its padding. The first operation whose real rows differ is on
the guilty line, in the module that was running. This runs only once a difference is known, since it
keeps every intermediate result.

What it does not do: gradients. A difference that arises in a backward alone is attributed to no
layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from staticgraph.batches.batch.containers import tensors_in
from staticgraph.checking.watching import calling_line
from staticgraph.internals.dispatch import DisableTorchFunction
from staticgraph.nn.context.batch_context import BatchContext

_SEEN_ONLY = {"__get__", "__set__", "size", "dim", "numel", "detach", "stride", "is_floating_point"}


class Culprit(NamedTuple):
    """What made two runs diverge.

    Attributes:
        module: its path; empty for the model's own forward, None outside of it: in the loss, or in
            the function that calls the model.
        where: ``file:line``, or empty.
        line: the source at that line.
    """

    module: str | None
    where: str = ""
    line: str = ""


class TrailEntry(NamedTuple):
    """The result of one operation, or of one module."""

    what: str
    culprit: Culprit
    inputs: list[Tensor] | None
    values: list[Tensor]

    def reads_as(self, other: TrailEntry, tolerance: float) -> bool:
        """Whether a module got the same inputs in another run."""
        return self.inputs is not None and _same(self.inputs, other.inputs or [], tolerance)

    def gives_as(self, other: TrailEntry, tolerance: float) -> bool:
        """Whether the results are the same as in another run."""
        return _same(self.values, other.values, tolerance)


class Trail:
    """The recorded results of one run.

    Args:
        model: the model that runs.
        context: knows which rows are real while a batch is bound.
        operations: whether to follow operations, too; modules alone if two runs call different
            ones.
    """

    def __init__(
        self, model: torch.nn.Module, context: BatchContext, operations: bool = True
    ) -> None:
        self._model = model
        self._context = context
        self._operations = operations
        self._running = [Culprit(None)]
        self.events: list[TrailEntry] = []

    @contextmanager
    def followed(self) -> Iterator[None]:
        """A ``with`` block that follows everything run inside, in this thread."""
        with ExitStack() as stack:
            for path, module in self._model.named_modules():
                if isinstance(module, torch.jit.ScriptModule):  # takes no hooks
                    continue
                before = module.register_forward_pre_hook(self._entering(path))
                after = module.register_forward_hook(self._leaving(path), with_kwargs=True)
                stack.callback(before.remove)
                stack.callback(after.remove)
            if self._operations:
                stack.enter_context(_Operations(self))
            yield

    def parting(self, other: Trail, tolerance: float) -> Culprit | None:
        """Returns the first event that differs; None if the events of the runs do not match."""
        theirs = iter(other.events)
        for event in self.events:
            match = next((e for e in theirs if e.what == event.what), None)
            if match is None:
                return None
            if event.gives_as(match, tolerance):
                continue
            if event.inputs is None or event.reads_as(match, tolerance):
                return event.culprit
            # The difference arose between this module and the one before.
            path = event.culprit.module
            return Culprit(path.rpartition(".")[0] if path else None)
        return None

    # ------------------------------------------------------------------ noting

    def note(self, name: str, result: Any) -> None:
        """Keeps the result of an operation, if a line of the model called it."""
        values = self._parts(result)
        place = calling_line() if values else None
        if place is not None:
            culprit = _make_culprit(self._running[-1].module, place)
            self.events.append(TrailEntry(f"{name} at {culprit.where}", culprit, None, values))

    def _entering(self, path: str) -> Any:
        def hook(*_: Any) -> None:
            """Before a module runs: makes it the running one, called from this line."""
            self._running.append(_make_culprit(path, calling_line()))

        return hook

    def _leaving(self, path: str) -> Any:
        def hook(_: Any, args: Any, kwargs: Any, out: Any) -> None:
            """After a module ran: adds an entry with its inputs and its outputs."""
            called = self._running.pop() if len(self._running) > 1 else Culprit(path)
            with DisableTorchFunction():
                inputs = self._parts([args, kwargs])
                self.events.append(TrailEntry(f"module {path}", called, inputs, self._parts(out)))

        return hook

    def _parts(self, value: Any) -> list[Tensor]:
        bound = self._context if self._context.batch is not None else None
        parts = []
        for tensor in tensors_in(value):
            if not tensor.is_floating_point() or not tensor.untyped_storage().size():
                continue
            part = real_part(tensor, bound)
            if part is not None:
                parts.append(part.cpu())
        return parts


class _Operations(TorchFunctionMode):
    """Reports every operation that Python calls to a trail."""

    def __init__(self, trail: Trail) -> None:
        super().__init__()
        self._trail = trail

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name not in _SEEN_ONLY:
            self._trail.note(name, result)
        return result


class NonFinite(TorchFunctionMode):
    """Finds the first line whose result, or whose derivative, is not finite, though what it is
    given is. For one run, forward and backward, of a model over a padded batch.

    Attributes:
        found: the line; None if there is none.
        how: what is not finite there, in words.
        field: the field of the batch that the line computes with directly; empty if it is none.
    """

    def __init__(self, fields: Callable[[], Mapping[str, Tensor]]) -> None:
        super().__init__()
        self.found: Culprit | None = None
        self.how: str = ""
        self.field: str = ""
        self._fields = fields
        self._hooked: dict[int, Tensor] = {}  # kept alive, so that no number is reused

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        with DisableTorchFunction():
            inputs = _floats([args, kwargs])
            if self.found is None and not _finite(_floats(result)) and _finite(inputs):
                self._note(calling_line(), "is not finite", inputs)
            for value in inputs:
                if value.requires_grad and not value.is_leaf and id(value) not in self._hooked:
                    self._hooked[id(value)] = value
                    value.register_hook(self._hook(calling_line(), inputs))
        return result

    def _hook(self, place: tuple[str, int, str] | None, inputs: list[Tensor]) -> Any:
        def hook(gradient: Tensor) -> None:
            """Notes the line that uses a tensor, if its gradient is the first of this kind."""
            if self.found is None and not _finite([gradient]):
                self._note(place, "has no finite derivative", inputs)

        return hook

    def _note(self, place: tuple[str, int, str] | None, how: str, inputs: list[Tensor]) -> None:
        if place is not None:
            self.found, self.how = _make_culprit(None, place), how
            ends = [
                (name, field.data_ptr(), field.data_ptr() + field.nbytes)
                for name, field in self._fields().items()
            ]
            places = [value.data_ptr() for value in inputs]
            names = (n for address in places for n, first, end in ends if first <= address < end)
            self.field = next(names, "")


def _floats(value: Any) -> list[Tensor]:
    return [tensor for tensor in tensors_in(value) if tensor.is_floating_point()]


def _finite(values: list[Tensor]) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in values)


def _make_culprit(path: str | None, place: tuple[str, int, str] | None) -> Culprit:
    return Culprit(path) if place is None else Culprit(path, f"{place[0]}:{place[1]}", place[2])


def real_rows(value: Tensor, context: BatchContext | None) -> Tensor:
    """Returns the rows of a tensor that are real: all if its leading size is not the batch's."""
    rows = context.find_rows(value.shape[0]) if context is not None and value.dim() else None
    return value if rows is None else value[rows.mask]


def real_part(value: Tensor, context: BatchContext | None) -> Tensor | None:
    """Returns a tensor without its padding, along each dimension that has the size of batch rows.

    Args:
        value: any tensor.
        context: holds the batch that it belongs to; None if nothing is padded.

    Returns:
        A copy; None if a dimension may hold rows in a way that cannot be told (rows times heads).
    """
    part = value.detach()
    if context is None:
        return part.clone()
    selected = False
    for dim, size in enumerate(value.shape):
        rows = context.find_rows(size)
        if rows is not None and (dim == 0 or not selected):
            part = part.index_select(dim, torch.where(rows.mask)[0])
            selected = True
    if not selected:
        present = context.present
        sizes = {present.num_nodes, present.num_edges} - {0, 1}
        if any(size >= known and size % known == 0 for size in value.shape for known in sizes):
            return None
    return part.clone()


def _same(left: list[Tensor], right: list[Tensor], tolerance: float) -> bool:
    """Whether all that is comparable is equal up to the tolerance; other shapes are not."""
    if [t.shape for t in left] != [t.shape for t in right]:
        return True
    for a, b in zip(left, right, strict=True):
        if a.numel():
            a, b = (torch.view_as_real(t) if t.is_complex() else t for t in (a, b))
            off = float((a.double() - b.double()).abs().max())
            if not off <= tolerance * max(float(a.abs().max()), 1e-6):
                return False
    return True
