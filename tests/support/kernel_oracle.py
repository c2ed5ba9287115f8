"""The references of the operators under the operators' own signatures, so that one case of
:mod:`support.kernel_cases` runs with either; and the comparison of both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from staticgraph.kernels.batch_norm import Running, batch_norm, batch_norm_reference
from staticgraph.kernels.graph_attention import graph_attention_reference
from staticgraph.kernels.linear import linear_reference
from staticgraph.kernels.neighbours import neighbours_reference
from staticgraph.kernels.neighbours.program import program_of
from staticgraph.kernels.table_sum import table_sum_reference
from support import kernel_cases
from support.kernel_cases import Sizes
from support.kernel_results import far, kept_on, results

# Sizes, heads, and the columns of each: no edges and empty graphs, loops on one node, nodes that
# all edges enter, isolated nodes, columns of whole vectors and of none, more rows than a block has.
SAMPLES = {
    "one node": (Sizes(1, 0, 2), 2, 1),
    "no edges": (Sizes(5, 0, 9), 2, 3),
    "loops": (Sizes(1, 4, 2), 4, 2),
    "hubs": (Sizes(3, 90, 2), 2, 5),
    "isolated nodes": (Sizes(40, 30, 9), 2, 19),
    "whole vectors": (Sizes(80, 160, 6), 4, 16),
}


def _neighbours(program, operands, codes, edges):
    wide = torch.promote_types(operands[0].dtype, torch.float32)
    outs = neighbours_reference(program, [operand.to(wide) for operand in operands], codes, edges)
    return tuple(out.to(operands[0].dtype) for out in outs)


def _batch_norm(
    x, weight, bias, count, *, eps, relu=False, addend=None, residual=None, running=None, **_
):
    x = x if addend is None else x + addend
    out, mean, var = batch_norm_reference(x, residual, weight, bias, count, eps, relu)
    mean, var = mean.detach(), var.detach()
    if running is not None and count > 1:
        running.tracked.add_(1)
        running.mean.lerp_(mean, running.momentum)
        running.var.lerp_(var * count / (count - 1), running.momentum)
    return out, mean, var


def _linear(x, weight, bias=None, *, relu=False):
    return linear_reference(x, weight, bias, relu)


def _fold_codes(index, offsets):
    sizes = offsets.diff().tolist()
    code = index.new_zeros(len(index))
    for column, size in enumerate(sizes):
        code = code * size + index[:, column]
    return code


REFERENCES: dict[str, Any] = {
    "batch_norm": _batch_norm,
    "dropout_sum": lambda x, residual, *_, p: x if residual is None else x + residual,
    "fold_codes": _fold_codes,
    "graph_attention": lambda rows, starts, *, heads, longest: graph_attention_reference(
        rows, starts, heads
    ),
    "linear": _linear,
    "linear_handed_on": lambda x, *rest, **options: (_linear(x, *rest, **options), x),
    "neighbours": _neighbours,
    "neighbours_of": lambda key, operands, codes, edges, handed=(): (
        *_neighbours(program_of(key), operands, codes, edges),
        *(operands[number] for number in handed),
    ),
    "table_sum": table_sum_reference,
}


@contextmanager
def cases(heads: int, width: int, *, reference: bool = False) -> Iterator[None]:
    """Runs cases with other heads and widths, and with the references in place of operators."""
    sizes = {"HEADS": heads, "WIDTH": width, "COLUMNS": heads * width}
    with patch.multiple(kernel_cases, **sizes, **(REFERENCES if reference else {})):
        yield


def with_gaps(value: Tensor) -> Tensor:
    """The same numbers, of which no two are adjacent in memory."""
    return torch.stack([value, torch.full_like(value, torch.nan)], -1)[..., 0]


def wrong_results(
    name: str,
    sample: str,
    dtype: torch.dtype,
    layout: Any = torch.clone,
) -> list[str]:
    """Returns a line for each result or gradient of a case that is not its reference's."""
    sizes, heads, width = SAMPLES[sample]
    with cases(heads, width):
        actual = results(name, dtype, "cpu", sizes, layout=layout)
        mask = kept_on(name, "cpu", sizes)
    with cases(heads, width, reference=True):
        exact = results(name, torch.float64, "cpu", sizes, dtype, mask)
        usual = results(name, dtype, "cpu", sizes, mask=mask)
    lines = far(actual, exact, usual, dtype, magnitude=1.0)
    return [f"{sample}, {dtype}: {line}" for line in lines]


def assert_running_statistics(momentum: float | None, columns: int) -> None:
    """Compares the running statistics of a norm with those of torch, over batches of any number of
    rows."""
    stock = torch.nn.BatchNorm1d(columns, momentum=momentum)
    ours = [stock.running_mean.clone(), stock.running_var.clone(), torch.tensor(0)]
    running = Running(*ours, momentum)
    weight, bias = torch.ones(columns), torch.zeros(columns)
    for rows in (8, 20):
        x = torch.randn(rows + 3, columns)
        stock(x[:rows])
        batch_norm(x, weight, bias, torch.tensor(rows), eps=1e-5, running=running)
        for few in (0, 1):  # neither padding alone nor one row tells a variance
            batch_norm(x, weight, bias, torch.tensor(few), eps=1e-5, running=running)
    assert torch.allclose(ours[0], stock.running_mean, atol=1e-6)
    assert torch.allclose(ours[1], stock.running_var, atol=1e-6)
    assert ours[2] == stock.num_batches_tracked
