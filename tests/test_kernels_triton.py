"""The Triton kernels without a GPU: interpreted against the references, and as compiled."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest
import torch
from support.compiled import narrow_products
from support.interpreted import needs_interpreter, run_interpreted
from support.kernel_launches import every_launch
from triton.runtime.jit import JITFunction

from staticgraph import kernels


@pytest.mark.slow
@needs_interpreter
def test_interpreted_in_a_process_of_its_own():
    """One process for all files, so that torch loads once. The cases come last, since they
    replace the CPU implementation of every operator by the Triton one."""
    run_interpreted("interpreted_collate.py", "interpreted_neighbours.py", "interpreted_cases.py")


def test_every_kernel_has_a_name_of_its_own_and_is_launched_here():
    """A profile knows a kernel by its name alone. The others are called by kernels; those that are
    written for programs are named by their text."""
    package = {}
    for module in pkgutil.walk_packages(kernels.__path__, "staticgraph.kernels."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, JITFunction):
                assert package.setdefault(value.__name__, value) is value
    called = {n for name, f in package.items() for n in re.findall(r"\w+", f.src) if n != name}
    launched = {launch.name for launch in every_launch()}
    written = {name for name in launched if re.fullmatch(r"neighbours_(into|out_of)_\w{16}", name)}
    assert written
    assert package.keys() - called == launched - written


def test_no_kernel_takes_a_number_in_single_precision():
    """Triton passes a number that is not a constant as float32, also to float64 kernels."""
    assert [
        (each.name, each.numbers(float)) for each in every_launch() if each.numbers(float)
    ] == []


@pytest.mark.slow
def test_float64_is_not_rounded():
    for launch in every_launch(torch.float64):
        given = launch.arguments.items()
        single = {n: v for n, v in given if getattr(v, "dtype", None) == torch.float32}
        text = launch.replace(**{n: v.double() for n, v in single.items()}).ttir()
        assert not re.findall(r"arith\.(?:truncf|extf) .*", text), launch.name


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_kernel_adds_atomically_and_a_row_times_a_width_has_64_bits(dtype):
    """8.4 million edges of 256 columns are 2 ** 31 numbers."""
    for launch in every_launch(dtype):
        text = launch.ttir()
        drawn = "tt.atomic_rmw add, acq_rel, gpu, %ticket"  # a count of programs
        assert "atomic" not in text.replace(drawn, ""), launch.name
        assert narrow_products(text) == [], launch.name


@pytest.mark.slow
def test_compiles_with_any_number_that_is_one():
    """A number that is 1 is a constant to Triton: one row, one graph, one table, one tile."""
    for launch in every_launch():
        for name in launch.numbers(int):
            launch.replace(**{name: 1}).ttir()
