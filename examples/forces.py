"""Learns a potential from a teacher: copper and nickel by ASE's effective medium theory. Edges are
found from the positions in every step, forces are derivatives of the energy, and the trained model
runs ASE's own dynamics."""

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
from staticgraph import atoms

CUTOFF = 5.0


class SchNet(nn.Module):
    """Filters of distances, sums over neighbours, one energy per atom."""

    def __init__(self, per_atom: float, width: int, layers: int) -> None:
        super().__init__()
        self.near = atoms.NeighbourSearch(CUTOFF, per_atom)
        self.register_buffer("centres", torch.linspace(1.5, CUTOFF, 16))
        self.species = nn.Embedding(100, width)
        self.filters = nn.ModuleList(nn.Linear(16, width) for _ in range(layers))
        self.mixes = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.energy = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, z: Tensor, pos: Tensor, cell: Tensor, pbc: Tensor, batch: Tensor, num_graphs):
        near = self.near(pos := pos.requires_grad_(), cell, pbc, batch)
        length = (near.vectors(pos, cell, batch).square().sum(1) + 1e-12).sqrt()
        smooth = 0.5 * (1 + torch.cos(torch.pi * length / CUTOFF)) * near.mask  # 0 at the cutoff
        spread = torch.exp(-8 * (length[:, None] - self.centres).square()) * smooth[:, None]
        h = self.species(z)
        for filters, mix in zip(self.filters, self.mixes, strict=True):
            message = h[near.edge_index[0]] * filters(spread) * smooth[:, None]
            h = h + mix(torch.zeros_like(h).index_add(0, near.edge_index[1], message)).tanh()
        energy = global_add_pool(self.energy(h), batch, num_graphs)
        (gradient,) = torch.autograd.grad(energy.sum(), pos, create_graph=True)
        return energy, -gradient


def loss(out: tuple[Tensor, Tensor], batch: sg.StaticBatch) -> Tensor:
    """Returns one value per atom: the error of its force, and of its crystal's energy."""
    energy, force = out
    off = (energy - batch.energy)[batch.batch].squeeze(1)
    return (force - batch.force).square().sum(1) + 0.01 * off.square()


def crystal(random: np.random.Generator):
    """Eight atoms of copper and nickel, strained and shaken."""
    made = bulk("Cu", a=3.6 * random.uniform(0.97, 1.03)).repeat(2)
    made.symbols[random.permutation(8)[: random.integers(0, 8)]] = "Ni"
    made.positions += random.normal(scale=0.12, size=(8, 3))
    made.calc = EMT()
    return made


def main(crystals: int = 300, epochs: int = 40, width: int = 32, steps: int = 50) -> float:
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    graphs = []
    for each in (crystal(random) for _ in range(crystals)):
        graphs.append(atoms.to_data(each))
        graphs[-1].energy = torch.tensor([[each.get_potential_energy()]]).float()
        graphs[-1].force = torch.tensor(each.get_forces()).float()
    store = sg.GraphStore.from_pyg(graphs, progress=False)
    found = sg.plan_buckets(atoms.sizes_within(graphs, CUTOFF), batch_size=16)
    net = SchNet(atoms.edges_per_atom(found, room=1.1), width, layers=2)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    subject = sg.Subject(net, loss, optimizer, differentiable=("pos",), clip_norm=10.0)
    runner = sg.StaticGraphRunner(subject, sg.plan_buckets(store, batch_size=16), "eager")
    for _ in range(epochs):
        losses = [runner.step(batch) for batch in runner.loader(store, shuffle=True)]
    new = [crystal(random) for _ in range(20)]
    forces = np.concatenate([each.get_forces() for each in new])
    learnt = np.concatenate([each["forces"] for each in atoms.Calculator(runner).many(new)])
    error = float(np.abs(learnt - forces).mean() / np.abs(forces).mean())
    print(f"last loss {losses[-1]:.4f}; forces of 20 new crystals are off by {error:.1%}")
    new[0].calc = atoms.Calculator(runner)
    thermalize_momenta(new[0], temperature_K=300, rng=random)
    dynamics, energies = VelocityVerlet(new[0], 2 * units.fs), []
    dynamics.attach(lambda: energies.append(new[0].get_total_energy()))
    dynamics.run(steps)
    print(f"{steps} steps of dynamics: the total energy varies by {np.ptp(energies):.4f} eV")
    return error


if __name__ == "__main__":
    main()
