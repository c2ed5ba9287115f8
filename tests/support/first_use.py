"""Does the one-time work of compilers before a process forks, so that the forks do not repeat it.

numba builds its tables when it compiles or loads the first loop, which takes a second of processor
time; torch's compiler is imported on its first call, which takes four.
"""

from __future__ import annotations

import importlib
import warnings

import numba
import torch
from tqdm import tqdm


def _nothing(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def make_tables() -> None:
    """Imports the compilers of torch and numba and builds their tables; leaves no thread running.

    Runs no backward pass: a torch built for GPUs starts threads for one, even in a trace and
    without a GPU, and a process forked afterwards cannot run a backward pass.

    Deprecation warnings between parts of torch are ignored, as they do not concern the tests.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(_nothing, backend="aot_eager", dynamic=False)
        with torch.no_grad():
            compiled(torch.ones(2))
        torch._dynamo.reset()
        for part in ("compile_fx", "lowering", "codegen.cpp"):
            importlib.import_module(f"torch._inductor.{part}")
        numba.njit(_nothing)(1)
    if tqdm.monitor is not None:  # the thread of a finished progress bar
        tqdm.monitor.exit()
        tqdm.monitor = None
