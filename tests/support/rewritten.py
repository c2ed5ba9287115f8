"""Compares a model on real molecules in a mode of the runner with plain PyG."""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

import staticgraph as sg
from staticgraph.batches.batch.containers import tensors_in
from support.parity import bystanders, differing, nothing_else_changes
from support.runners import made_runner

CAPACITY = (210, 430, 9)
IDS = [3, 1, 4, 1059, 200, 7]


def garbage(batch: Any, store: Any) -> Any:
    """Fills the padding of the features with their last category."""
    for name in {"x", "edge_attr"} & set(batch.keys()):
        mask = batch.mask_of(batch[name])
        last = torch.tensor([size - 1 for size in store.cardinality(name)])
        batch[name][~mask] = last
    return batch


def in_plain_pyg(model: nn.Module, store: Any, ids: list[int] = IDS) -> Any:
    """Returns the model's output for a PyG batch, called with the arguments that it names."""
    batch: Any = Batch.from_data_list([store[i] for i in ids])
    by_name = {**batch.to_dict(), "batch": batch.batch, "batch_size": len(ids)}
    return model(*(by_name[name] for name in inspect.signature(model.forward).parameters))


def sines(out: Any) -> Tensor:
    """Returns a loss that depends on every tensor of an output."""
    return torch.stack([value.sin().sum() for value in tensors_in(out)]).sum()


def runs(model: nn.Module, store: Any) -> bool:
    """Returns whether plain PyG's result is finite and torch can differentiate it.

    It cannot if an operand that the backward needs was changed in place.
    """
    model = copy.deepcopy(model)
    try:
        out = in_plain_pyg(model, store)
        sines(out).backward()
    except RuntimeError:
        return False
    return all(bool(torch.isfinite(value).all()) for value in tensors_in(out))


def assert_as_in_plain_pyg(model: nn.Module, store: Any) -> Any:
    """Asserts that mode ``fused`` equals plain PyG and rewrites something; returns the runner."""
    largest, runner = difference(model, store)
    assert largest <= 1e-10
    assert fired(runner)
    return runner


def difference(model: nn.Module, store: Any, mode: str = "fused") -> tuple[float, Any]:
    """Returns the largest difference of outputs, gradients, parameters and buffers over padding of
    garbage from plain PyG without padding, and the runner.

    A gradient's difference is relative to its largest value if that exceeds one.
    """
    stock = copy.deepcopy(model)
    random = torch.get_rng_state()
    expected = in_plain_pyg(stock, store)
    draws = not torch.equal(random, torch.get_rng_state())
    sines(expected).backward()
    runner = made_runner(model, [CAPACITY], mode, check_padding=False)
    batch = garbage(sg.StaticBatch.of(store, IDS, CAPACITY), store)
    with nothing_else_changes(batch, draws):
        outs = [value[batch.mask_of(value)] for value in tensors_in(runner(batch))]
        sines(outs).backward()
    assert not batch.node_mask.all()
    assert mode != "fused" or captured(runner)
    assert not differing(bystanders(stock), bystanders(model))
    pairs = list(zip(outs, tensors_in(expected), strict=True))
    for ours, theirs in zip(model.parameters(), stock.parameters(), strict=True):
        pairs.append((ours, theirs))
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None and theirs.grad is not None:
            scale = theirs.grad.abs().max().clamp(min=1)
            pairs.append((ours.grad / scale, theirs.grad / scale))
    pairs += zip(model.buffers(), stock.buffers(), strict=True)
    apart = [(ours.double() - theirs.double()).abs() for ours, theirs in pairs]
    return max(float(each.max()) for each in apart if each.numel()), runner


def captured(runner: Any) -> Any:
    """Returns the one graph that a runner captured."""
    (function,) = runner.steps.compiled._functions.values()
    return function.captured


def fired(runner: Any) -> Counter[str]:
    """Returns how often each rewrite was applied in the one graph that a runner captured."""
    return Counter(place.rewrite for place in captured(runner).done)


def assert_drawn_by_seed(runner: Any, batch: Any) -> None:
    """Asserts that a runner's dropout is the same for the same seed and differs for another."""
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(runner(batch)[batch.graph_mask].detach())
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])


def missed(runner: Any) -> str:
    """Returns what was not rewritten, and why."""
    return "\n".join(map(str, captured(runner).missed.values()))


def seeded(build: Any) -> nn.Module:
    """Builds a model in float64, the same at every call."""
    torch.manual_seed(0)
    return build().double()
