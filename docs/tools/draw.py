"""The drawings of the documents, from the data in the repository.

    python -m docs.tools.draw            # writes docs/drawings/*.svg
    python -m docs.tools.draw --check    # exit status 1 where one is not as it would be written

Each function makes one drawing with the library's own plans and batches; no number in a drawing is
written by hand. ``tests/test_drawings.py`` compares the files with what this would write.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from docs.tools.data import as_drawn, sizes_of
from docs.tools.house import house
from docs.tools.svg import (
    BLUE,
    LINE,
    MUTED,
    PADDING,
    PLUM,
    ROSE,
    SOFT_BLUE,
    SOFT_PLUM,
    SOFT_TEAL,
    TEAL,
    Drawing,
)
from staticgraph.epochs.batcher import Batcher
from staticgraph.plans.choose import plan_buckets
from staticgraph.sizes.attention import blocks_of

FOLDER = Path(__file__).parents[1] / "drawings"
WIDTH = 760
OF_GRAPH = ((TEAL, SOFT_TEAL), (BLUE, SOFT_BLUE), (PLUM, SOFT_PLUM))
# How far a number of a file may lie from the one that would be written.
TOLERANCE = 0.51


def sizes() -> Drawing:
    """Every molecule by size; every batch of an epoch beside the capacity."""
    known = sizes_of("esol")
    plan = plan_buckets(known, batch_size=32)
    capacity = plan.capacities[0]
    batches = [known[batch.ids].sum(0) for batch in Batcher(known, plan, shuffle=True).epoch(0)]
    drawing = Drawing(WIDTH, 380, "Sizes of molecules, and the capacity for 32 of them")

    left, top, side, tall = 60, 66, 280, 250
    drawing.text(left, 30, f"{len(known):,} molecules of ESOL", bold=True, size=15)
    drawing.text(left, 50, "one circle per size, its area the number of molecules", fill=MUTED)
    axes(drawing, left, top, side, tall, (0, 60, 20), (0, 130, 40), "nodes", "edges")
    pairs, counts = np.unique(known, axis=0, return_counts=True)
    for (nodes, edges), count in zip(pairs, counts, strict=True):
        x, y = left + side * nodes / 60, top + tall - tall * edges / 130
        drawing.circle(x, y, 1.3 * math.sqrt(count) + 0.8, TEAL, opacity=0.45)

    left = 430
    low, high = (360, 700), (460, 960)
    drawing.text(left, 30, "batches of 32, and the capacity", bold=True, size=15)
    drawing.text(left, 50, "filled: after the swaps; hollow: as drawn", fill=MUTED)
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
    for up, said in ((58, "capacity"), (38, counts), (18, f"{capacity.graphs} graphs")):
        drawing.text(x - 10, top + tall - up, said, fill=TEAL, bold=True, anchor="end")
    return drawing


def axes(
    drawing: Drawing,
    left: float,
    top: float,
    width: float,
    height: float,
    across: tuple[int, int, int],
    up: tuple[int, int, int],
    name_across: str,
    name_up: str,
) -> None:
    """Two axes with ticks; each from, to, step."""
    drawing.line(left, top + height, left + width, top + height, MUTED)
    drawing.line(left, top, left, top + height, MUTED)
    for value in range(across[0], across[1] + 1, across[2]):
        x = left + width * (value - across[0]) / (across[1] - across[0])
        drawing.line(x, top + height, x, top + height + 4, MUTED)
        drawing.text(x, top + height + 18, str(value), fill=MUTED, size=12, anchor="middle")
    for value in range(up[0], up[1] + 1, up[2]):
        y = top + height - height * (value - up[0]) / (up[1] - up[0])
        drawing.line(left - 4, y, left, y, MUTED)
        drawing.text(left - 8, y + 4, str(value), fill=MUTED, size=12, anchor="end")
    drawing.text(left + width, top + height + 36, name_across, fill=MUTED, anchor="end")
    drawing.text(left + 8, top + 10, name_up, fill=MUTED)


def slot() -> Drawing:
    """Three molecules in arrays of fixed shape, row by row as a loader fills them."""
    import staticgraph as sg

    store = sg.datasets.open(str(sizes_path("esol")), progress=False)
    chosen = three_small(sizes_of("esol"))
    plan = [(19, 34, 4)]
    (batch,) = list(sg.StaticLoader(store, plan, indices=chosen, exact=False))
    numbers = batch.batch.tolist()
    sources, targets = batch.edge_index.tolist()
    real = int(batch.node_mask.sum()), int(batch.edge_mask.sum()), int(batch.graph_mask.sum())
    drawing = Drawing(WIDTH, 496, "A slot with three molecules and its padding")
    drawing.text(24, 30, "Three molecules of ESOL in one slot", bold=True, size=15)
    shape = f"capacity: N = {len(numbers)} nodes, E = {len(sources)} edges, G = {plan[0][2]} graphs"
    drawing.text(24, 50, shape, fill=MUTED)

    # The graphs themselves; those behind the real ones are padding.
    middles = (90, 245, 400)
    for graph, middle in enumerate(middles):
        inside = [node for node, own in enumerate(numbers) if own == graph]
        edges = [(a, b) for a, b in zip(sources, targets, strict=True) if a in inside and a < b]
        where = laid_out(inside, edges, middle, 122, 50)
        for a, b in edges:
            drawing.line(*where[a], *where[b], OF_GRAPH[graph][0], line=2)
        for node in inside:
            drawing.circle(
                *where[node], 10, OF_GRAPH[graph][1], stroke=OF_GRAPH[graph][0], line=1.5
            )
            drawing.text(*moved(where[node], 4), str(node), size=11, anchor="middle")
        drawing.text(middle, 200, f"graph {graph}", fill=OF_GRAPH[graph][0], anchor="middle")
    loops: dict[int, int] = {}
    for a in sources[real[1] :]:
        loops[a] = loops.get(a, 0) + 1
    for place, node in enumerate(range(real[0], len(numbers))):
        x, y = 535 + 76 * place, 122
        drawing.circle(x, y - 17, 11, "none", stroke=PADDING, line=1.5)
        drawing.circle(x, y, 10, "url(#padding)", stroke=PADDING, line=1.5)
        drawing.text(x, y + 4, str(node), size=11, anchor="middle")
        drawing.text(x, y + 28, times(loops.get(node, 0)), size=12, fill=MUTED, anchor="middle")
    drawing.text(611, 200, f"graph {numbers[-1]}: padding", fill="#96690f", anchor="middle")

    def cells(y: float, width: float, owners: list[int], real: int, words: list[str]) -> None:
        for place, (owner, word) in enumerate(zip(owners, words, strict=True)):
            x = 24 + width * place
            if place < real:
                deep, soft = OF_GRAPH[owner]
                drawing.rect(x, y, width, 24, soft, stroke=deep)
            else:
                drawing.padding(x, y, width, 24)
            drawing.text(x + width / 2, y + 16.5, word, size=11, anchor="middle")

    def row(y: float, name: str, what: str) -> None:
        drawing.text(24, y - 8, name, bold=True)
        drawing.text(WIDTH - 24, y - 8, what, fill=MUTED, anchor="end")

    row(246, "batch [N]", "the graph of each node; node_mask is True on the coloured cells")
    cells(246, 712 / len(numbers), numbers, real[0], [str(own) for own in numbers])
    owners = [numbers[a] for a in sources]
    row(316, "edge_index [2, E]", "from and to; padding edges join padding nodes to themselves")
    width = 712 / len(sources)
    cells(316, width, owners, real[1], [str(a) for a in sources])
    cells(340, width, owners, real[1], [str(b) for b in targets])
    row(410, "y [G, 1]", "one target per graph; graph_mask is True on the coloured cells")
    words = [
        f"{value:.2f}" if graph < real[2] else "0" for graph, value in enumerate(batch.y[:, 0])
    ]
    cells(410, 100, list(range(plan[0][2])), real[2], words)
    drawing.padding(24, 458, 26, 16)
    drawing.text(58, 471, "padding: rewritten at every fill, left out of every result", fill=MUTED)
    return drawing


def sizes_path(name: str) -> Path:
    return Path(__file__).parents[2] / "examples" / "data" / f"{name}.npz"


def three_small(known: np.ndarray) -> list[int]:
    """The first graphs with 5, 7 and 4 nodes."""
    nodes = np.asarray(known)[:, 0]
    return [int(np.flatnonzero(nodes == wanted)[0]) for wanted in (5, 7, 4)]


def times(count: int) -> str:
    return f"{count} self-loops" if count != 1 else "1 self-loop"


def moved(place: tuple[float, float], down: float) -> tuple[float, float]:
    return place[0], place[1] + down


def laid_out(
    nodes: list[int], edges: list[tuple[int, int]], x: float, y: float, radius: float
) -> dict[int, tuple[float, float]]:
    """Places of a small graph's nodes: springs along edges, from a circle; the same every time."""
    turn = 2 * math.pi / len(nodes)
    at = {node: [math.cos(turn * k), math.sin(turn * k)] for k, node in enumerate(nodes)}
    for _ in range(400):
        pull = {node: [0.0, 0.0] for node in nodes}
        for a in nodes:
            for b in nodes:
                if a < b:
                    dx, dy = (at[b][k] - at[a][k] for k in (0, 1))
                    apart = math.hypot(dx, dy) + 1e-6
                    force = -0.12 / apart**2 + (apart if (a, b) in edges else 0.0)
                    for k, part in enumerate((dx / apart, dy / apart)):
                        pull[a][k] += force * part
                        pull[b][k] -= force * part
        for node in nodes:
            for k in (0, 1):
                at[node][k] += 0.04 * pull[node][k]
    middle = [(min(p[k] for p in at.values()) + max(p[k] for p in at.values())) / 2 for k in (0, 1)]
    far = max(abs(p[k] - middle[k]) for p in at.values() for k in (0, 1))
    scaled = {n: [(p[k] - middle[k]) / far * radius for k in (0, 1)] for n, p in at.items()}
    return {node: (x + place[0], y + place[1]) for node, place in scaled.items()}


