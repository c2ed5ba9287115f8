"""TorchMD-NET's equivariant transformer in fixed shapes: a dict of tensors and its own model.

Loss, gradients and forces equal its own. The lines with ``# +`` are what changes.
"""

import copy
from functools import partial

import ase.build
import numpy as np
import torch
from torchmdnet.models.model import create_model

import staticgraph as sg  # +

torch.manual_seed(0)
draw = np.random.default_rng(0)
MOLECULES = ["H2O", "CH4", "C2H6", "NH3", "CH3OH", "C6H6", "CO2", "H2CO"] * 4
SETTINGS = {
    "model": "equivariant-transformer", "embedding_dimension": 16, "num_layers": 2, "num_rbf": 8,
    "rbf_type": "expnorm", "trainable_rbf": False, "activation": "silu", "attn_activation": "silu",
    "neighbor_embedding": True, "num_heads": 2, "distance_influence": "both", "cutoff_lower": 0.0,
    "cutoff_upper": 3.0, "max_z": 20, "max_num_neighbors": 32, "precision": 64, "prior_model": None,
    "output_model": "Scalar", "reduce_op": "add", "derivative": True, "vector_cutoff": False,
    "atom_filter": -1,
}  # fmt: skip


def molecule(name):
    """Its atomic numbers, moved positions, and drawn energy and forces."""
    atoms = ase.build.molecule(name)
    moved = atoms.positions + draw.normal(0, 0.05, atoms.positions.shape)
    known = torch.tensor([draw.normal()]), torch.tensor(draw.normal(size=moved.shape))
    return torch.tensor(atoms.numbers).long(), torch.tensor(moved), *known


def collate(molecules):
    """A dict of tensors."""
    z, pos, energy, forces = map(torch.cat, zip(*molecules, strict=True))
    counts = torch.tensor([len(each[0]) for each in molecules])
    batch = torch.arange(len(counts)).repeat_interleave(counts)
    return {"z": z, "pos": pos, "energy": energy, "forces": forces, "batch": batch}


def step(model, batch, mean=torch.mean):
    """One step: forces, and the loss after its backward."""
    energy, forces = model(batch["z"], batch["pos"], batch["batch"])
    loss = mean((energy.squeeze(-1) - batch["energy"]) ** 2)
    loss = loss + mean((forces - batch["forces"]) ** 2)
    loss.backward()
    return forces, loss


graphs, plain = list(map(molecule, MOLECULES)), create_model(SETTINGS)
padded = copy.deepcopy(plain)
loader = torch.utils.data.DataLoader(graphs, batch_size=6, shuffle=True, collate_fn=collate)
example = next(iter(loader))
NODE, INDEX = ["z", "pos", "forces"], {"batch": "graph"}  # +
schema = sg.Schema.of_batch(example, node=NODE, graph=["energy"], index=INDEX)  # +
sizes = [(len(z), 0) for z, *_ in graphs]  # +
padder = sg.Padder(sg.plan_stream(sizes, 6, schema=schema), schema=schema, like=example)  # +
for batch in loader:
    own = padder(batch)  # +
    forces, loss = step(padded, own, partial(sg.masked_mean, batch=own))  # +
    forces = torch.cat(sg.unpad(forces, own))  # +
    expected, plain_loss = step(plain, batch)
    assert torch.allclose(loss, plain_loss, rtol=1e-8, atol=1e-8)
    assert torch.allclose(forces, expected, rtol=1e-8, atol=1e-8)
    for one, other in zip(plain.parameters(), padded.parameters(), strict=True):
        if one.grad is not None:
            assert torch.allclose(one.grad, other.grad, rtol=1e-8, atol=1e-8)
print(f"equal; {padder.counts}")
