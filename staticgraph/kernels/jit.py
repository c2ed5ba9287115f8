"""How the CPU kernels of this folder are compiled, said once.

Products may be fused into sums (``contract``) and the sign of a zero ignored (``nsz``); sums are
never reordered, so a result depends neither on the machine's vector width nor on the run. NaN and
infinity keep their meaning. No interpreter lock is held.
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
    "no_cfunc_wrapper": True,  # nobody calls them from C: a twentieth of the compiler's time
}
_compiled = numba.njit(**OPTIONS)


def kernel(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Compiles a loop at its first call; to a type checker it takes what it took."""
    return _compiled(function)


def inlined(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """For a part of a loop: put where it is called, since a call with four arrays costs as much
    as what it does for a row."""
    return numba.njit(inline="always")(function)
