"""chemprop's BondMessagePassing in fixed shapes: its own loader, BatchMolGraph and model.

Loss and gradients equal its own. The lines with ``# +`` are what changes.
"""

import copy
from functools import partial

import torch
from chemprop import data, nn

import staticgraph as sg  # +

torch.manual_seed(0)
SMILES = ["CCO", "c1ccccc1O", "CC(=O)N", "C", "CCCCCC", "c1ccc2ccccc2c1", "CC(C)O", "OCC1CC1"] * 8


class Net(torch.nn.Module):
    """Bond messages, their mean over each molecule, a head."""

    def __init__(self):
        super().__init__()
        self.messages = nn.BondMessagePassing(d_h=32, depth=3).double()
        self.pool = nn.MeanAggregation()
        self.head = torch.nn.Linear(32, 1, dtype=torch.float64)

    def forward(self, graph):
        """``[molecules]``."""
        return self.head(self.pool(self.messages(graph), graph.batch)).squeeze(-1)


def step(model, graph, target, mean=torch.mean):
    """One step: the loss after its backward."""
    loss = mean((model(graph) - target) ** 2)
    loss.backward()
    return loss


def in_double(batch):
    """The same batch with float64 features and targets."""
    batch.bmg.V, batch.bmg.E = batch.bmg.V.double(), batch.bmg.E.double()
    return batch._replace(Y=batch.Y.double().squeeze(-1))


points = [data.MoleculeDatapoint.from_smi(smi, y=[float(len(smi))]) for smi in SMILES]
dataset, plain = data.MoleculeDataset(points), Net()
padded = copy.deepcopy(plain)
loader = data.build_dataloader(dataset, batch_size=16, num_workers=0)
example = in_double(next(iter(loader)))
INDEX = {"bmg.edge_index": "node", "bmg.rev_edge_index": "edge", "bmg.batch": "graph"}  # +
schema = sg.Schema.of_batch(example, node=["bmg.V"], edge=["bmg.E"], graph=["Y"], index=INDEX)  # +
sizes = [(len(dataset[i].mg.V), len(dataset[i].mg.E)) for i in range(len(dataset))]  # +
padder = sg.Padder(sg.plan_stream(sizes, 16, schema=schema), schema=schema, like=example)  # +
for batch in map(in_double, loader):
    own = padder(batch)  # +
    loss = step(padded, own.bmg, own.Y, partial(sg.masked_mean, batch=own))  # +
    plain_loss = step(plain, batch.bmg, batch.Y)
    assert torch.allclose(loss, plain_loss, rtol=1e-8, atol=1e-8)
    for one, other in zip(plain.parameters(), padded.parameters(), strict=True):
        assert torch.allclose(one.grad, other.grad, rtol=1e-8, atol=1e-8)
print(f"equal; {padder.counts}")