def swaps() -> Drawing:
    """Nodes of every batch over and under the capacity, as drawn and after the swaps."""
    known = sizes_of("esol")
    plan = plan_buckets(known, batch_size=32)
    limit = plan.capacities[0].node_limit
    before = [ids for ids in as_drawn(len(known), 32, seed=0) if len(ids) == 32]
    batcher = Batcher(known, plan, shuffle=True)
    after = [batch.ids for batch in batcher.epoch(0) if len(batch.ids) == 32]
    drawing = Drawing(WIDTH, 412, "Nodes of every batch of an epoch, before and after the swaps")
    drawing.text(24, 30, "One epoch of ESOL, 32 molecules per batch", bold=True, size=15)
    told = f"rows of nodes over (+) or under (-) the {limit} that a slot has for real nodes"
    drawing.text(24, 50, told, fill=MUTED)
    reach = max(abs(int(known[ids, 0].sum()) - limit) for ids in before)
    for top, name, batches in ((74, "as drawn", before), (252, "after the swaps", after)):
        left, middle, tall = 74, top + 84, 70
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


def blocks() -> Drawing:
    """A batch by falling size, under one block as wide as the largest and under blocks by rank."""
    known = sizes_of("esol")
    plan = plan_buckets(known, batch_size=128, attention="auto")
    capacity = plan.capacities[0]
    ids = Batcher(known, plan, shuffle=True).epoch(0)[0].ids
    nodes = np.sort(known[ids, 0])[::-1]
    cut = blocks_of(capacity)
    widest, graphs = capacity.max_graph_nodes, capacity.graphs
    dense, ranked = graphs * widest**2, sum(block.graphs * block.width**2 for block in cut)
    pairs = int((nodes**2).sum())
    drawing = Drawing(WIDTH, 394, "Attention in one block, and in blocks by rank")
    drawing.text(24, 30, "A batch of 128 molecules of ESOL, the largest first", bold=True, size=15)
    drawing.text(
        24, 50, "attention looks at width x width pairs for each graph of a block", fill=MUTED
    )
    left, top, wide, tall = 64, 76, 672, 260
    step = wide / graphs
    drawing.rect(left, top, wide, tall, "#f3f5f7", stroke=MUTED, dash="5 4")
    said = f"one block, {graphs} graphs of width {widest}: {dense:,} pairs"
    drawing.text(left + wide - 10, top + 22, said, anchor="end", fill=MUTED)
    for block in cut:
        height = tall * block.width / widest
        x = left + step * block.first
        box = (x, top + tall - height, step * block.graphs, height)
        drawing.rect(*box, SOFT_TEAL, stroke=TEAL, line=1.5)
    for rank, count in enumerate(nodes):
        height = tall * count / widest
        drawing.rect(left + step * rank + 0.8, top + tall - height, step - 1.6, height, TEAL)
    for value in (0, 20, 40):
        y = top + tall - tall * value / widest
        drawing.text(left - 8, y + 4, str(value), fill=MUTED, size=12, anchor="end")
    for rank in (0, 32, 64, 96, 128):
        x = left + step * rank
        drawing.text(x, top + tall + 18, str(rank), fill=MUTED, size=12, anchor="middle")
    drawing.text(
        left + wide, top + tall + 36, "rank of the graph in its batch", fill=MUTED, anchor="end"
    )
    drawing.text(left - 8, top + 10, "nodes", fill=MUTED, anchor="end")
    widths = ", ".join(f"{block.graphs} x {block.width}" for block in cut)
    said = f"{len(cut)} blocks by rank: {ranked:,} pairs, {ranked / dense:.1%} of one block"
    right = left + wide - 10
    drawing.text(right, top + 52, said, fill=TEAL, bold=True, anchor="end")
    drawing.text(right, top + 74, f"graphs x width: {widths}", fill=MUTED, anchor="end")
    drawing.text(right, top + 96, f"pairs of real nodes: {pairs:,}", fill=MUTED, anchor="end")
    return drawing


