"""Passes tensors to CPU kernels by their addresses.

The problem: a NumPy view of a tensor takes a microsecond to create and a fifth of one to unpack,
and the kernels of one step take hundreds of them, as long as all their loops over a small batch.
The idea: a frequently called kernel takes the addresses of its arguments in one tuple, with their
sizes as numbers, and builds arrays from them inside the compiled code.

Invariant: an address is valid only while its tensor is alive, and carries no strides. The caller of
such a kernel keeps the tensors alive until it returns, and they are contiguous and of the dtype
that the kernel was told.
"""

# numba's typing and code generation are not typed.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import intrinsic
from numba.np import numpy_support
from torch import Tensor

# One number per dtype, which tells a kernel the element type of its addresses.
LIKE: dict[torch.dtype, Any] = {torch.float32: np.float32(0), torch.float64: np.float64(0)}


def _pointer(typing: Any, address: Any, like: Any) -> Any:
    """Typing and code generation of ``pointer``: casts an address to a pointer to elements of the
    type of ``like``, for ``carray``."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        """Generates the cast of the number to a pointer."""
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(address, like), generate


# Typed as Any: kernels are checked by numba's typing rules.
pointer: Any = intrinsic(_pointer)
carray: Any = numpy_support.carray


def addresses(*tensors: Tensor | None) -> tuple[int, ...]:
    """Returns the addresses of contiguous tensors, in order; zero for None, which a kernel must not
    read."""
    return tuple([0 if tensor is None else tensor.data_ptr() for tensor in tensors])


def in_kernels(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which kernels compute: float32 for half precisions."""
    return dtype if dtype in LIKE else torch.promote_types(dtype, torch.float32)


def cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns ``value`` in ``dtype``; the check comes first because a no-op ``to`` takes ten times
    as long."""
    return value if value.dtype == dtype else value.to(dtype)


def plain(value: Tensor | None, dtype: torch.dtype) -> Any:
    """Returns the tensor as a kernel can read it by address: in ``dtype`` and contiguous; None for
    None."""
    return None if value is None else cast(value, dtype).contiguous()
