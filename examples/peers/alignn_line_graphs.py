"""ALIGNN's layers over atoms, bonds and their line graph in fixed shapes: a dict of tensors.

Loss and gradients equal its own. The pairs of bonds are rows of their own kind, "pair". The lines
with ``# +`` are what changes.
"""

import copy
from functools import partial

import ase.build
import numpy as np
import torch
from alignn.models.alignn_atomwise_pure import ALIGNNConvPure

import staticgraph as sg  # +

torch.manual_seed(0)
draw = np.random.default_rng(0)
MOLECULES = ["H2O", "CH4", "C2H6", "NH3", "CH3OH", "C6H6", "CO2", "H2CO"] * 4


def molecule(name):
    """Atoms, bonds within 2 A, pairs of bonds that share an atom, and a drawn energy."""
    atoms = ase.build.molecule(name)
    moved = torch.tensor(atoms.positions + draw.normal(0, 0.05, atoms.positions.shape))
    near = (torch.cdist(moved, moved) < 2.0).fill_diagonal_(False)
    src, dst = near.nonzero().t()
    before, after = (dst[:, None] == src[None]).nonzero().t()
    r = moved[dst] - moved[src]
    angle = torch.cosine_similarity(-r[before], r[after])[:, None]
    return {
        "z": torch.tensor(atoms.numbers)[:, None].double(),
        "length": r.norm(dim=1, keepdim=True),
        "angle": angle,
        "energy": torch.tensor([draw.normal()]),
        "src": src,
        "dst": dst,
        "before": before,
        "after": after,
    }


def collate(graphs):
    """One dict, with indices raised by the rows before each graph."""
    counts = torch.tensor([[len(g["z"]), len(g["src"])] for g in graphs])
    begin = counts.cumsum(0) - counts
    batch = {key: torch.cat([g[key] for g in graphs]) for key in ("z", "length", "angle", "energy")}
    for keys, column in ((("src", "dst"), 0), (("before", "after"), 1)):
        for key in keys:
            shifted = [g[key] + start for g, start in zip(graphs, begin[:, column], strict=True)]
            batch[key] = torch.cat(shifted)
    batch["batch"] = torch.arange(len(graphs)).repeat_interleave(counts[:, 0])
    return batch


class Net(torch.nn.Module):
    """Two of ALIGNN's layers, a sum over each molecule, a head."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.ModuleList(torch.nn.Linear(1, 16) for _ in range(3))
        self.layers = torch.nn.ModuleList(ALIGNNConvPure(16, 16) for _ in range(2))
        self.head = torch.nn.Linear(16, 1)

    def forward(self, b):
        """``[molecules]``."""
        x, y, z = (f(b[key]) for f, key in zip(self.embed, ("z", "length", "angle"), strict=True))
        ends, pairs = (b["src"], b["dst"], len(x)), (b["before"], b["after"], len(y))
        for layer in self.layers:
            x, y, z = layer.forward_tensors(*ends, *pairs, x, y, z)
        return self.head(x.new_zeros(len(b["energy"]), 16).index_add(0, b["batch"], x)).squeeze(1)


def step(model, batch, mean=torch.mean):
    """One step: the loss after its backward."""
    loss = mean((model(batch) - batch["energy"]) ** 2)
    loss.backward()
    return loss


graphs, plain = list(map(molecule, MOLECULES)), Net().double()
padded = copy.deepcopy(plain)
loader = torch.utils.data.DataLoader(graphs, batch_size=6, shuffle=True, collate_fn=collate)
example = next(iter(loader))
INDEX = {"src": "node", "dst": "node", "before": "edge", "after": "edge", "batch": "graph"}  # +
ROWS = {"node": ["z"], "edge": ["length"], "pair": ["angle"], "graph": ["energy"]}  # +
schema = sg.Schema.of_batch(example, index=INDEX, **ROWS)  # +
sizes = [(len(g["z"]), len(g["src"]), len(g["before"])) for g in graphs]  # +
plan = sg.plan_stream(sizes, 6, components=("nodes", "edges", "pair"), schema=schema)  # +
padder = sg.Padder(plan, schema=schema, like=example)  # +
for batch in loader:
    own = padder(batch)  # +
    loss = step(padded, own, partial(sg.masked_mean, batch=own))  # +
    plain_loss = step(plain, batch)
    assert torch.allclose(loss, plain_loss, rtol=1e-8, atol=1e-8)
    for one, other in zip(plain.parameters(), padded.parameters(), strict=True):
        if one.grad is not None:
            assert torch.allclose(one.grad, other.grad, rtol=1e-8, atol=1e-8)
print(f"equal; {padder.counts}")
