"""Rewrites attention within small graphs to run graph by graph on a CPU: ``graph_attention``.

The blocks of a bucket are as wide as any batch that fits it may need, so a graph of twelve nodes is
computed as if it had twenty. Where the captured graph runs operation by operation on a CPU, this
library's loop over graphs computes only real nodes; above :data:`WIDEST` nodes per graph torch's
own products are faster.
"""

from __future__ import annotations

import torch
from torch import Tensor

from staticgraph.kernels.dropout_sum import draw_seed
from staticgraph.kernels.graph_attention import graph_attention
from staticgraph.nn.attention.paths import attend_blocks
from staticgraph.rewrites.captured_graph.canonical_ops import Call, dtype, is_call
from staticgraph.rewrites.captured_graph.captured import Captured
from staticgraph.text.how_many import how_many

NAME = "graph_attention"
# The most nodes that a graph of the bucket may have: the loop keeps one row of weights at a time,
# and with hundreds of nodes torch's faster products outweigh their padding.
WIDEST = 512
# The first dropout site used here; other dropouts of the forward are numbered from zero.
SITES = 1 << 20


def starts_of(ptr: Tensor, counts: Tensor) -> Tensor:
    """``[G + 1]`` int32 from ``ptr [G + 1]`` and the real counts; padding graphs have no nodes."""
    return torch.minimum(ptr, counts.view(-1)[0]).int()


def rewrite(captured: Captured) -> None:
    """Rewrites every attention in blocks."""
    if not captured.facts or captured.target.device != "cpu":
        return
    number = 0
    for node in list(captured.graph.nodes):
        if is_call(node, attend_blocks) and node.users:
            number += _at(captured, node, number)


def _at(captured: Captured, node: Call, number: int) -> int:
    rows, _, _, _, shapes, heads, dropout = node.args
    widest = max(width for _, width in shapes)
    reason = None
    if node in captured.differentiated:
        reason = "its derivative is taken in the forward, and has one of its own"
    elif widest > WIDEST:
        reason = (
            f"its graphs have up to {how_many(widest, 'node')}, where torch's products are faster"
        )
    elif dtype(node) not in (torch.float32, torch.float64) or not 0 <= dropout < 1:
        reason = "half precision, or all of the weights are dropped"
    if reason is not None:
        captured.miss(NAME, node, reason)
        return 0
    starts = captured.once("starts", starts_of, captured.facts["ptr"], captured.facts["counts"])
    options = {"heads": heads, "longest": widest, "p": dropout}
    if dropout:
        seed = captured.once("seed", draw_seed, torch.device(captured.target.device))
        options |= {"seed": seed, "site": SITES + number}
    made = captured.before(node, graph_attention, rows, starts, **options)
    captured.replace(node, made, NAME)
    return 1
