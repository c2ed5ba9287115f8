"""Registers this library's operators with torch: CPU loop, CUDA kernel, shapes and derivative.

``torch.library.custom_op`` does the same with several layers of Python around each call, a
significant share of a step with hundreds of small calls. Every operator is registered here, so that
a dry run knows the CUDA side of each. What an operator and its derivative exchange follows from the
names in their schemas (:class:`Operator`); an operator whose derivative is more than one call has a
:class:`torch.autograd.Function` of its own. torch.compile and this library's tracers follow both.
Neither kind has a second derivative; asking for one raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from staticgraph.internals.dispatch import OpOverload, delayed_error
from staticgraph.kernels.cpu_loop import CpuLoop, cast, over_tensors
from staticgraph.kernels.edges import Edges

NAMESPACE = "staticgraph"
# Kept for the life of the process: its operators are unregistered when it is deleted.
LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
# CUDA implementations by name: a dry run calls them with fake tensors.
CUDA: dict[str, Callable[..., Any]] = {}


def operator(
    schema: str,
    *,
    cpu: CpuLoop | Callable[..., Any],
    cuda: str | Callable[..., Any] | None,
    fake: Callable[..., Any],
    backward: Operator | None = None,
    check: Callable[..., None] | None = None,
) -> Operator:
    """Registers an operator and returns it.

    Args:
        schema: name, arguments and results, in torch's notation; arguments that are written to as
            ``Tensor(a!)``. No defaults: torch drops arguments that equal them.
        cpu: a loop that takes arguments and results of the schema by their names, or a function of
            plain tensors without autograd.
        cuda: such a function for CUDA, or where it or a
            :class:`~staticgraph.kernels.launch.Launch` is, as ``folder.file:name``: Triton is
            imported by the first call. None if torch's own operations are as good there and the
            operator is not called.
        fake: the same computation on shapes and dtypes alone; it also allocates a loop's results.
        backward: computes the derivative.
        check: gets what a loop returns and the arguments; raises what is wrong with them.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    found = Operator(getattr(getattr(torch.ops, NAMESPACE), name).default, fake, backward)
    if isinstance(cpu, CpuLoop):
        cpu = over_tensors(cpu, found.names, fake, check)
    LIBRARY.impl(name, cpu, "CPU")
    if cuda is not None:
        CUDA[name] = _imported(cuda, found) if isinstance(cuda, str) else cuda
        LIBRARY.impl(name, beside_its_tensors(CUDA[name]), "CUDA")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=LIBRARY)
    return found


def _imported(address: str, operator: Operator) -> Callable[..., Any]:
    file, _, name = address.partition(":")

    @cache
    def function() -> Callable[..., Any]:
        """Imports the function, or the launch of the operator, once."""
        kernel = getattr(import_module(f"staticgraph.kernels.{file}"), name)
        return kernel.over(operator) if hasattr(kernel, "over") else kernel

    return lambda *arguments: function()(*arguments)


