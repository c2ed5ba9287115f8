"""MACE (mace-torch) in fixed shapes: its own loader, batch class and model.

Loss, gradients and forces equal its own. The lines with ``# +`` are what changes.
"""

import copy
import os
from functools import partial

os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # e3nn 0.4.4 needs it

import ase.build
import numpy as np
import torch
from e3nn import o3
from mace import data, modules, tools
from mace.tools.torch_geometric.dataloader import DataLoader

import staticgraph as sg  # +

torch.set_default_dtype(torch.float64)
torch.manual_seed(0)
draw = np.random.default_rng(0)
TABLE = tools.AtomicNumberTable([1, 6, 7, 8])
MOLECULES = ["H2O", "CH4", "C2H6", "NH3", "CH3OH", "C6H6", "CO2", "H2CO"] * 4


def dataset():
    """Molecules with drawn energies and forces."""
    graphs = []
    for name in MOLECULES:
        atoms = ase.build.molecule(name)
        moved = atoms.positions + draw.normal(0, 0.05, atoms.positions.shape)
        known = {"energy": draw.normal(), "forces": draw.normal(size=moved.shape)}
        one = data.Configuration(atoms.numbers, moved, known, {})
        graphs.append(data.AtomicData.from_config(one, z_table=TABLE, cutoff=3.0))
    return graphs


def mace():
    """A small MACE."""
    blocks = modules.interaction_classes
    return modules.ScaleShiftMACE(
        r_max=3.0,
        num_bessel=4,
        num_polynomial_cutoff=5,
        max_ell=2,
        interaction_cls=blocks["RealAgnosticResidualInteractionBlock"],
        interaction_cls_first=blocks["RealAgnosticInteractionBlock"],
        num_interactions=2,
        num_elements=4,
        hidden_irreps=o3.Irreps("8x0e + 8x1o"),
        MLP_irreps=o3.Irreps("8x0e"),
        gate=torch.nn.functional.silu,
        atomic_energies=np.zeros(4),
        avg_num_neighbors=4,
        atomic_numbers=TABLE.zs,
        correlation=2,
        atomic_inter_scale=1.0,
        atomic_inter_shift=0.0,
    )


def step(model, batch, mean=torch.mean):
    """One step: outputs, and the loss after its backward."""
    out = model(batch.to_dict(), training=True)
    loss = mean((out["energy"] - batch.energy) ** 2) + mean((out["forces"] - batch.forces) ** 2)
    loss.backward()
    return out, loss


graphs, plain = dataset(), mace()
padded = copy.deepcopy(plain)
loader = DataLoader(graphs, batch_size=6, shuffle=True)
example = next(iter(loader))
NODE, EDGE = ("positions", "node_attrs", "forces"), ("shifts", "unit_shifts")  # +
GRAPH, INDEX = ("cell", "energy"), {"edge_index": "node", "batch": "graph"}  # +
schema = sg.Schema.of_batch(example, node=NODE, edge=EDGE, graph=GRAPH, index=INDEX)  # +
padder = sg.Padder(sg.plan_stream(graphs, 6, schema=schema), schema=schema, like=example)  # +
for batch in loader:
    own = padder(batch)  # +
    out, loss = step(padded, own, partial(sg.masked_mean, batch=own))  # +
    forces = torch.cat(sg.unpad(out["forces"], own))  # +
    expected, plain_loss = step(plain, batch)
    assert torch.allclose(loss, plain_loss, rtol=1e-8, atol=1e-8)
    assert torch.allclose(forces, expected["forces"], rtol=1e-8, atol=1e-8)
    for one, other in zip(plain.parameters(), padded.parameters(), strict=True):
        if one.grad is not None:
            assert torch.allclose(one.grad, other.grad, rtol=1e-8, atol=1e-8)
print(f"equal; {padder.counts}")
