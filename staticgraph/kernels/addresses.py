"""Tensors given to CPU kernels by their addresses.

The problem: a numpy view of a tensor takes a microsecond to make and a fifth of one to unpack, and
the kernels of one step take hundreds of them, as long as all their loops over a small batch. The
idea: a kernel that is called often takes the addresses of its arrays in one tuple, with their sizes
as numbers, and makes arrays of them where it is compiled.

Invariant: an address means nothing once its tensor is gone, and says nothing of strides. Whoever
calls a kernel so holds contiguous tensors of the dtype that the kernel is told, until it returns.
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

# A number of a dtype, by which a kernel knows what its addresses are of.
LIKE: dict[torch.dtype, Any] = {torch.float32: np.float32(0), torch.float64: np.float64(0)}


def _pointer(typing: Any, address: Any, like: Any) -> Any:
    """In a kernel: the address as a pointer to numbers of the type of ``like``, for ``carray``."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        """Code: the number as a pointer."""
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(address, like), generate


# Typed for kernels, which are compiled by numba's rules.
pointer: Any = intrinsic(_pointer)
carray: Any = numpy_support.carray


def addresses(*tensors: Tensor | None) -> tuple[int, ...]:
    """Of contiguous tensors, in their order; zero for None, which a kernel must not read."""
    return tuple([0 if tensor is None else tensor.data_ptr() for tensor in tensors])


def in_kernels(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which kernels compute: half precisions in float32."""
    return dtype if dtype in LIKE else torch.promote_types(dtype, torch.float32)


def cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The value in a dtype; asked first, since ``to`` takes ten times as long to do nothing."""
    return value if value.dtype == dtype else value.to(dtype)


def plain(value: Tensor | None, dtype: torch.dtype) -> Any:
    """What a kernel can read by its address."""
    return None if value is None else cast(value, dtype).contiguous()
