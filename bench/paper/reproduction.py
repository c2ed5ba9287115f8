"""Reproduces the published figures of tuple packing and compares them with the printed values.

These are the efficiencies of table 2 per data set and heuristic at the largest graph's limits, and
the efficiencies over limits on PCQM4Mv2 of section 3.2, as printed in the paper's tutorial
(``published/README.md`` has the source). A figure whose histogram is not available says so.
"""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.paper.heuristics import no_packing, pack_one_component, pack_paper
from staticgraph.packing.pack import Packing, harmonic_mean
from staticgraph.packing.packer import pack_histogram
from staticgraph.sizes.histogram import SizeHistogram

PRINTED_FIGURES = Path(__file__).parent / "published" / "efficiency.csv"
DATA = Path(__file__).parent.parent.parent / "tests" / "data" / "histograms"
# The histogram for each name in the published table.
HISTOGRAMS = {
    "ogbg-molhiv": "ogbg-molhiv_train.csv",
    "ogbg-molpcba": "ogbg-molpcba_train.csv",
    "ogbg-pcqm4mv2": "pcqm4mv2_train_APPROX.csv",
}
APPROXIMATE = {"ogbg-pcqm4mv2"}
# Differences up to half of the last printed digit do not count.
PRINTED = 0.0051


@dataclass(frozen=True, slots=True)
class Reproduced:
    """One printed pair of efficiencies and ours, in percent; a missing value is None.

    Attributes:
        data: name of the data set.
        nodes: limit on nodes.
        edges: limit on edges.
        method: the heuristic, a baseline, or ``fill`` for ours.
        published: node and edge efficiency as printed.
        ours: node and edge efficiency as computed here.
        packs: number of packs as computed here.
        note: why the two differ, or a remark.
    """

    data: str
    nodes: int
    edges: int
    method: str
    published: tuple[float, float] | None
    ours: tuple[float, float] | None
    packs: int | None
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields, and the harmonic means that section 3.2 uses."""
        means = {
            f"{name}_harmonic": None
            if pair is None
            else 100 * harmonic_mean([p / 100 for p in pair])
            for name, pair in (("published", self.published), ("our", self.ours))
        }
        return {**asdict(self), **means}


def reproduce() -> list[Reproduced]:
    """Returns every printed figure with ours, then baselines and our packer at the same limits."""
    printed = list(csv.DictReader(PRINTED_FIGURES.read_text().splitlines()))
    found = []
    for name in dict.fromkeys(row["dataset"] for row in printed):
        rows = [row for row in printed if row["dataset"] == name]
        histogram = None
        if name in HISTOGRAMS:
            histogram = SizeHistogram.from_csv(DATA / HISTOGRAMS[name])
        found += [_printed_row(row, histogram) for row in rows]
        if histogram is not None:
            limits = dict.fromkeys(
                (int(row["max_nodes_per_pack"]), int(row["max_edges_per_pack"])) for row in rows
            )
            for pair in limits:
                found += _beside(name, histogram, pair)
    return found


def _printed_row(row: dict[str, str], histogram: SizeHistogram | None) -> Reproduced:
    """Reproduces one row of the published table."""
    name, heuristic = row["dataset"], row["heuristic"]
    nodes, edges = int(row["max_nodes_per_pack"]), int(row["max_edges_per_pack"])
    published = (float(row["node_efficiency_pct"]), float(row["edge_efficiency_pct"]))
    if histogram is None:
        note = "no histogram at hand"
        return Reproduced(name, nodes, edges, heuristic, published, None, None, note)
    most = row["max_graphs_per_pack"]
    packing = pack_paper(
        histogram,
        (nodes, edges),
        heuristic="max" if heuristic == "min" else heuristic,
        max_graphs=min(nodes, edges) if most == "max" else int(most),
    )
    ours = _percent(packing)
    notes = []
    if heuristic == "min":
        notes.append("printed as min, computes max")
    if max(abs(p - o) for p, o in zip(published, ours, strict=True)) > PRINTED:
        notes.append("approximate histogram" if name in APPROXIMATE else "differs")
    return Reproduced(
        name, nodes, edges, heuristic, published, ours, packing.num_packs, "; ".join(notes)
    )


def _beside(name: str, histogram: SizeHistogram, limits: tuple[int, int]) -> list[Reproduced]:
    """Returns baselines and our packer at the limits of a printed row."""
    nodes, edges = limits
    packings = [
        no_packing(histogram, limits),
        pack_one_component(histogram, nodes, component=0, max_graphs=256),
        pack_one_component(histogram, edges, component=1, max_graphs=256),
        pack_paper(histogram, limits, heuristic="node", fit="shortest", max_graphs=256),
        pack_histogram(histogram, limits, max_graphs=256),
    ]
    rows = []
    for packing in packings:
        other = packing.limits.tolist()
        note = "" if other == [nodes, edges] else f"needs limits ({other[0]}, {other[1]})"
        if packing is packings[-1]:
            note = f"ours; volume bound {packing.volume_bound}"
        if name in APPROXIMATE:
            note = f"{note}; approximate histogram".removeprefix("; ")
        ours = _percent(packing)
        rows.append(
            Reproduced(name, nodes, edges, packing.method, None, ours, packing.num_packs, note)
        )
    return rows


def _percent(packing: Packing) -> tuple[float, float]:
    nodes, edges = (100.0 * packing.efficiency).tolist()
    return nodes, edges
