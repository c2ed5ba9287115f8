"""What every process does once that compiles, done ahead of the forks that would each do it again.

numba makes its tables of all that it knows when it compiles or loads the first loop, a second of
processor time; torch's compiler is imported when it is first called, and takes four.
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
    """torch's compiler and numba's, imported and their tables made; no thread is left running.

    No gradient is followed back: a torch that knows of a GPU's kind starts threads for that, in a
    trace too and where there is no GPU, and what forks from it then can follow none back.

    What parts of torch say there, of others that are deprecated, is for nobody who runs tests.
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
    if tqdm.monitor is not None:  # a thread of a bar that is done
        tqdm.monitor.exit()
        tqdm.monitor = None