def beside_its_tensors(cuda: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a CUDA kernel to launch on the device of its tensors, as torch's own kernels do.

    Triton launches on the current device and its stream, which need not be those of a model on
    ``cuda:1``.
    """

    @wraps(cuda)
    def launched(*args: Any) -> Any:
        """Launches with the tensors' device as the current device."""
        for given in args:
            value = given[0] if isinstance(given, (list, tuple)) and given else given
            if isinstance(value, torch.Tensor):
                if value.get_device() == torch.cuda.current_device():
                    break
                with torch.cuda.device(value.device):
                    return cuda(*args)
        return cuda(*args)

    return launched


class Operator:
    """A registered operator, and its derivative by another one.

    The arguments of the derivative are named after what they get: ``grad_NAME`` the gradient of a
    result, ``grad`` that of the first; ``into_NAME`` the gradient that comes back through an
    argument that was handed on, or None; ``needs_NAME`` whether an argument's gradient is needed;
    ``rows_NAME`` the number of its rows; any other name is that of an argument or result. Its
    results are called ``dNAME``. Results whose gradient it does not take have none.

    Attributes:
        overload: as torch knows it.
        fake: allocates the results.
        arguments, results: their names.
        names: all of these, those of :class:`Edges` in place of the edges.
    """

    def __init__(
        self, overload: OpOverload[..., Any], fake: Callable[..., Any], backward: Operator | None
    ) -> None:
        schema = overload._schema
        self.overload: OpOverload[..., Any] = overload
        self.fake: Callable[..., Any] = fake
        self.arguments: list[str] = [argument.name for argument in schema.arguments]
        self.results: list[str] = [result.name or "out" for result in schema.returns]
        self.names: list[str] = []
        for name in (*self.arguments, *self.results):
            self.names += Edges._fields if name == "edges" else [name]
        self.backward: Operator | None = backward
        self._tensors: list[bool] = [
            "Tensor" in str(value.type) for value in (*schema.arguments, *schema.returns)
        ]
        if backward is not None:
            self._slopes: Callable[..., Any] = backward.overload
            self.derivative: Callable[..., Any] = once(overload._opname, self._derivative)
            self._plan(backward)

    def _plan(self, backward: Operator) -> None:
        """Finds where each argument of the derivative comes from, and where its results go."""
        place = {name: at for at, name in enumerate((*self.arguments, *self.results))}
        grads = {f"grad_{name}": at for at, name in enumerate(self.results)} | {"grad": 0}
        self._sources: list[tuple[str, int]] = []
        for name in backward.arguments:
            kind, _, rest = name.partition("_")
            if name in place:
                kind, rest = "saved" if self._tensors[place[name]] else "value", name
            self._sources.append((kind, grads[name] if kind == "grad" else place[rest]))
        self._graded: set[int] = {at for kind, at in self._sources if kind == "grad"}
        self._targets: list[int] = [self.arguments.index(name[1:]) for name in backward.results]

    def __call__(self, *arguments: Any, handed: Sequence[str] = ()) -> Any:
        """Calls the operator; returns its results, and the arguments that are handed on."""
        places = [self.arguments.index(name) for name in handed]
        if self.backward is not None and torch.is_grad_enabled():
            return Derived.apply(self, places, *arguments)
        found = self.overload(*arguments)
        if not places:
            return found
        results = found if isinstance(found, tuple) else (found,)
        return *results, *(arguments[at] for at in places)

    def _derivative(self, ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        """Returns a gradient or None for each argument."""
        needs = ctx.needs_input_grad[2:]
        into = dict(zip(ctx.handed, grads[len(self.results) :], strict=True))
        if all(grads[at] is None for at in self._graded):
            return tuple(into.get(at) for at in range(len(needs)))
        saved, arguments = iter(ctx.saved_tensors), []
        for kind, at in self._sources:
            if kind == "grad":
                arguments.append(grads[at].contiguous())
            elif kind == "saved":
                many = ctx.lengths.get(at)
                arguments.append(
                    next(saved) if many is None else [next(saved) for _ in range(many)]
                )
            elif kind == "into":
                arguments.append(into.get(at))
            elif kind == "needs":
                arguments.append(needs[at])
            else:
                arguments.append(ctx.values[kind, at])
        found = self._slopes(*arguments)
        found = found if isinstance(found, tuple) else (found,)
        gradients: list[Tensor | None] = [None] * len(needs)
        for at, gradient in zip(self._targets, found, strict=True):
            if needs[at]:
                gradients[at] = cast(gradient, ctx.dtypes[at])
        return tuple(gradients)


class Derived(torch.autograd.Function):
    """Autograd function of all operators with a derivative by another one."""

    @staticmethod
    def forward(ctx: Any, operator: Operator, handed: list[int], *arguments: Any) -> Any:
        """Returns the operator's results, and the arguments that are handed on."""
        found = operator.overload(*arguments)
        results: tuple[Any, ...] = found if isinstance(found, tuple) else (found,)
        ctx.operator, ctx.handed = operator, handed
        ctx.lengths, ctx.values, saved = {}, {}, []
        values = *arguments, *results
        for kind, at in operator._sources:
            value = values[at]
            if kind == "saved" and isinstance(value, (list, tuple)):
                ctx.lengths[at] = len(value)
                saved += value
            elif kind == "saved":
                saved.append(value)
            elif kind == "value":
                ctx.values[kind, at] = value
            elif kind == "rows":
                ctx.values[kind, at] = value.size(0)
        ctx.dtypes = {at: values[at].dtype for at in operator._targets if values[at] is not None}
        ctx.save_for_backward(*saved)
        plain = [one for at, one in enumerate(results) if at not in operator._graded]
        if plain:
            ctx.mark_non_differentiable(*plain)
        ctx.set_materialize_grads(len(operator._graded) > 1)
        outs = [*results, *(arguments[at].view_as(arguments[at]) for at in handed)]
        return tuple(outs) if len(outs) > 1 else outs[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients of the operator's arguments."""
        return None, None, *ctx.operator.derivative(ctx, *grads)


INSTEAD = (
    "take it with mode='eager' and without kernels=True, or take the first derivative inside of "
    "the model's forward, in eager or a compiled mode"
)


def once(name: str, derivative: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a derivative that has no derivative of its own.

    Differentiating it raises an error that names the operator, unlike the error of
    ``once_differentiable``.

    Args:
        name: name of the operator.
        derivative: ``derivative(ctx, *grads)``, which returns a gradient or None for each input.
    """

    @wraps(derivative)
    def first(ctx: Any, *grads: Any) -> Any:
        """Returns the gradients; while autograd is recording, differentiating them raises an
        error."""
        if not torch.is_grad_enabled():
            return derivative(ctx, *grads)
        with torch.no_grad():
            results = derivative(ctx, *grads)
        message = f"{NAMESPACE}::{name} has no second derivative: {INSTEAD}"
        return delayed_error(
            message, [r if r is None else r.detach().requires_grad_() for r in results]
        )

    return first


def differentiable_once(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns :func:`once` as a decorator, for the ``backward`` of an autograd function."""
    return lambda derivative: once(name, derivative)
