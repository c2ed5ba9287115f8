"""Draws the batches of an epoch before and after the swaps."""

from __future__ import annotations

from docs.tools.data import as_drawn, sizes_of
from docs.tools.svg import LINE, MUTED, ROSE, TEAL, WIDTH, Drawing
from staticgraph.epochs.batcher import Batcher
from staticgraph.plans.choose_capacities import plan_buckets


def swaps() -> Drawing:
    """Draws each batch's nodes over or under the capacity, as sampled and after the swaps."""
    known = sizes_of("esol")
    plan = plan_buckets(known, batch_size=32)
    limit = plan.capacities[0].node_limit
    before = [ids for ids in as_drawn(len(known), 32, seed=0) if len(ids) == 32]
    batcher = Batcher(known, plan, shuffle=True)
    after = [batch.ids for batch in batcher.epoch(0) if len(batch.ids) == 32]
    drawing = Drawing(WIDTH, 432, "Nodes of every batch of an epoch, before and after the swaps")
    drawing.text(24, 30, "One epoch of ESOL, 32 molecules per batch", bold=True, size=15)
    told = f"nodes of each batch over (+) or under (-) the {limit} that a slot has room for"
    drawing.text(24, 50, told, fill=MUTED)
    reach = max(abs(int(known[ids, 0].sum()) - limit) for ids in before)
    for top, name, batches in ((74, "drawn at random", before), (262, "after the swaps", after)):
        left, middle, tall = 74, top + 94, 70
        found = [int(known[ids, 0].sum()) - limit for ids in batches]
        over, empty = sum(value > 0 for value in found), -sum(min(0, value) for value in found)
        share = empty / (limit * len(found))
        drawing.text(24, top + 8, name, bold=True)
        said = f"{over} of {len(found)} batches over the limit; {share:.1%} of the rows left empty"
        drawing.text(WIDTH - 24, top + 8, said, fill=MUTED, anchor="end")
        for value in (-50, 50):
            y = middle - tall * value / reach
            drawing.line(left, y, WIDTH - 24, y, LINE, dash="2 4")
            drawing.text(left - 8, y + 4, f"{value:+d}", fill=MUTED, size=12, anchor="end")
        step = (WIDTH - 24 - left) / len(found)
        for place, value in enumerate(found):
            x = left + step * (place + 0.5) - 5
            height = max(1.0, tall * abs(value) / reach)
            if value > 0:
                drawing.rect(x, middle - height, 10, height, ROSE)
            else:
                drawing.padding(x, middle, 10, height)
        drawing.line(left, middle, WIDTH - 24, middle, TEAL, line=2)
        drawing.text(left - 8, middle + 4, "limit", fill=TEAL, size=12, anchor="end")
    return drawing
