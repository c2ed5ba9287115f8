"""Energies and forces of clusters of atoms, with a SchNet-like model: its forward takes the forces
as the negative gradient of the energy with respect to the positions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import global_add_pool

import staticgraph as sg

REACH = 3.0  # cutoff distance of a bond; the lattice spacing is 1.2


def cluster(atoms: int, random: torch.Generator) -> Data:
    """Makes atoms on a noisy lattice; pairs within the cutoff interact by a Morse potential."""
    grid = torch.cartesian_prod(*[torch.arange(3.0)] * 3) * 1.2
    pos = grid[torch.randperm(27, generator=random)[:atoms]]
    pos = (pos + 0.1 * torch.randn(atoms, 3, generator=random)).requires_grad_()
    apart = torch.cdist(pos.detach(), pos.detach())
    edge_index = ((apart < REACH) & (apart > 0)).nonzero().t()
    distance = (pos[edge_index[0]] - pos[edge_index[1]]).norm(dim=1)
    energy = 0.5 * ((1 - torch.exp(1.2 - distance)).square() - 1).sum()
    (gradient,) = torch.autograd.grad(energy, pos)
    energy, pos = energy.detach().view(1, 1), pos.detach()
    return Data(pos=pos, edge_index=edge_index, force=-gradient, energy=energy, num_nodes=atoms)


class SchNet(nn.Module):
    """Filters of distances, sums over neighbours, one energy per atom."""

    def __init__(self, width: int, layers: int, filters: int = 16) -> None:
        super().__init__()
        self.register_buffer("centres", torch.linspace(0, REACH, filters))
        self.start = nn.Parameter(torch.randn(width))
        self.filters = nn.ModuleList(nn.Linear(filters, width) for _ in range(layers))
        self.mixes = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.energy = nn.Linear(width, 1)

    def forward(self, pos: Tensor, edge_index: Tensor, batch: Tensor, num_graphs: int):
        pos = pos.requires_grad_()
        source, target = edge_index
        distance = ((pos[source] - pos[target]).square().sum(1) + 1e-12).sqrt()
        spread = torch.exp(-10 * (distance[:, None] - self.centres).square())
        h = self.start.expand(len(pos), -1)
        for filters, mix in zip(self.filters, self.mixes, strict=True):
            message = h[source] * filters(spread)
            h = h + mix(torch.zeros_like(h).index_add(0, target, message)).tanh()
        energy = global_add_pool(self.energy(h), batch, num_graphs)
        (gradient,) = torch.autograd.grad(energy.sum(), pos, create_graph=True)
        return energy, -gradient


def loss(out: tuple[Tensor, Tensor], batch: sg.StaticBatch) -> Tensor:
    """Returns one value per atom: the error of its force, and of its cluster's energy."""
    energy, force = out
    off = (energy - batch.energy)[batch.batch].squeeze(1)
    return (force - batch.force).square().sum(1) + 0.01 * off.square()


def main(clusters: int = 1000, epochs: int = 20, width: int = 32) -> float:
    random = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    store = sg.GraphStore.from_pyg([cluster(4 + i % 9, random) for i in range(clusters)])
    net = SchNet(width, layers=2)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    subject = sg.Subject(net, loss, optimizer, differentiable=("pos",), clip_norm=10.0)
    runner = sg.StaticGraphRunner(subject, sg.plan_buckets(store, batch_size=32)).warmup()
    means = [
        torch.stack([runner.step(b) for b in runner.loader(store)]).mean() for _ in range(epochs)
    ]
    print("mean loss of each epoch:", *(f"{mean:.3f}" for mean in means))
    return float(means[-1])


if __name__ == "__main__":
    main()
