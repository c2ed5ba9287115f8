"""Draws the sizes of graphs and of batches, and the capacity chosen for them."""

from __future__ import annotations

import math

import numpy as np

from docs.tools.axes import axes
from docs.tools.data import as_drawn, sizes_of
from docs.tools.svg import MUTED, SOFT_TEAL, TEAL, WIDTH, Drawing
from staticgraph.epochs.batcher import Batcher
from staticgraph.plans.choose_capacities import plan_buckets


def sizes() -> Drawing:
    """Draws every molecule by size, and every batch of an epoch with the capacity."""
    known = sizes_of("esol")
    plan = plan_buckets(known, batch_size=32)
    capacity = plan.capacities[0]
    batches = [known[batch.ids].sum(0) for batch in Batcher(known, plan, shuffle=True).epoch(0)]
    drawing = Drawing(WIDTH, 380, "Sizes of molecules, and the capacity for 32 of them")

    left, top, side, tall = 60, 66, 280, 250
    drawing.text(left, 30, f"{len(known):,} molecules of ESOL", bold=True, size=15)
    drawing.text(left, 50, "a circle per size, its area their number", fill=MUTED)
    axes(drawing, left, top, side, tall, (0, 60, 20), (0, 130, 40), "nodes", "edges")
    pairs, counts = np.unique(known, axis=0, return_counts=True)
    for (nodes, edges), count in zip(pairs, counts, strict=True):
        x, y = left + side * nodes / 60, top + tall - tall * edges / 130
        drawing.circle(x, y, 1.3 * math.sqrt(count) + 0.8, TEAL, opacity=0.45)

    left = 430
    low, high = (360, 700), (460, 960)
    drawing.text(left, 30, "Batches of 32, and the capacity", bold=True, size=15)
    drawing.text(left, 50, "filled: after the swaps; hollow: drawn at random", fill=MUTED)
    spans = (low[0], high[0], 20), (low[1], high[1], 60)
    axes(drawing, left, top, side, tall, *spans, "nodes of a batch", "edges of a batch")

    def place(nodes: float, edges: float) -> tuple[float, float]:
        across, up = ((v - a) / (b - a) for v, a, b in zip((nodes, edges), low, high, strict=True))
        return left + side * across, top + tall * (1 - up)

    x, y = place(capacity.nodes, capacity.edges)
    drawing.rect(left, y, x - left, top + tall - y, SOFT_TEAL, opacity=0.4)
    drawing.line(left, y, x, y, TEAL, line=2)
    drawing.line(x, y, x, top + tall, TEAL, line=2)
    for ids in as_drawn(len(known), 32, seed=0):
        nodes, edges = known[ids].sum(0)
        if low[0] < nodes < high[0] and low[1] < edges < high[1]:
            drawing.circle(*place(nodes, edges), 3.5, "none", stroke=MUTED)
    full = [batch for batch in batches if batch[0] > low[0] and batch[1] > low[1]]
    for nodes, edges in full:
        drawing.circle(*place(nodes, edges), 3.5, TEAL)
    counts = f"{capacity.nodes} nodes, {capacity.edges} edges"
    for up, said in (
        (58, "capacity"),
        (38, counts),
        (18, f"{capacity.graphs} graphs, 1 for padding"),
    ):
        drawing.text(x - 10, top + tall - up, said, fill=TEAL, bold=True, anchor="end")
    return drawing
