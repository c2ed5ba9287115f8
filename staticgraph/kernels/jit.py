"""The numba options with which all CPU kernels of this package are compiled.

Products may be fused with sums (``contract``) and the sign of a zero ignored (``nsz``). Sums are
never reordered, so a result depends neither on the machine's vector width nor on the run. NaN and
infinity keep their meaning. The GIL is released.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numba

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
OPTIONS: dict[str, Any] = {
    "cache": True,
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"contract", "nsz"},
    "no_cfunc_wrapper": True,  # never called from C: saves a twentieth of the compile time
}
_compiled = numba.njit(**OPTIONS)


def kernel(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Compiles a loop at its first call; keeps the function's signature for type checkers."""
    return _compiled(function)


def inlined(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Compiles a part of a loop to be inlined at its call.

    A real call with four arrays costs as much as the work for one row.
    """
    return numba.njit(inline="always")(function)
