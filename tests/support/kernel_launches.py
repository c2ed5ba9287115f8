"""The launches of the operators' cases on CUDA, noted on the CPU (:mod:`support.compiled`).

Rows have 300 columns or 5 heads of 60, which are no powers of two, unlike every block.
"""

from __future__ import annotations

import functools

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from staticgraph.kernels.linear import small
from staticgraph.kernels.register import CUDA, NAMESPACE
from support.compiled import Launch, noted
from support.kernel_cases import CASES, DROPPED, Sizes
from support.kernel_oracle import cases
from support.kernel_results import results

HEADS, WIDTH = 5, 60
# More rows than a norm takes in one launch.
SIZES = Sizes(1100, 2000, 9)
NAMES = sorted(CASES.keys() | DROPPED.keys())
NO_FLOAT64 = ("linear", "graph_attention")


class OnCUDA(TorchDispatchMode):
    """Calls the CUDA implementation of every operator, whatever the device of its tensors is."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        namespace, _, name = func.name().partition("::")
        if namespace == NAMESPACE:
            return CUDA[name](*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def launched(name: str, dtype: torch.dtype) -> list[Launch]:
    """Returns the launches of a case, forward and backward."""

    def run() -> None:
        with cases(HEADS, WIDTH), OnCUDA():
            results(name, dtype, "cpu", SIZES)

    return noted(run)


@functools.cache
def every_launch(dtype: torch.dtype = torch.float32) -> list[Launch]:
    """Returns the launches of all cases that the dtype allows."""
    wide = dtype == torch.float64
    names = [name for name in NAMES if not (wide and name.startswith(NO_FLOAT64))]
    launches = [launch for name in names for launch in launched(name, dtype)]
    x, weight = torch.zeros(1100, 64, dtype=dtype), torch.zeros(64, 64, dtype=dtype)
    if not wide:
        launches += noted(small.forward, x, weight, None, True, dtype)
    return list({described(launch): launch for launch in launches}.values())


def described(launch: Launch) -> str:
    """Returns what Triton compiles a launch for: numbers, and dtypes of tensors."""
    arguments = launch.arguments.items()
    return f"{launch.name} {[(name, getattr(value, 'dtype', value)) for name, value in arguments]}"
