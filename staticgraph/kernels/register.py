"""Operators of this library in torch's registry: a CPU kernel, a CUDA kernel, shapes.

``torch.library.custom_op`` does the same with several layers of Python around each call, which in a
step of hundreds of small calls are a good part of its time. Every operator is registered here, so
that a dry run knows the CUDA side of each. Its derivative is given with it, or, where an operator
has several, a :class:`torch.autograd.Function` around it, which torch.compile and the tracers of
this library follow as they follow the operators. Either has no derivative of its own, and says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from staticgraph.internals.dispatch import delayed_error

NAMESPACE = "staticgraph"
# Kept for the life of the process: torch forgets the operators with it.
LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
# The CUDA side of each, by name: a dry run calls it over fake tensors.
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
        schema: name, arguments and results, in torch's notation; arguments written to as
            ``Tensor(a!)``. No defaults: torch drops arguments that equal them.
        cpu, cuda: what runs there, on plain tensors without a tape. No ``cuda`` where torch's own
            operations are as good there and the operator is not called.
        fake: the same in shapes and dtypes alone.
        derivative, setup: as ``torch.library.register_autograd`` takes them: ``derivative(ctx,
            *grads)``, and ``setup(ctx, inputs, output)`` that keeps what it needs.
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
    """A CUDA kernel launched on the device of its tensors, as those of torch are. Triton launches
    on the present device and on its stream, which for a model on ``cuda:1`` need not be these."""

    @wraps(cuda)
    def launched(*args: Any) -> Any:
        """Launches with the tensors' device as the present one."""
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
    """A derivative without one of its own: where one is asked for, an error that names the
    operator, as ``once_differentiable`` gives one that does not.

    Args:
        name: of the operator.
        derivative: ``derivative(ctx, *grads)``, a gradient or None for each input.
    """

    @wraps(derivative)
    def first(ctx: Any, *grads: Any) -> Any:
        """The gradients; on a tape, with an error in place of a derivative of their own."""
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
    """Of the gradients of the first inputs those that are asked for, None in place of others."""
    wants = ctx.needs_input_grad[: len(found)]
    return [one if want else None for one, want in zip(found, wants, strict=True)]


def differentiable_once(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """:func:`once` as a decorator, for the ``backward`` of an autograd function."""
    return lambda derivative: once(name, derivative)
