"""Draws the batches of an epoch and the recordings that they replay."""

from __future__ import annotations

from docs.tools.data import sizes_of
from docs.tools.svg import MUTED, OF_GRAPH, WIDTH, Drawing
from staticgraph.epochs.batcher import Batcher
from staticgraph.plans.choose_capacities import plan_buckets


def recordings() -> Drawing:
    """Draws the steps of an epoch, each a replay of its bucket's recording."""
    known = sizes_of("esol")
    plan = plan_buckets(known, num_buckets=2, graphs=64)
    batches = Batcher(known, plan, shuffle=True, exact=False).epoch(0)
    drawing = Drawing(WIDTH, 400, "Steps of an epoch, and the recording that each replays")
    drawing.text(24, 30, "One epoch of ESOL in two buckets", bold=True, size=15)
    said = "each column is a batch: real nodes coloured, empty rows hatched"
    drawing.text(24, 50, said, fill=MUTED)
    left, base, tall = 24, 178, 104
    step = (WIDTH - 48) / len(batches)
    most = max(capacity.nodes for capacity in plan.capacities)
    boxes = [90 + 330 * bucket for bucket in range(len(plan.capacities))]
    used = [0] * len(plan.capacities)
    for place, (bucket, ids) in enumerate(batches):
        used[bucket] += 1
        deep, soft = OF_GRAPH[bucket % 3]
        x = left + step * place
        full = tall * plan.capacities[bucket].nodes / most
        real = tall * int(known[ids, 0].sum()) / most
        drawing.padding(x + 1.5, base - full, step - 3, full - real)
        drawing.rect(x + 1.5, base - real, step - 3, real, soft, stroke=deep)
        to = boxes[bucket] + 125
        start = x + step / 2
        curve = (f"M {start:.1f} {base + 4}", f"C {start:.1f} {base + 60},")
        drawing.path((*curve, f"{to} {base + 50},", f"{to} {base + 104}"), deep, line=0.8)
    for bucket, (x, capacity) in enumerate(zip(boxes, plan.capacities, strict=True)):
        deep, soft = OF_GRAPH[bucket % 3]
        drawing.rect(x, base + 104, 250, 96, soft, stroke=deep, line=1.5, round=6)
        drawing.text(x + 125, base + 128, f"bucket {bucket}", bold=True, anchor="middle", fill=deep)
        counts = f"{capacity.nodes:,} nodes, {capacity.edges:,} edges"
        drawing.text(x + 125, base + 148, counts, anchor="middle")
        drawing.text(x + 125, base + 167, f"{capacity.graphs} graphs", anchor="middle")
        said = f"recorded once, replayed {used[bucket]} times"
        drawing.text(x + 125, base + 188, said, anchor="middle", bold=True, size=12)
    return drawing
