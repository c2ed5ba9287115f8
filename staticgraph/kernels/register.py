"""Registers this library's operators with torch: a CPU kernel, a CUDA kernel, shapes.

``torch.library.custom_op`` does the same with several layers of Python around each call, a
significant share of a step with hundreds of small calls. Every operator is registered here, so that
a dry run knows the CUDA side of each. Its derivative is registered with it, or, if an operator
needs several variants, is a :class:`torch.autograd.Function` around it, which torch.compile and
this library's tracers follow as they follow the operators. Neither kind has a second derivative;
asking for one raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from staticgraph.internals.dispatch import delayed_error

NAMESPACE = "staticgraph"
# Kept for the life of the process: its operators are unregistered when it is deleted.
LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
# CUDA implementations by name: a dry run calls them with fake tensors.
CUDA: dict[str, Callable[..., Any]] = {}


def operator(
    schema: str,
    *,
    cpu: Callable[..., Any],
    cuda: Callable[..., Any] | None,
    fake: Callable[..., Any],
    derivative: Callable[..., Any] | None = None,
    setup: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Registers an operator and returns it.

    Args:
        schema: name, arguments and results, in torch's notation; arguments that are written to as
            ``Tensor(a!)``. No defaults: torch drops arguments that equal them.
        cpu, cuda: implementations for each device, on plain tensors without autograd. ``cuda`` is
            None if torch's own operations are as good there and the operator is not called.
        fake: the same computation on shapes and dtypes alone.
        derivative, setup: as in ``torch.library.register_autograd``: ``derivative(ctx, *grads)``,
            and ``setup(ctx, inputs, output)``, which saves what the derivative needs.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(name, cpu, "CPU")
    if cuda is not None:
        LIBRARY.impl(name, beside_its_tensors(cuda), "CUDA")
        CUDA[name] = cuda
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=LIBRARY)
    if derivative is not None:
        torch.library.register_autograd(
            f"{NAMESPACE}::{name}", once(name, derivative), setup_context=setup, lib=LIBRARY
        )
    return getattr(getattr(torch.ops, NAMESPACE), name).default


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
            found = derivative(ctx, *grads)
        results = found if isinstance(found, tuple) else (found,)
        message = f"{NAMESPACE}::{name} has no second derivative: {INSTEAD}"
        taped = [r if r is None else r.detach().requires_grad_() for r in results]
        given = delayed_error(message, taped)
        return given if isinstance(found, tuple) else given[0]

    return first


def asked_of(ctx: Any, found: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Returns the gradients of the first inputs that are needed, None in place of the others."""
    wants = ctx.needs_input_grad[: len(found)]
    return [one if want else None for one, want in zip(found, wants, strict=True)]


def differentiable_once(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns :func:`once` as a decorator, for the ``backward`` of an autograd function."""
    return lambda derivative: once(name, derivative)
