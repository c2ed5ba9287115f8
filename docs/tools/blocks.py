"""Draws attention in one block and in blocks by size."""

from __future__ import annotations

import numpy as np

from docs.tools.data import sizes_of
from docs.tools.svg import MUTED, SOFT_TEAL, TEAL, WIDTH, Drawing
from staticgraph.epochs.batcher import Batcher
from staticgraph.plans.choose import plan_buckets
from staticgraph.sizes.attention import blocks_of


def blocks() -> Drawing:
    """Draws a batch in descending size, with one block of the largest width and blocks by size."""
    known = sizes_of("esol")
    plan = plan_buckets(known, batch_size=128, attention="auto")
    capacity = plan.capacities[0]
    ids = Batcher(known, plan, shuffle=True).epoch(0)[0].ids
    nodes = np.sort(known[ids, 0])[::-1]
    cut = blocks_of(capacity)
    widest, graphs = capacity.max_graph_nodes, capacity.graphs
    dense, by_size = graphs * widest**2, sum(block.graphs * block.width**2 for block in cut)
    pairs = int((nodes**2).sum())
    drawing = Drawing(WIDTH, 394, "Attention in one block, and in blocks by size")
    drawing.text(24, 30, "A batch of 128 molecules of ESOL, the largest first", bold=True, size=15)
    drawing.text(
        24, 50, "attention looks at width x width pairs for each graph of a block", fill=MUTED
    )
    left, top, wide, tall = 64, 76, 672, 260
    step = wide / graphs
    drawing.rect(left, top, wide, tall, "#f3f5f7", stroke=MUTED, dash="5 4")
    said = f"one block, {graphs} graphs (one for padding) of width {widest}: {dense:,} pairs"
    drawing.text(left + wide - 10, top + 22, said, anchor="end", fill=MUTED)
    for block in cut:
        height = tall * block.width / widest
        x = left + step * block.first
        box = (x, top + tall - height, step * block.graphs, height)
        drawing.rect(*box, SOFT_TEAL, stroke=TEAL, line=1.5)
    for place, count in enumerate(nodes):
        height = tall * count / widest
        drawing.rect(left + step * place + 0.8, top + tall - height, step - 1.6, height, TEAL)
    for value in (0, 20, 40):
        y = top + tall - tall * value / widest
        drawing.text(left - 8, y + 4, str(value), fill=MUTED, size=12, anchor="end")
    for place in (0, 32, 64, 96, 128):
        x = left + step * place
        drawing.text(x, top + tall + 18, str(place), fill=MUTED, size=12, anchor="middle")
    drawing.text(
        left + wide, top + tall + 36, "place of the graph in its batch", fill=MUTED, anchor="end"
    )
    drawing.text(left - 8, top + 10, "nodes", fill=MUTED, anchor="end")
    widths = ", ".join(f"{block.graphs} x {block.width}" for block in cut)
    said = f"{len(cut)} blocks by size: {by_size:,} pairs, {by_size / dense:.1%} of one block"
    right = left + wide - 10
    drawing.text(right, top + 52, said, fill=TEAL, bold=True, anchor="end")
    drawing.text(right, top + 74, f"graphs x width: {widths}", fill=MUTED, anchor="end")
    drawing.text(right, top + 96, f"pairs of real nodes: {pairs:,}", fill=MUTED, anchor="end")
    return drawing
