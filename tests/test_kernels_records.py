"""Every case of every operator on the CPU, in all ways: against its reference in every dtype, over
graphs of every kind, on any number of threads; registered soundly, NaN for NaN."""

from __future__ import annotations

import importlib
import os

import pytest
import torch
from support.kernel_cases import COMPARED, DROPPED, FEW, Sizes
from support.kernel_oracle import SAMPLES, cases, with_gaps, wrong_results
from support.kernel_results import operator_calls, results

threads = importlib.import_module("staticgraph.kernels.threads")
# Loops compute in single precision, also of half precisions, or in double. Compiling them takes
# most of the time, and both are compiled from the same lines.
SINGLE = [torch.float32, torch.bfloat16, torch.float16]
DTYPES = [*SINGLE, torch.float64] if os.environ.get("EVERY_CASE") else SINGLE


@pytest.mark.parametrize("name", COMPARED)
def test_an_operator_is_its_reference(name):
    """Results and gradients; operands of every other sample have gaps."""
    wrong = []
    for number, sample in enumerate(SAMPLES):
        layout = with_gaps if number % 2 else torch.clone
        for dtype in DTYPES:
            wrong += wrong_results(name, sample, dtype, layout)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", [name for name in COMPARED if name not in DROPPED])
def test_a_nan_stays_one_and_spreads_no_further(name):
    with torch.no_grad(), cases(2, 3):
        found = results(name, torch.float32, "cpu", FEW, layout=one_nan)
    with torch.no_grad(), cases(2, 3, reference=True):
        expected = results(name, torch.float32, "cpu", FEW, layout=one_nan)
    wrong = [
        f"{place}: {one.isnan().sum()} for {other.isnan().sum()}"
        for place, (one, other) in enumerate(zip(found, expected, strict=True))
        if not torch.equal(one.isnan(), other.isnan())
    ]
    assert not wrong, wrong


def one_nan(value):
    value = value.clone()
    value.view(-1)[value.numel() // 2 : value.numel() // 2 + 1] = torch.nan
    return value


@pytest.mark.skipif(not threads.AVAILABLE, reason="torch has no libgomp of its own")
@pytest.mark.parametrize("name", [name for name in COMPARED if not name.startswith("linear")])
def test_the_bits_are_the_same_on_any_number_of_threads(name, monkeypatch):
    """Even more threads than rows. Products of linear layers are a library's."""
    monkeypatch.setattr(threads, "SMALL", 0)
    before = torch.get_num_threads()
    try:
        for sizes in (Sizes(7, 21, 3), Sizes(300, 900, 9)):
            found = []
            for count in (1, 3, 40):
                torch.set_num_threads(count)
                found.append(results(name, torch.float32, "cpu", sizes))
            for other in found[1:]:
                assert all(map(torch.equal, found[0], other))
    finally:
        torch.set_num_threads(before)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name in COMPARED if " " not in name])
def test_registration_is_sound(name):
    """torch's own checks of every operator that a case calls, forward and backward: schema, shapes
    and tracing."""
    with cases(2, 3):
        for operator, args in operator_calls(name, torch.float32).items():
            torch.library.opcheck(operator, args)
