"""What torch does with a call and its operands, by its private names.

Dispatch modes see every operation, and switches let a tensor subclass be inspected without its own
``__torch_function__``. Next to them: operators of ATen that are not public, copies of lists of
tensors in one call, copies of objects in code that Dynamo traces, nested results taken apart
(``torch.utils._pytree``), calls that switch gradients or autocast in a captured graph, and the
shapes of what a result was computed from, read from its autograd graph.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active as transforms_active
from torch._C import _len_torch_dispatch_stack as dispatch_modes
from torch._guards import TracingContext
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.amp.autocast_mode import _enter_autocast as enter_autocast
from torch.amp.autocast_mode import _exit_autocast as exit_autocast
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as undispatched
from torch.utils._pytree import (
    TreeSpec,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_map_only,
    tree_unflatten,
)

__all__ = [
    "DisableTorchFunction",
    "DisableTorchFunctionSubclass",
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "TorchDispatchMode",
    "TreeSpec",
    "addmm_activation",
    "assert_async",
    "copied",
    "copies_of",
    "copy_all",
    "current_graph_task",
    "delayed_error",
    "dispatch_modes",
    "enter_autocast",
    "exit_autocast",
    "onednn_linear",
    "preserved_versions",
    "read_number",
    "set_grad_enabled",
    "shapes_before",
    "switched_back",
    "to_copy",
    "tracing_context",
    "transforms_active",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "tree_map_only",
    "tree_unflatten",
    "undispatched",
    "version_of",
]

# A layer by oneDNN; a CPU build without it has no such operator.
onednn_linear: Callable[..., Tensor] | None = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
assert_async: OpOverload[..., Any] = torch.ops.aten._assert_async.msg

# Copies each tensor of the second list to its counterpart in the first. Not wrapped, since a
# wrapper would add a call to every replay.
copy_all: Callable[[list[Tensor], list[Tensor]], None] = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage]


def copies_of(tensors: list[Tensor]) -> Sequence[Tensor]:
    """Returns new tensors with the same values."""
    return torch._foreach_mul(tensors, 1)  # pyright: ignore[reportPrivateImportUsage]


# torch 2.11 cannot trace access to an object's ``__dict__``.
_LOOKS_INTO_OBJECTS = not torch.__version__.startswith("2.11.")


class _Namespace:
    """Stands for a ``SimpleNamespace``, of which torch cannot trace how one is made."""


def copied(instance: Any) -> Any:
    """Returns a copy of a dataclass instance or a namespace, of which the caller sets each field.

    ``copy.copy`` cannot be traced on torch 2.11, nor on 2.13 if the class has slots. So under
    tracing, attributes that are not fields are copied only if torch can trace access to
    ``__dict__``, and slots that are not fields stay empty.
    """
    if not torch.compiler.is_dynamo_compiling():
        return copy.copy(instance)
    kind = type(instance)
    duplicate = object.__new__(_Namespace if kind is SimpleNamespace else kind)
    if _LOOKS_INTO_OBJECTS and hasattr(instance, "__dict__"):
        duplicate.__dict__.update(instance.__dict__)
    return duplicate


set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled


@contextmanager
def switched_back() -> Iterator[None]:
    """A ``with`` block after which gradients and autocast are as they were before it.

    A captured graph switches them by calls among its others, and an error skips those that switch
    back: autocast would stay on, or later ones would read casts of old weights from its cache.
    """
    states = [
        (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
        for kind in ("cpu", "cuda")
    ]
    depth = torch.autocast_increment_nesting()
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()):
            yield
    finally:
        while (left := torch.autocast_decrement_nesting()) >= depth:
            pass
        if left == 0:
            torch.clear_autocast_cache()
        for kind, enabled, dtype in states:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)


# Product with ReLU in its epilogue, on CUDA only.
addmm_activation: OpOverloadPacket[..., Any] = torch.ops.aten._addmm_activation
# The operator as which reading one number on the host is dispatched.
read_number: OpOverload[..., Any] = torch.ops.aten._local_scalar_dense.default
# The operator as which a change of dtype or device is dispatched.
to_copy: OpOverloadPacket[..., Any] = torch.ops.aten._to_copy

# Limit on the nodes of the autograd graph that are visited: a loss consists of a few operations.
MOST = 64


def shapes_before(values: Tensor) -> set[tuple[int, ...]] | None:
    """Finds the shapes of the computed tensors from which ``values``, of another shape, was made.

    The search goes back through operations that keep the shape of ``values``. Parameters are left
    out.

    Args:
        values: any tensor.

    Returns:
        The shapes; None if ``values`` has no autograd history, so that nothing is known.
    """
    if values.grad_fn is None:
        return None
    own_shape, shapes = tuple(values.shape), set[tuple[int, ...]]()
    nodes: list[Any] = [values.grad_fn]
    visited = set(nodes)
    while nodes and len(visited) < MOST:
        for node, place in nodes.pop().next_functions:
            if node is None or node in visited or not node.next_functions:  # ends at a parameter
                continue
            shape = tuple(node._input_metadata[place].shape)
            if shape == own_shape:
                visited.add(node)
                nodes.append(node)
            else:
                shapes.add(shape)
    return shapes


DisableTorchFunction: Callable[[], AbstractContextManager[None]] = torch._C.DisableTorchFunction
DisableTorchFunctionSubclass: Callable[[], AbstractContextManager[None]] = (
    torch._C.DisableTorchFunctionSubclass
)
# The id of the backward pass that this thread is in, or -1.
current_graph_task: Callable[[], int] = torch._C._current_graph_task_id


# What this thread traces or exports; None for nothing.
tracing_context: Callable[[], Any] = TracingContext.try_get
# How often a tensor was written to in place.
version_of: Callable[[Tensor], int] = attrgetter("_version")


def preserved_versions(tensors: Iterable[Tensor]) -> AbstractContextManager[None]:
    """Returns a context manager that hides in-place writes whose values are restored inside it.

    Afterwards the version counter of each tensor is what it was on entry, so a pending backward
    accepts the tensor. The caller has to restore the values.
    """
    counted = tuple(tensor for tensor in tensors if not tensor.is_inference())
    return torch.autograd._unsafe_preserve_version_counter(counted)  # pyright: ignore[reportPrivateImportUsage]


def delayed_error(message: str, tensors: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Returns ``given`` with a gradient function that raises ``RuntimeError(message)`` in
    backward."""
    kind = torch._C._functions.DelayedError  # pyright: ignore[reportAttributeAccessIssue]
    node = kind(message.encode(), len(tensors))(*tensors)
    return node if isinstance(node, tuple) else (node,)  # torch returns a single result as a tensor
