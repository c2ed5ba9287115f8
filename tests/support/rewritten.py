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
from staticgraph.steps.computation.model_setup import Subject
from support.parity import bystanders, differing, nothing_else_changes

CAPACITY = (210, 430, 9)
IDS = [3, 1, 4, 1059, 200, 7]


def garbage(batch: Any, store: Any) -> Any:
    """Fills the padding of the features with their last category."""
    for name, mask in (("x", batch.node_mask), ("edge_attr", batch.edge_mask)):
        last = torch.tensor([size - 1 for size in store.cardinality(name)])
        batch[name][~mask] = last
    return batch


def in_plain_pyg(model: nn.Module, store: Any, ids: list[int] = IDS) -> Tensor:
    """Returns the model's output for a PyG batch, called with the arguments that it names."""
    batch: Any = Batch.from_data_list([store[i] for i in ids])
    given = {**batch.to_dict(), "batch": batch.batch, "batch_size": len(ids)}
    return model(*(given[name] for name in inspect.signature(model.forward).parameters))


def assert_as_in_plain_pyg(model: nn.Module, store: Any) -> Any:
    """Asserts that mode ``fused`` over garbage padding equals plain PyG; returns the runner.

    Compares outputs, gradients and running statistics.
    """
    stock = copy.deepcopy(model)
    runner = sg.StaticGraphRunner(Subject(model, check_padding=False), [CAPACITY], "fused")
    batch = garbage(sg.StaticBatch.of(store, IDS, CAPACITY), store)
    expected = in_plain_pyg(stock, store)
    expected.square().mean().backward()
    with nothing_else_changes(batch, draws=True):
        out = runner(batch)[batch.graph_mask]
        out.square().mean().backward()
    assert not batch.node_mask.all()
    assert fired(runner)
    assert not differing(bystanders(stock), bystanders(model))
    assert torch.allclose(out, expected, rtol=0, atol=1e-10)
    largest = max(p.grad.abs().max() for p in stock.parameters() if p.grad is not None)
    for (key, ours), theirs in zip(model.named_parameters(), stock.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), key
        if ours.grad is not None and theirs.grad is not None:
            assert (ours.grad - theirs.grad).abs().max() <= 1e-10 * largest, key
    statistics = dict(model.named_buffers())
    for key, theirs in stock.named_buffers():
        assert torch.allclose(statistics[key].double(), theirs.double(), rtol=0, atol=1e-10), key
    return runner


def difference(model: nn.Module, store: Any, mode: str = "fused") -> tuple[float, Any]:
    """Returns the largest difference of outputs, gradients and buffers, and the runner.

    A gradient's difference is relative to its largest value if that exceeds one.
    """
    stock = copy.deepcopy(model)
    random = torch.get_rng_state()
    expected = in_plain_pyg(stock, store)
    draws = not torch.equal(random, torch.get_rng_state())
    expected.sin().sum().backward()
    runner = sg.StaticGraphRunner(Subject(model, check_padding=False), [CAPACITY], mode)
    batch = sg.StaticBatch.of(store, IDS, CAPACITY)
    with nothing_else_changes(batch, draws):
        out = runner(batch)[batch.graph_mask]
        out.sin().sum().backward()
    assert not differing(bystanders(stock), bystanders(model))
    assert mode != "fused" or len(runner.steps.compiled._functions) == 1
    largest = (out - expected).abs().max().item()
    for ours, theirs in zip(model.parameters(), stock.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None and theirs.grad is not None:
            scale = theirs.grad.abs().max().clamp(min=1)
            largest = max(largest, ((ours.grad - theirs.grad).abs().max() / scale).item())
    for ours, theirs in zip(model.buffers(), stock.buffers(), strict=True):
        largest = max(largest, (ours.double() - theirs.double()).abs().max().item())
    return largest, runner


def fired(runner: Any) -> Counter[str]:
    """Returns how often each rewrite was applied in the one graph that a runner captured."""
    (function,) = runner.steps.compiled._functions.values()
    return Counter(place.rewrite for place in function.captured.done)


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
    (function,) = runner.steps.compiled._functions.values()
    return "\n".join(map(str, function.captured.missed.values()))


def seeded(build: Any) -> nn.Module:
    """Builds a model in float64, the same at every call."""
    torch.manual_seed(0)
    return build().double()
