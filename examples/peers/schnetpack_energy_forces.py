"""SchNetPack's SchNet in fixed shapes: its own dict of tensors and its own model.

Loss, gradients and forces equal its own. The lines with ``# +`` are what changes.
"""

# ruff: noqa: E402

import copy
from functools import partial

import ase.build
import numpy as np
import torch
import torch.utils.data.dataloader

torch.utils.data.dataloader.T_co = (
    None  # schnetpack 2.0.3 imports it, and torch 2.13 has it no more
)

import schnetpack as spk
from schnetpack.data.loader import _atoms_collate_fn as collate
from schnetpack.transform import ASENeighborList

import staticgraph as sg  # +

torch.manual_seed(0)
draw = np.random.default_rng(0)
MOLECULES = ["H2O", "CH4", "C2H6", "NH3", "CH3OH", "C6H6", "CO2", "H2CO"] * 4


def dataset():
    """Molecules with drawn energies and forces, each a dict of tensors."""
    neighbours = ASENeighborList(cutoff=3.0)
    for number, name in enumerate(MOLECULES):
        atoms = ase.build.molecule(name)
        moved = atoms.positions + draw.normal(0, 0.05, atoms.positions.shape)
        yield neighbours(
            {
                "_idx": torch.tensor([number]),
                "_n_atoms": torch.tensor([len(atoms)]),
                "_atomic_numbers": torch.tensor(atoms.numbers).long(),
                "_positions": torch.tensor(moved),
                "_cell": torch.zeros(1, 3, 3, dtype=torch.float64),
                "_pbc": torch.zeros(3, dtype=torch.bool),
                "energy": torch.tensor([draw.normal()]),
                "forces": torch.tensor(draw.normal(size=moved.shape)),
            }
        )


def schnet():
    """A small SchNet."""
    radial = spk.nn.GaussianRBF(n_rbf=8, cutoff=3.0)
    cutoff = spk.nn.CosineCutoff(3.0)
    return spk.model.NeuralNetworkPotential(
        spk.representation.SchNet(16, 2, radial, cutoff_fn=cutoff),
        input_modules=[spk.atomistic.PairwiseDistances()],
        output_modules=[
            spk.atomistic.Atomwise(n_in=16, output_key="energy"),
            spk.atomistic.Forces(energy_key="energy", force_key="forces"),
        ],
    ).double()


def step(model, batch, mean=torch.mean):
    """One step: outputs, and the loss after its backward."""
    out = model({**batch})
    loss = mean((out["energy"] - batch["energy"]) ** 2)
    loss = loss + mean((out["forces"] - batch["forces"]) ** 2)
    loss.backward()
    return out, loss


graphs, plain = list(dataset()), schnet()
padded = copy.deepcopy(plain)
loader = torch.utils.data.DataLoader(graphs, batch_size=6, shuffle=True, collate_fn=collate)
example = next(iter(loader))
NODE, EDGE = ["_positions", "_atomic_numbers", "forces"], ["_offsets"]  # +
INDEX = {"_idx_i": "node", "_idx_j": "node", "_idx_m": "graph"}  # +
schema = sg.Schema.of_batch(example, node=NODE, edge=EDGE, graph=["energy"], index=INDEX)  # +
sizes = [(len(g["_positions"]), len(g["_idx_i"])) for g in graphs]  # +
padder = sg.Padder(sg.plan_stream(sizes, 6, schema=schema), schema=schema, like=example)  # +
for batch in loader:
    own = padder(batch)  # +
    out, loss = step(padded, own, partial(sg.masked_mean, batch=own))  # +
    forces = torch.cat(sg.unpad(out["forces"], own))  # +
    expected, plain_loss = step(plain, batch)
    assert torch.allclose(loss, plain_loss, rtol=1e-8, atol=1e-8)
    assert torch.allclose(forces, expected["forces"], rtol=1e-8, atol=1e-8)
    for one, other in zip(plain.parameters(), padded.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-8, atol=1e-8)
print(f"equal; {padder.counts}")
