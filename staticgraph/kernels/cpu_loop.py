"""CPU loops over tensors: their arguments are passed by address, by the names of an operator.

The problem: a NumPy view of a tensor takes a microsecond to create and a fifth of one to unpack,
and the loops of one step take hundreds of them, as long as they all run over a small batch. The
idea: a loop says by its annotations which arrays it takes. Python passes addresses and sizes in one
tuple of numbers, and a function that is written here, as ``dataclass`` writes ``__init__``, builds
the arrays inside the compiled code.

Invariant: an address is valid only while its tensor is alive, and carries no strides. Tensors are
made contiguous and of the loop's dtype first, and are alive until it returns.
"""

# numba's typing and code generation are not typed.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numba import types
from numba.extending import intrinsic
from numba.np import numpy_support
from torch import Tensor

from staticgraph.jit import kernel, kernel_part
from staticgraph.kernels import threads
from staticgraph.store.columns import Array

# One number per dtype in which loops compute, which tells a loop the type of its floats.
LIKE: dict[torch.dtype, Any] = {torch.float32: np.float32(0), torch.float64: np.float64(0)}
# The arrays that a loop may take: floats of one or two dimensions, and indices.
Vector = Matrix = Indices = IndexRows = Pointers = Array
KINDS: dict[str, tuple[int, torch.dtype | None]] = {
    "Vector": (1, None),
    "Matrix": (2, None),
    "Indices": (1, torch.int64),
    "IndexRows": (2, torch.int64),
    "Pointers": (1, torch.int32),
}
_ELEMENTS = {None: "like", torch.int64: "long", torch.int32: "short"}


def _pointer(typing: Any, address: Any, like: Any) -> Any:
    """Typing and code generation of ``pointer``: casts an address to a pointer to elements of the
    type of ``like``, for ``carray``."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        """Generates the cast of the number to a pointer."""
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

    return types.CPointer(like)(address, like), generate


_NAMES: dict[str, Any] = {
    "pointer": intrinsic(_pointer),
    "carray": numpy_support.carray,
    "long": np.int64(0),
    "short": np.int32(0),
}


class CpuLoop:
    """A compiled loop whose arguments have an operator's names.

    Attributes:
        arrays: name, dimensions and dtype of each array that it takes, None for its floats.
        numbers: names of its other arguments.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        names = [name for name in function.__annotations__ if name != "return"]
        kinds = {name: KINDS.get(function.__annotations__[name]) for name in names}
        self.arrays: list[tuple[str, int, torch.dtype | None]] = [
            (name, *kind) for name, kind in kinds.items() if kind
        ]
        thread_names = "thread", "threads"
        self.numbers: list[str] = [n for n in names if kinds[n] is None and n not in thread_names]
        body, lines, position = kernel_part(function), [], 0
        for name, dims, dtype in self.arrays:
            sizes = ", ".join(f"at[{position + 1 + place}]" for place in range(dims))
            element = _ELEMENTS[dtype]
            lines.append(f"{name} = carray(pointer(at[{position}], {element}), ({sizes},))")
            position += 1 + dims
        size = " + ".join(f"{name}.size" for name, _, dtype in self.arrays if dtype is None)
        lines.append(f"threads = team if {size or 0} >= enough else 1")
        arguments = "".join(f"{name}, " for name in names if name != "thread")
        if "thread" in names:
            body = threads.on_threads(body)
            arguments = f"threads, ({arguments.removeprefix('threads, ')})"
        lines.append(f"return body({arguments})")
        title, numbers = function.__name__, "".join(f", {name}" for name in self.numbers)
        text = f"def {title}(like, at, team, enough{numbers}):\n  " + "\n  ".join(lines)
        source, scope = function.__code__, {**_NAMES, "body": body, "__name__": function.__module__}
        exec(compile(text, source.co_filename, "exec"), scope)
        entry = scope[title]
        entry.__code__ = entry.__code__.replace(co_firstlineno=source.co_firstlineno)
        self._run: Callable[..., Any] = kernel(entry)

    def __call__(
        self, values: Sequence[Tensor | None], wide: torch.dtype, numbers: Sequence[Any]
    ) -> Any:
        """Runs the loop on contiguous tensors of its dtypes, in the order of :attr:`arrays`.

        None is an empty array, and sizes of one are appended where a tensor has fewer dimensions.
        """
        packed: list[int] = []
        for value, (_, dims, _) in zip(values, self.arrays, strict=True):
            if value is None:
                packed += _NOTHING[dims]
                continue
            packed.append(value.data_ptr())
            packed += value.shape
            if value.dim() != dims:
                packed += (min(1, value.numel()),) * (dims - value.dim())
        team = torch.get_num_threads() if threads.AVAILABLE else 1
        return self._run(LIKE[wide], tuple(packed), team, threads.SMALL, *numbers)


_NOTHING = [(0,) * (dims + 1) for dims in range(3)]


def in_loops(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which loops compute: float32 for half precisions."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns ``value`` in ``dtype``; the check comes first because a no-op ``to`` takes ten times
    as long."""
    return value if value.dtype is dtype else value.to(dtype)


def plain(value: Tensor | None, dtype: torch.dtype) -> Any:
    """Returns a tensor as a loop reads it: in ``dtype`` and without gaps; None for None."""
    if value is None or (value.dtype is dtype and value.is_contiguous()):
        return value
    return cast(value, dtype).contiguous()


def over_tensors(
    loop: CpuLoop,
    names: Sequence[str],
    shapes: Callable[..., Any],
    check: Callable[..., None] | None = None,
) -> Callable[..., Any]:
    """Returns the CPU side of an operator.

    Args:
        loop: writes every element of the results.
        names: of the operator's arguments and results.
        shapes: allocates the results.
        check: gets what the loop returns and the arguments; raises what is wrong with them.
    """
    place = {name: position for position, name in enumerate(names)}
    arrays = [(place[name], dtype) for name, _, dtype in loop.arrays]
    floats = [position for position, dtype in arrays if dtype is None]
    numbers = [place[name] for name in loop.numbers]

    def on_cpu(*arguments: Any) -> Any:
        """Allocates the results, runs the loop, and rounds what it wrote."""
        results = shapes(*arguments)
        single = isinstance(results, Tensor)
        outs = [results] if single else list(results)
        first, values = len(arguments), [*arguments, *outs]
        wide = torch.float32
        for position in floats:
            if values[position] is not None and values[position].dtype is torch.float64:
                wide = torch.float64
        tensors: list[Any] = []
        for position, dtype in arrays:
            tensors.append(plain(values[position], wide if dtype is None else dtype))
            if position >= first:
                values[position] = tensors[-1]
        result = loop(tensors, wide, [values[number] for number in numbers])
        if check is not None:
            check(result, *arguments)
        outs = [cast(new, old.dtype) for new, old in zip(values[first:], outs, strict=True)]
        return outs[0] if single else tuple(outs)

    return on_cpu
