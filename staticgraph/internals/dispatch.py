"""What happens between a call and its kernel: dispatch modes, and switches for
``__torch_function__``.

Modes see every operation; the switches let a tensor subclass be inspected without its own
``__torch_function__``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch._guards import TracingContext
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "DisableTorchFunction",
    "DisableTorchFunctionSubclass",
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "TorchDispatchMode",
    "current_graph_task",
    "delayed_error",
    "preserved_versions",
    "traced_here",
    "version_of",
]

DisableTorchFunction: Callable[[], AbstractContextManager[None]] = torch._C.DisableTorchFunction
DisableTorchFunctionSubclass: Callable[[], AbstractContextManager[None]] = (
    torch._C.DisableTorchFunctionSubclass
)
HigherOrderOperator = torch._ops.HigherOrderOperator
OpOverload = torch._ops.OpOverload
OpOverloadPacket = torch._ops.OpOverloadPacket
# The id of the backward pass that this thread is in, or -1.
current_graph_task: Callable[[], int] = torch._C._current_graph_task_id


def traced_here() -> bool:
    """Returns whether the code of this thread is being traced or exported.

    ``torch.compiler.is_compiling()`` is true in every thread while one of them compiles.
    """
    if torch.compiler.is_dynamo_compiling():  # a trace treats it as True and stops here
        return True
    return TracingContext.try_get() is not None


def version_of(tensor: Tensor) -> int:
    """Returns how often a tensor was written to in place."""
    return tensor._version


def preserved_versions(tensors: Iterable[Tensor]) -> AbstractContextManager[None]:
    """Returns a context manager that hides in-place writes whose values are restored inside it.

    Afterwards the version counter of each tensor is what it was on entry, so a pending backward
    accepts the tensor. The caller has to restore the values.
    """
    counted = tuple(tensor for tensor in tensors if not tensor.is_inference())
    return torch.autograd._unsafe_preserve_version_counter(counted)  # pyright: ignore[reportPrivateImportUsage]


def delayed_error(message: str, given: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Returns ``given`` with a gradient function that raises ``RuntimeError(message)`` in
    backward."""
    kind = torch._C._functions.DelayedError  # pyright: ignore[reportAttributeAccessIssue]
    kept = kind(message.encode(), len(given))(*given)
    return kept if isinstance(kept, tuple) else (kept,)  # torch returns a single result as a tensor
