"""The numba options with which all loops of this package are compiled.

``loop`` and ``part`` are for loops over numbers of graphs, addresses and the like; ``kernel`` and
``kernel_part`` for CPU kernels, whose floats follow these rules: products may be fused with sums
(``contract``) and the sign of a zero ignored (``nsz``). Sums are never reordered, so a result
depends neither on the machine's vector width nor on the run. NaN and infinity keep their meaning.
Division by zero raises nothing.

All release the GIL and keep what is compiled in numba's cache. numba makes no code by which C could
call them, and for those named ``part`` none by which Python could: the loops of a training run
compiled in 74.9 and 78.7 processor seconds, 81.9 and 85.9 without (in turn, on two shared CPU
cores, empty caches, 2026-11-23).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numba

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "no_cfunc_wrapper": True}
KERNEL_OPTIONS: dict[str, Any] = {
    **OPTIONS,
    "error_model": "numpy",
    "fastmath": {"contract", "nsz"},
}


def loop(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Compiles a loop at its first call; keeps the function's signature for type checkers."""
    return numba.njit(**OPTIONS)(function)


def part(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Compiles a part of loops, which Python cannot call: a ``TypeError`` if it does."""
    return _for_loops_alone(function, OPTIONS)


def kernel(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Compiles a kernel's loop at its first call."""
    return numba.njit(**KERNEL_OPTIONS)(function)


def kernel_part(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Compiles a part of kernels, which Python cannot call: a ``TypeError`` if it does."""
    return _for_loops_alone(function, KERNEL_OPTIONS)


def inlined(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Compiles a part of a loop to be inlined at its call.

    A real call with four arrays costs as much as the work for one row.
    """
    return numba.njit(inline="always")(function)


def _for_loops_alone(
    function: Callable[Arguments, Result], options: dict[str, Any]
) -> Callable[Arguments, Result]:
    njit: Any = numba.njit  # whose types know no options in a dict
    compiled = njit(**options, no_cpython_wrapper=True)(function)
    if compiled is function:  # NUMBA_DISABLE_JIT
        return function

    def keep(result: Any) -> None:
        """Keeps what was compiled for callers that are compiled, as numba does, but not where numba
        looks for a call from Python: without its wrapper, that call ends the process."""
        compiled.overloads[tuple(result.signature.args)] = result

    def refuse(*arguments: object, **named: object) -> None:
        """Called by numba for argument types that it knows no wrapper of, here all."""
        name = f"{function.__module__}.{function.__qualname__}"
        raise TypeError(f"{name} can be called by compiled loops only: decorate it as a loop")

    compiled.add_overload, compiled._compile_for_args = keep, refuse
    return compiled
