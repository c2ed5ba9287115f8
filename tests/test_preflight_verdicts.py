"""What a preflight concludes, and the advice it gives."""

from __future__ import annotations

import warnings

import pytest
import torch
from support.layer_cases import C
from support.obstacle_models import (
    PLAN,
    HostRange,
    Item,
    MaskWrite,
    Net,
    NewTensor,
    Nonzero,
    Tied,
    ToHost,
)
from support.parity import STORE
from torch import nn
from torch_geometric.data import Batch

from staticgraph.checking.check import check


def lines_of(report, number=1):
    """The lines of the report about one obstacle."""
    text = str(report).splitlines()
    first = next(i for i, line in enumerate(text) if line.startswith(f"{number}. "))
    end = next(i for i in range(first + 1, len(text)) if not text[i].startswith("   "))
    return "\n".join(text[first:end])


def verdicts(report):
    """The two verdicts, as printed."""
    said = dict(
        line.split(": ", 1)
        for line in str(report).splitlines()
        if line.startswith(("compiles: ", "can be recorded: "))
    )
    assert (said["compiles"] == "yes") is report.compiles
    assert (said["can be recorded"] == "yes") is report.recordable
    return said["compiles"], said["can be recorded"]


class Deprecated(Net):
    def trick(self, h):
        warnings.warn("trick is deprecated, use stunt", stacklevel=1)
        return h - h.mean(0)  # a wrong result is no verdict on how it runs


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Deprecated, ("yes", "yes")),
        (ToHost, ("yes", "no, for 1")),
        (Item, ("no, for 1", "no, for 1")),
        (MaskWrite, ("no, for 1", "no, for 1")),
        (HostRange, ("yes", "no, for 1")),
        (NewTensor, ("yes", "no, for 1")),
    ],
)
def test_two_verdicts_compiles_and_can_be_recorded(kind, expected):
    assert verdicts(check(kind().double(), PLAN, STORE)) == expected


class Sparse(Net):
    def trick(self, h):
        rows = torch.zeros_like(h[:, 0], dtype=torch.long)
        return torch.sparse_coo_tensor(torch.stack([rows, rows]), h[:, 0], [len(h)] * 2) @ h  # here


class MakesBatch(Net):
    def trick(self, h):
        data = Batch(x=h, batch=h[:, 0].long())  # here
        return data.x


class Caught(Net):
    def trick(self, h):
        if torch.compiler.is_compiling():
            raise KeyError("zork")  # here
        return h


def test_the_exception_below_dynamos_is_shown():
    for kind, first, advice in (
        (Sparse, "cannot be traced: ", "does not follow sparse tensors: sum over edges"),
        (MakesBatch, "raises while it is traced: ", "PyG Data or Batch inside its forward"),
        (Caught, "raises while it is traced: KeyError('zork')", "operations on tensors"),
    ):
        torch.manual_seed(0)
        said = lines_of(check(kind().double(), PLAN, STORE))
        assert said.startswith(f"1. {first}"), said
        assert "# here" in said or kind is MakesBatch, said
        assert advice in said
        assert "found no exception handler" not in said


class Narrow(Net):
    def trick(self, h):
        return h.view(34, C)  # the nodes of one batch


class Missing(Net):
    def trick(self, h):
        return h * self.absent


class Float(Net):
    def trick(self, h):
        return nn.functional.linear(h, self.head.weight.float())


@pytest.mark.parametrize(
    ("kind", "has", "lacks"),
    [
        (Narrow, "plain PyG runs these graphs without padding", "model.double()"),
        (Missing, "plain PyG stops on these graphs, too", "print(store)"),
        (Float, "model.double() for float64 data", "without padding"),
    ],
)
def test_advice_belongs_to_the_failure(kind, has, lacks):
    said = lines_of(check(kind().double(), PLAN, STORE))
    assert has in said
    assert lacks not in said


def test_a_first_node_has_a_fixed_form():
    said = lines_of(check(Nonzero().double(), PLAN, STORE))
    assert "batch.ptr[:-1]" in said


def test_ties_are_known_and_nothing_else_passes_for_one():
    report = check(Tied().double(), PLAN, STORE)
    assert report.ok, str(report)
    assert "a choice among equal rows (TopK, max, sort)" in report.parity_note
    report = check(Tied(off=1.0).double(), PLAN, STORE)
    assert "differs from plain PyG" in str(report)
    assert "without ties" not in report.parity_note
