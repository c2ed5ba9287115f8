"""A pending backward still finds its saved tensors after the runner has inspected the model; and
plain PyG works as usual while batches of this library exist."""

from __future__ import annotations

import copy

import pytest
import torch
from support.alike import same
from support.gine_net import CAPACITIES, Net, batches_of, bce
from torch_geometric.nn import GCNConv

import staticgraph as sg


@pytest.mark.parametrize("between", ["eval_step", "predict_batch"])
def test_an_evaluation_between_a_forward_and_its_backward(hiv, between):
    """The runner's first evaluation checks the model with other paddings and restores it."""
    model = Net()
    twin = copy.deepcopy(model)
    first = batches_of(hiv, 1)[0]
    grads = []
    for net, looks in ((model, True), (twin, False)):
        runner = sg.StaticGraphRunner(net, CAPACITIES, "eager", loss=bce)
        loss = sg.masked_mean(bce(runner(first), first), first)
        if looks:
            getattr(runner, between)(first)
        loss.backward()
        grads.append([p.grad for p in net.parameters()])
    assert same(*grads)


def test_torch_func_over_plain_pyg_beside_batches(hiv):
    """An index is recognised by its memory address, which torch.func's wrappers do not have."""
    batches_of(hiv, 1)
    next(iter(sg.StaticLoader(hiv, CAPACITIES, exact=False)))
    conv = GCNConv(2, 2)
    edges = torch.tensor([[0, 1], [1, 0]])
    x = torch.ones(2, 2)
    given, tangent = torch.func.jvp(lambda value: conv(value, edges), (x,), (x,))
    assert torch.allclose(given, tangent + conv.bias)
    each = torch.func.vmap(lambda value: conv(value, edges))(torch.stack([x, 2 * x]))
    assert torch.allclose(each[0], given)
