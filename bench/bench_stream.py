"""Relaxes ASE's g2 molecules: systems that leave and enter, against batches that wait.

    python -m bench.bench_stream [--molecules 200] [--rows 129] [--json bench/results/stream.json]

Every molecule relaxes in the same pair potential, a Morse well of 1.3 A, by steepest descent until
the largest force is small, which takes each another number of steps. The share of real atoms is
counted over all batches of the run: for ``sg.atoms.stream``, and for batches of as many molecules
as fit, in the order of the data, each of which runs until its slowest molecule is finished.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from ase.build import molecule
from ase.collections import g2
from torch import Tensor, nn

import staticgraph as sg
from bench.machine import write
from bench.options import options_of
from staticgraph.steps.computation.model_setup import Subject

CUTOFF, MOST_STEPS = 6.0, 300


class Morse(nn.Module):
    """A well of 1.3 A between all pairs of atoms."""

    def __init__(self, per_atom: float) -> None:
        super().__init__()
        self.near = sg.atoms.NeighbourSearch(CUTOFF, per_atom)
        self.depth = nn.Parameter(torch.tensor(1.0))

    def forward(self, pos: Tensor, cell: Tensor, pbc: Tensor, batch: Tensor, num_graphs: int):
        near = self.near(pos := pos.requires_grad_(), cell, pbc, batch)
        length = (near.vectors(pos, cell, batch).square().sum(1) + 1e-12).sqrt()
        well = (1 - torch.exp(1.5 * (1.3 - length))).square() - 1
        energy = 0.5 * self.depth * torch.where(near.mask, well, 0).sum()
        (gradient,) = torch.autograd.grad(energy, pos, create_graph=True)
        return {"forces": -gradient}


def relaxed(system: Any, output: Any) -> bool:
    """One step of steepest descent, at most 0.1 A long for each atom."""
    forces = output["forces"]
    largest = float(forces.norm(dim=1).max())
    system.pos = system.pos + forces * min(0.05, 0.1 / max(largest, 1e-9))
    system.visits = int(system.visits) + 1
    return largest < 0.05 or system.visits == MOST_STEPS


def systems(molecules: int) -> list[Any]:
    """The first molecules of ASE's g2 set with at least two atoms."""
    graphs = []
    for name in g2.names:
        data = sg.atoms.to_data(molecule(name), torch.float64)
        data.visits = 0
        if data.num_nodes > 1:
            graphs.append(data)
    return (graphs * (1 + molecules // len(graphs)))[:molecules]


def waiting(graphs: list[Any], rows: int) -> float:
    """Share of real atoms in batches that wait for their slowest, given the steps of each."""
    real, physical, batch, atoms = 0, 0, [], 0
    for graph in [*graphs, None]:
        if graph is None or atoms + graph.num_nodes > rows - 1:
            steps = max(each.visits for each in batch)
            real += sum(each.num_nodes * each.visits for each in batch)
            physical += rows * steps
            batch, atoms = [], 0
        if graph is not None:
            batch.append(graph)
            atoms += graph.num_nodes
    return real / physical


def main() -> None:
    options = options_of(__doc__, molecules=200, rows=129, json=Path)
    graphs = [graph.clone() for graph in systems(options.molecules)]
    sizes = sg.atoms.sizes_within(graphs, CUTOFF)
    # Atoms come closer to each other on the way.
    model = Morse(1.1 * max(edges / atoms for atoms, edges in sizes)).double()
    widest = max(graph.num_nodes for graph in graphs)
    # The smaller ones are for the last molecules.
    capacities = [
        sg.Capacity(rows, edges=4, graphs=max(5, rows // 2), max_graph_nodes=min(widest, rows - 1))
        for rows in (options.rows, options.rows // 2, options.rows // 4)
    ]
    subject = Subject(model, differentiable=("pos",))
    runner = sg.StaticGraphRunner(subject, capacities, "eager")
    streaming, began = sg.atoms.stream(runner, graphs, relaxed), time.perf_counter()
    done = sorted(streaming, key=lambda each: each.number)
    seconds = time.perf_counter() - began
    failed = sum(each.error is not None for each in done)
    steps = sorted(each.steps for each in done)
    results = {
        "molecules": len(done),
        "failed": failed,
        "steps": {"least": steps[0], "median": steps[len(steps) // 2], "most": steps[-1]},
        "share_streaming": streaming.share,
        "share_waiting": waiting([each.system for each in done], options.rows),
        "growths": streaming.growths,
        "batches": streaming.rounds,
        "microseconds_per_atom_and_step": 1e6 * seconds / streaming.atoms,
        "device": "cpu",
    }
    for key, value in results.items():
        print(f"{key:32} {value}")
    if options.json:
        write(options.json, results)


if __name__ == "__main__":
    main()
