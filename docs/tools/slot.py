"""Draws a slot with three graphs and its padding, row by row."""

from __future__ import annotations

import math

import numpy as np

import staticgraph as sg
from docs.tools.data import DATA, sizes_of
from docs.tools.svg import MUTED, OF_GRAPH, PADDING, WIDTH, Drawing


def slot() -> Drawing:
    """Draws three molecules in arrays of fixed shape, row by row as a loader fills them."""
    store = sg.datasets.open(str(DATA / "esol.npz"), progress=False)
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

    # The graphs themselves; the padding follows the real ones.
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


def three_small(known: np.ndarray) -> list[int]:
    """Returns the first graphs with 5, 7 and 4 nodes."""
    nodes = np.asarray(known)[:, 0]
    return [int(np.flatnonzero(nodes == wanted)[0]) for wanted in (5, 7, 4)]


def times(count: int) -> str:
    return f"{count} self-loops" if count != 1 else "1 self-loop"


def moved(place: tuple[float, float], down: float) -> tuple[float, float]:
    return place[0], place[1] + down


def laid_out(
    nodes: list[int], edges: list[tuple[int, int]], x: float, y: float, radius: float
) -> dict[int, tuple[float, float]]:
    """Returns the positions of a small graph's nodes.

    A deterministic spring layout that starts from a circle.
    """
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
