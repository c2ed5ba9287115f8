"""Learns a potential from a teacher, ASE's effective medium theory of copper and nickel: edges are
found in every step, forces are derivatives, and the trained model runs ASE's own dynamics."""

from __future__ import annotations

import numpy as np
import torch
from ase import units
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.md.velocitydistribution import thermalize_momenta
from ase.md.verlet import VelocityVerlet
from torch import Tensor, nn
from torch_geometric.nn import global_add_pool

import staticgraph as sg

CUTOFF = 5.0


class Potential(nn.Module):
    """A sum over neighbours of filtered distances, and from it one energy per atom."""

    def __init__(self, per_atom: float, width: int) -> None:
        super().__init__()
        self.search = sg.atoms.NeighbourSearch(CUTOFF, per_atom)
        self.register_buffer("centres", torch.linspace(1.5, CUTOFF, 16))
        self.species, self.filter = nn.Embedding(100, width), nn.Linear(16, width)
        self.energy = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, z: Tensor, pos: Tensor, cell: Tensor, pbc: Tensor, batch: Tensor, num_graphs):
        near = self.search(pos := pos.requires_grad_(), cell, pbc, batch)
        length = (near.vectors(pos, cell, batch).square().sum(1) + 1e-12).sqrt()[:, None]
        smooth = 0.5 * (1 + torch.cos(torch.pi * length / CUTOFF)) * near.mask[:, None]
        spread = torch.exp(-8 * (length - self.centres).square()) * smooth
        h = self.species(z)
        message = h[near.edge_index[0]] * self.filter(spread) * smooth  # 0 at the cutoff
        total = torch.zeros_like(h).index_add(0, near.edge_index[1], message)
        energy = global_add_pool(self.energy(torch.cat([h, total], 1)), batch, num_graphs)
        return energy, -torch.autograd.grad(energy.sum(), pos, create_graph=True)[0]


def loss(out: tuple[Tensor, Tensor], batch: sg.StaticBatch) -> Tensor:
    """Returns one value per atom: the error of its force, and of its crystal's energy."""
    difference = (out[0] - batch.energy)[batch.batch].squeeze(1)
    return (out[1] - batch.force).square().sum(1) + 0.01 * difference.square()


def crystal(random: np.random.Generator):
    """Eight atoms of copper and nickel, strained and shaken."""
    atoms = bulk("Cu", a=3.6 * random.uniform(0.97, 1.03)).repeat(2)
    atoms.symbols[random.permutation(8)[: random.integers(0, 8)]] = "Ni"
    atoms.positions += random.normal(scale=0.12, size=(8, 3))
    atoms.calc = EMT()
    return atoms


def main(crystals: int = 300, epochs: int = 40, width: int = 32, steps: int = 50) -> float:
    torch.manual_seed(0)
    random, graphs = np.random.default_rng(0), []
    for atoms in (crystal(random) for _ in range(crystals)):
        graphs.append(sg.atoms.to_data(atoms))
        graphs[-1].energy = torch.tensor([[atoms.get_potential_energy()]]).float()
        graphs[-1].force = torch.tensor(atoms.get_forces()).float()
    store = sg.GraphStore.from_pyg(graphs, progress=False)
    edges = sg.plan_buckets(sg.atoms.sizes_within(graphs, CUTOFF), batch_size=16)
    net = Potential(sg.atoms.edges_per_atom(edges, room=1.1), width)
    plan, optimizer = sg.plan_buckets(store, 16), torch.optim.Adam(net.parameters(), lr=3e-3)
    options = {"mode": "eager", "differentiable": ("pos",), "clip_norm": 10.0}
    runner = sg.StaticGraphRunner(net, plan, loss=loss, optimizer=optimizer, **options)
    for _ in range(epochs):
        losses = [runner.step(batch) for batch in runner.loader(store, shuffle=True)]
    test, calculator = [crystal(random) for _ in range(20)], sg.atoms.Calculator(runner)
    forces = np.concatenate([atoms.get_forces() for atoms in test])
    learnt = np.concatenate([result["forces"] for result in calculator.many(test)])
    error = float(np.abs(learnt - forces).mean() / np.abs(forces).mean())
    print(f"last loss {losses[-1]:.4f}; forces of 20 new crystals are off by {error:.1%}")
    test[0].calc, energies = calculator, []
    thermalize_momenta(test[0], temperature_K=300, rng=random)
    dynamics = VelocityVerlet(test[0], 2 * units.fs)
    dynamics.attach(lambda: energies.append(test[0].get_total_energy()))
    dynamics.run(steps)
    print(f"{steps} steps of dynamics: the total energy varies by {np.ptp(energies):.4f} eV")
    return error


if __name__ == "__main__":
    main()
