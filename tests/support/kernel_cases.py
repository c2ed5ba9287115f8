"""Cases for every operator of this library: operands, the call, and all results with gradients.

The same body runs on every device. Operands are the same numbers everywhere: eighths from -2 to 2,
some of them plus a sixteenth. These are exact in every dtype, as are the sums of two or three of
them, so that the rounding of a device never changes the side of a ReLU or which value is largest.
There are many ties among the largest values.

:mod:`support.kernel_results` compares the results on a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from staticgraph.batches.collation.collate_arguments import collate_arguments
from staticgraph.kernels import (
    batch_norm,
    dropout_sum,
    graph_attention,
    table_sum,
)
from staticgraph.kernels.batch_norm import Running
from staticgraph.kernels.collate import Arguments, collate
from staticgraph.kernels.dropout_sum import draw_mask as draw_values_mask
from staticgraph.kernels.dropout_sum import dropout_sum_reference
from staticgraph.kernels.edges import Edges, order_edges
from staticgraph.kernels.graph_attention import draw_mask as draw_weights_mask
from staticgraph.kernels.graph_attention import graph_attention_reference
from staticgraph.kernels.linear import linear, linear_handed_on
from staticgraph.kernels.neighbours import Program, neighbours, neighbours_of
from staticgraph.kernels.neighbours.program import known
from staticgraph.kernels.table_sum import fold_codes
from support.collated import layout_for, odd_graphs, padded_ids
from support.messages import gat, gcn, gine, nnconv, painn, pna, pools

HEADS, WIDTH = 4, 16
COLUMNS = HEADS * WIDTH
TABLES = (5, 9, 3)


class Sizes(NamedTuple):
    """The sizes of the graph that the operators read."""

    nodes: int = 3000
    edges: int = 7000
    graphs: int = 128


class Where(NamedTuple):
    """The structure that every batch has of its graphs, on a device."""

    edges: Edges
    graphs: Edges  # nodes as edges into their graphs
    ptr: Tensor
    longest: int
    real: Tensor  # number of nodes that are not padding
    index: Tensor  # categories, one column per table
    seed: Tensor
    device: str


Values = dict[str, Tensor]


def where(sizes: Sizes, device: str) -> Where:
    """Returns the same structure on every device."""
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(sizes.nodes, (sizes.edges,), generator=generator)
    dst = torch.randint(sizes.nodes, (sizes.edges,), generator=generator).sort().values
    everything = torch.arange(sizes.nodes + 1)
    transpose = torch.argsort(src, stable=True)
    pointers = (
        torch.searchsorted(dst, everything).int(),
        torch.searchsorted(src[transpose].contiguous(), everything).int(),
        transpose.int(),
    )
    ptr = torch.linspace(0, sizes.nodes, sizes.graphs + 1).long()
    index = torch.stack(
        [torch.randint(size, (sizes.nodes,), generator=generator) for size in TABLES], 1
    )
    graph = torch.arange(sizes.graphs).repeat_interleave(ptr.diff())
    both = (src, dst, *pointers), (graph, graph, *(ptr.int(),) * 3)
    return Where(
        *(Edges(*(value.to(device) for value in arrays)) for arrays in both),
        ptr.to(device),
        int(ptr.diff().max()),
        torch.tensor(sizes.nodes - sizes.nodes // 10, device=device),
        index.to(device),
        torch.tensor([3], device=device),
        device,
    )


def operands(sizes: Sizes, dtype: torch.dtype, device: str) -> Values:
    """Returns leaf tensors that require a gradient."""
    generator = torch.Generator().manual_seed(1)

    def eighths(*shape: int, offset: float = 0.0) -> Tensor:
        return torch.randint(-16, 17, shape, generator=generator) / 8 + offset

    n, e = sizes.nodes, sizes.edges
    sign = torch.randint(2, (n, COLUMNS), generator=generator) * 2 - 1
    values = {
        "x": eighths(n, COLUMNS),
        "right": eighths(n, COLUMNS),
        "rows": eighths(e, COLUMNS, offset=1 / 16),
        "edge": eighths(e, HEADS, offset=1 / 16),
        "own": eighths(n, HEADS, offset=1 / 16),
        "weight": eighths(COLUMNS, COLUMNS),
        "bias": eighths(COLUMNS, offset=1 / 16),
        "tables": eighths(sum(TABLES), COLUMNS),
        "table": eighths(TABLES[0], COLUMNS, offset=1 / 16),
        "qkv": eighths(n, 3 * COLUMNS),
        # Far from zero on both sides, and parameters of a norm that keep the result far from zero.
        "apart": sign * torch.randint(4, 13, (n, COLUMNS), generator=generator) / 8,
        "little": eighths(n, COLUMNS) / 16,
        "scale": 1 + eighths(COLUMNS) / 4,
        "shift": eighths(COLUMNS) / 32,
    }
    return {name: v.to(dtype).to(device).requires_grad_() for name, v in values.items()}


# ---------------------------------------------------------------------- the cases


def _offsets(w: Where) -> Tensor:
    return torch.tensor([0, *np.cumsum(TABLES)], device=w.device)


def _norm(v: Values, w: Where, **options: Any) -> list[Tensor]:
    return list(batch_norm(v["apart"], v["scale"], v["shift"], w.real, eps=1e-5, **options))


def _running_norm(v: Values, w: Where) -> list[Tensor]:
    wide = torch.promote_types(v["x"].dtype, torch.float32)
    running = Running(
        torch.zeros(COLUMNS, dtype=wide, device=w.device),
        torch.ones(COLUMNS, dtype=wide, device=w.device),
        torch.tensor(0, device=w.device),
        0.1,
    )
    return [*_norm(v, w, addend=v["little"], running=running), *running[:3]]


def _few_rows_norm(v: Values, w: Where) -> list[Tensor]:
    """Takes one launch per direction."""
    x, real = v["apart"][:200], w.real.clamp(max=150)
    return list(batch_norm(x, v["scale"], v["shift"], real, eps=1e-5, relu=True))


def _linear(v: Values, **options: Any) -> Tensor:
    return linear(v["x"], v["weight"], **options)


def _read_twice(v: Values) -> list[Tensor]:
    out, x = linear_handed_on(v["x"], v["weight"], v["bias"], relu=True)
    return [out, x * 2]


def _attention(v: Values, w: Where, **options: Any) -> Tensor:
    return graph_attention(v["qkv"], w.ptr.int(), heads=HEADS, longest=w.longest, **options)


def _collated(_: Values, w: Where) -> list[Tensor]:
    """Collates every kind of field and returns the bytes."""
    store = odd_graphs()
    ids = [2, 1, 4, 0, 1, 5]
    layout = layout_for(store, ids)
    tensors = layout.tensors(torch.zeros(layout.nbytes, dtype=torch.uint8, device=w.device))
    moved = store.to(w.device)
    arguments = Arguments(*collate_arguments(moved, layout, tensors))
    collate(padded_ids(ids, layout, w.device), arguments)
    return [t.contiguous().view(-1).view(torch.uint8) for t in tensors.values() if t.numel()]


def _ordered(_: Values, w: Where) -> list[Tensor]:
    nodes = len(w.edges.row_ptr) - 1
    return order_edges(w.edges.dst, w.edges.src, nodes, nodes)


def _reduced(program: Program, rows: list[Tensor], edges: Edges, *codes: Tensor) -> list[Tensor]:
    return list(neighbours(program, rows, codes, edges))


Run = Callable[[Values, Where], Any]
# The keys are an operator and what is specific to the case.
CASES: dict[str, Run] = {
    "batch_norm": lambda v, w: _norm(v, w, relu=True, residual=v["right"]),
    "batch_norm alone": lambda v, w: _norm(v, w),
    "batch_norm running": _running_norm,
    "batch_norm of few rows": _few_rows_norm,
    "collate": _collated,
    "dropout_sum of nothing": lambda v, w: dropout_sum(v["rows"], v["rows"], w.seed, 4, p=0.0),
    "order_edges": _ordered,
    "graph_attention": _attention,
    "linear": lambda v, w: _linear(v, bias=v["bias"], relu=True),
    "linear alone": lambda v, w: _linear(v),
    "linear of a transposed weight": lambda v, w: linear(v["x"], v["weight"].t().contiguous().t()),
    "linear read twice": lambda v, w: _read_twice(v),
    "neighbours": lambda v, w: _reduced(
        pna(HEADS, WIDTH),
        [v[name].view(-1, HEADS, WIDTH) for name in ("x", "right", "rows")],
        w.edges,
    ),
    "neighbours of GAT": lambda v, w: _reduced(
        gat(HEADS, WIDTH, loops=True),
        [v["x"].view(-1, HEADS, WIDTH), v["own"], v["right"][:, :HEADS], v["edge"]],
        w.edges,
    ),
    "neighbours of GCN": lambda v, w: _reduced(
        gcn(COLUMNS), [v["x"], v["bias"], v["own"][:, :1], v["right"][:, :1]], w.edges
    ),
    "neighbours of GINE": lambda v, w: _reduced(gine(COLUMNS), [v["x"], v["rows"]], w.edges),
    "neighbours of NNConv": lambda v, w: _reduced(
        nnconv(HEADS, WIDTH), [v["x"][:, :HEADS], v["rows"]], w.edges
    ),
    "neighbours of PaiNN": lambda v, w: _reduced(painn(COLUMNS), _vectors(v), w.edges),
    "neighbours of graphs": lambda v, w: _reduced(pools(COLUMNS), [v["x"]], w.graphs),
    "table_sum": lambda v, w: table_sum(w.index, _offsets(w), v["tables"]),
}


def _vectors(v: Values) -> list[Tensor]:
    """Filters of edges, three rows of each node twice, and directions of edges."""
    rows = v["rows"]
    direction = rows[:, :1, None].expand(-1, 3, 1)
    return [rows.repeat(1, 3), v["qkv"], v["qkv"].view(-1, 3, COLUMNS), direction]


def _handed_on(v: Values, w: Where) -> list[Tensor]:
    """Two layers that read the same rows of edges: the first hands them on."""
    key = known(gine(COLUMNS))
    out, x, rows = neighbours_of(key, [v["x"], v["rows"]], (), w.edges, (0, 1))
    again = neighbours_of(key, [x / 2, rows], (), w.edges)
    return [out, *again, x * 3, rows * 2]


# What there is on a CPU alone.
ON_CPU: dict[str, Run] = {
    "fold_codes": lambda v, w: fold_codes(w.index, _offsets(w)),
    "neighbours of a table": lambda v, w: _reduced(
        gine(COLUMNS, "table", 0), [v["x"], v["table"]], w.edges, w.index[w.edges.src, 0]
    ),
}
# Options of the same operators that only the CPU needs to show.
MORE: dict[str, Run] = ON_CPU | {
    "neighbours in layers": _handed_on,
    "batch_norm of all rows": lambda v, w: list(
        batch_norm(
            v["apart"], v["scale"], v["shift"], torch.tensor(len(v["apart"])), eps=1.0, relu=True
        )
    ),
}


class Dropped(NamedTuple):
    """An operator with dropout, what it keeps, and the reference that takes what is kept."""

    run: Run
    draw_mask: Callable[[Values, Where], Tensor]
    reference: Callable[[Values, Where, Tensor], Tensor]


DROPPED: dict[str, Dropped] = {
    "dropout_sum": Dropped(
        lambda v, w: dropout_sum(v["rows"], None, w.seed, 4, p=0.25, relu=True),
        lambda v, w: draw_values_mask(w.seed, 4, v["rows"].shape, 0.25),
        lambda v, w, mask: dropout_sum_reference(v["rows"], None, mask, 0.25, True),
    ),
    "dropout_sum residual": Dropped(
        lambda v, w: dropout_sum(v["x"], v["right"], w.seed, 5, p=0.5),
        lambda v, w: draw_values_mask(w.seed, 5, v["x"].shape, 0.5),
        lambda v, w, mask: dropout_sum_reference(v["x"], v["right"], mask, 0.5, False),
    ),
    "graph_attention dropout": Dropped(
        lambda v, w: _attention(v, w, p=0.25, seed=w.seed, site=7),
        lambda v, w: draw_weights_mask(w.ptr.int(), w.seed, HEADS, w.longest, 7, 0.25),
        lambda v, w, mask: graph_attention_reference(v["qkv"], w.ptr.int(), HEADS, mask, 0.25),
    ),
}
# Values with one column per key show which weights are kept: few nodes, whose row is one tile.
FEW = Sizes(60, 140, 6)
DTYPES = [torch.float32, torch.bfloat16]
NAMES = (*CASES, *DROPPED)
# Collation has bytes for results, and tests of its own.
COMPARED = sorted((CASES.keys() | MORE.keys() | DROPPED.keys()) - {"collate"})