def recordings() -> Drawing:
    """The steps of an epoch, each a replay of its bucket's recording."""
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
    boxes = [100 + 330 * bucket for bucket in range(len(plan.capacities))]
    used = [0] * len(plan.capacities)
    for place, (bucket, ids) in enumerate(batches):
        used[bucket] += 1
        deep, soft = OF_GRAPH[bucket % 3]
        x = left + step * place
        full = tall * plan.capacities[bucket].nodes / most
        real = tall * int(known[ids, 0].sum()) / most
        drawing.padding(x + 1.5, base - full, step - 3, full - real)
        drawing.rect(x + 1.5, base - real, step - 3, real, soft, stroke=deep)
        to = boxes[bucket] + 112
        start = x + step / 2
        curve = (f"M {start:.1f} {base + 4}", f"C {start:.1f} {base + 60},")
        drawing.path((*curve, f"{to} {base + 50},", f"{to} {base + 104}"), deep, line=0.8)
    for bucket, (x, capacity) in enumerate(zip(boxes, plan.capacities, strict=True)):
        deep, soft = OF_GRAPH[bucket % 3]
        drawing.rect(x, base + 104, 224, 96, soft, stroke=deep, line=1.5, round=6)
        drawing.text(x + 112, base + 128, f"bucket {bucket}", bold=True, anchor="middle", fill=deep)
        counts = f"{capacity.nodes} nodes, {capacity.edges} edges"
        drawing.text(x + 112, base + 148, counts, anchor="middle")
        drawing.text(x + 112, base + 167, f"{capacity.graphs} graphs", anchor="middle")
        said = f"recorded once, replayed {used[bucket]} times"
        drawing.text(x + 112, base + 188, said, anchor="middle", bold=True, size=12)
    return drawing


DRAWINGS: dict[str, Callable[[], Drawing]] = {
    "sizes": sizes,
    "slot": slot,
    "swaps": swaps,
    "blocks": blocks,
    "recordings": recordings,
    "house": house,
}
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def alike(one: str, other: str) -> bool:
    """Whether two files draw the same: the same words, and numbers within :data:`TOLERANCE`."""
    if NUMBER.sub("#", one) != NUMBER.sub("#", other):
        return False
    pairs = zip(NUMBER.findall(one), NUMBER.findall(other), strict=True)
    return all(abs(float(a) - float(b)) <= TOLERANCE for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", help="some of them; all where none is named")
    parser.add_argument("--check", action="store_true", help="write nothing, compare")
    options = parser.parse_args()
    check, names = options.check, options.names or list(DRAWINGS)
    stale = []
    for name in names:
        path, made = FOLDER / f"{name}.svg", DRAWINGS[name]().written()
        if not path.exists() or not alike(path.read_text(), made):
            stale.append(name)
            if not check:
                path.write_text(made)
    if check and stale:
        sys.exit(f"not as they would be written: {', '.join(stale)}; python -m docs.tools.draw")
    print(", ".join(stale) + " written" if stale else "all as they would be written")


if __name__ == "__main__":
    main()
