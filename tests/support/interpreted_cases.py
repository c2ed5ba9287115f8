"""The cases of the GPU tests, with every operator's Triton code run by the interpreter on the CPU.

This is the comparison of the GPU tests, except for the sizes and for torch's own CUDA kernels.
Started by test_kernels_triton.py in a separate process, like interpreted_kernels.py.
"""

from __future__ import annotations

import os

import pytest
import torch

assert os.environ.get("TRITON_INTERPRET") == "1"

from staticgraph.kernels.register import CUDA, LIBRARY  # noqa: E402
from support.kernel_cases import CASES, DROPPED, DTYPES, NAMES, Sizes  # noqa: E402
from support.kernel_results import far, kept_on, on_cpu, operators_called, results  # noqa: E402

# More edges than one block, where they are processed in blocks.
LEAST = Sizes(20, 40, 3)
# torch's own CUDA kernels, which the interpreter cannot run.
TORCHS = {"varlen_attention", "varlen_attention_backward"}
# Further cases of an operator do not depend on the dtype.
RUN = [
    (name, dtype)
    for name in NAMES
    for dtype in DTYPES
    if name != "varlen_attention" and (" " not in name or dtype == torch.float32)
]


@pytest.fixture(scope="module")
def from_the_cpu():
    """Returns the results of the CPU's own kernels, and then replaces these kernels."""
    found = {(n, d): on_cpu(n, d, None, LEAST) for n, d in RUN if n in CASES}
    for name, kernel in CUDA.items():
        if name not in TORCHS:
            LIBRARY.impl(name, kernel, "CPU", allow_override=True)
    return found


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("name", "dtype"), RUN)
def test_triton_gives_the_cpus_results(from_the_cpu, name, dtype):
    with operators_called() as called:
        found = results(name, dtype, "cpu", LEAST)
    assert called
    expected = from_the_cpu.get((name, dtype))
    if name in DROPPED:
        expected = on_cpu(name, dtype, kept_on(name, "cpu", LEAST), LEAST)
    wrong = far(found, *expected, dtype)
    assert not wrong, "\n".join(wrong)
