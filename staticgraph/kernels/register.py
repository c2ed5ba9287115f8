"""Registers this library's operators with torch: CPU loop, CUDA kernel, shapes and derivative.

``torch.library.custom_op`` does the same with several layers of Python around each call, a
significant share of a step with hundreds of small calls. Every operator is registered here, so that
a dry run knows the CUDA side of each. Derivatives are :class:`torch.autograd.Function`s of the
operators, which torch.compile and this library's tracers follow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from typing import Any

import torch

from staticgraph.internals.dispatch import OpOverload, delayed_error
from staticgraph.kernels.cpu_loop import CpuLoop, over_tensors

NAMESPACE = "staticgraph"
# Kept for the life of the process: its operators are unregistered when it is deleted.
LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
# CUDA implementations by name: a dry run calls them with fake tensors.
CUDA: dict[str, Callable[..., Any]] = {}


def operator(
    schema: str,
    *,
    cpu: CpuLoop | Callable[..., Any],
    cuda: str = "",
    fake: Callable[..., Any],
    check: Callable[..., None] | None = None,
) -> Operator:
    """Registers an operator and returns it.

    Args:
        schema: name, arguments and results, in torch's notation; arguments that are written to as
            ``Tensor(a!)``. No defaults: torch drops arguments that equal them.
        cpu: a loop that takes arguments and results of the schema by their names, or a function of
            plain tensors without autograd.
        cuda: where such a function for CUDA, or a :class:`~staticgraph.kernels.launch.Launch`, is,
            as ``folder.file:name``: Triton is imported by the first call. Empty for an operator of
            the CPU alone.
        fake: the same computation on shapes and dtypes alone; it also allocates a loop's results.
        check: gets what a loop returns and the arguments; raises what is wrong with them.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    registered = Operator(getattr(getattr(torch.ops, NAMESPACE), name).default, fake)
    if isinstance(cpu, CpuLoop):
        cpu = over_tensors(cpu, registered.names, fake, check)
    LIBRARY.impl(name, cpu, "CPU")
    if cuda:
        CUDA[name] = _imported(cuda, registered)
        LIBRARY.impl(name, beside_its_tensors(CUDA[name]), "CUDA")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=LIBRARY)
    return registered


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
        for argument in args:
            value = argument[0] if isinstance(argument, (list, tuple)) and argument else argument
            if isinstance(value, torch.Tensor):
                if value.get_device() == torch.cuda.current_device():
                    break
                with torch.cuda.device(value.device):
                    return cuda(*args)
        return cuda(*args)

    return launched


class Operator:
    """A registered operator.

    Attributes:
        overload: as torch knows it.
        fake: allocates the results.
        names: of its arguments and results.
    """

    def __init__(self, overload: OpOverload[..., Any], fake: Callable[..., Any]) -> None:
        schema = overload._schema
        self.overload: OpOverload[..., Any] = overload
        self.fake: Callable[..., Any] = fake
        self.names: list[str] = [argument.name for argument in schema.arguments]
        self.names += [result.name or "out" for result in schema.returns]


INSTEAD = (
    "take it with mode='eager' and without kernels=True, or take the first derivative inside of "
    "the model's forward, in eager or a compiled mode"
)


def differentiable_once(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates the ``backward`` of an autograd function that has no derivative of its own.

    Differentiating it raises an error that names the operator, unlike the error of
    ``once_differentiable``.

    Args:
        name: name of the operator.
    """

    def decorated(derivative: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps ``derivative(ctx, *grads)``, which returns a gradient or None for each input."""

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

    return decorated
