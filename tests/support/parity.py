"""The oracle of inert padding: a model over a padded batch equals plain PyG without padding."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

import staticgraph as sg
from staticgraph.batches.batch.batch_arrays import field_mask
from staticgraph.nn import context_of
from staticgraph.nn.context.bound_batch import Restored
from staticgraph.steps.loss.mean_loss import masked_mean
from staticgraph.steps.tracing.trace import Trace, trace_step
from support.alike import squared as loss

TOLERANCE = (
    1e-9  # of the largest, in float64: sums of a thousand terms, reordered, stay below 1e-12
)
CAPACITY = (46, 130, 9)
NODES = (7, 1, 12, 5, 9)
WIDTH, EDGE_WIDTH = 8, 4


def graphs(seed: int = 0) -> list[Data]:
    """Returns five random undirected graphs with loops, isolated nodes and all fields of layers.

    Edges are sorted by destination, as in a store, so that their order does not differ."""
    random = np.random.default_rng(seed)

    def real(*shape: int) -> Tensor:
        return torch.from_numpy(random.standard_normal(shape))

    data_list = []
    for n in NODES:
        pairs = random.integers(0, n, (2, 2 * n)) if n > 1 else np.empty((2, 0), np.int64)
        both = np.concatenate([pairs, pairs[::-1], [[0], [0]]], 1)  # and a loop at node 0
        both = both[:, : 3 * n]
        both = np.unique(both, axis=1)
        both = both[:, np.lexsort(both)]
        e = both.shape[1]
        data_list.append(
            Data(
                x=real(n, WIDTH),
                edge_index=torch.from_numpy(both),
                edge_attr=real(e, EDGE_WIDTH),
                edge_weight=real(e).abs() + 0.1,
                edge_type=torch.from_numpy(random.integers(0, 3, e)),
                node_type=torch.from_numpy(random.integers(0, 3, n)),
                pos=real(n, 3),
                normal=torch.nn.functional.normalize(real(n, 3), dim=1),
                u=real(1, 6),
                y=real(1, 2),
            )
        )
    return data_list


MANY = [graph for seed in range(8) for graph in graphs(seed)]
MANY_PLAN = [tuple(8 * rows for rows in CAPACITY)]
STORE = sg.GraphStore.from_pyg(graphs())
BATCH = sg.StaticBatch.of(STORE, range(len(NODES)), CAPACITY)


def poisoned(batch: sg.StaticBatch, scale: float, seed: int = 1) -> sg.StaticBatch:
    """Returns the batch with garbage in every padding row of every field except indices.

    Floats have the given ``scale``; integers are within the range of their column.
    """
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for field in batch.layout.schema:
        if field.is_index:
            continue
        value, padding = batch[field.name].clone(), ~field_mask(batch, field)
        if value.is_floating_point():
            garbage = torch.randn(value.shape, generator=random, dtype=value.dtype) * scale
        else:
            garbage = torch.rand(value.shape, generator=random) * (value.amax(0) + 1)
            garbage = garbage.long().to(value.dtype)
        value[padding] = garbage[padding]
        tensors[field.name] = value
    return batch.replace(**tensors)


def unknown_counts(batch: sg.StaticBatch) -> sg.StaticBatch:
    """Returns the batch as a compiled step sees it, without its real counts."""
    return sg.StaticBatch(batch.layout, batch.tensors())


def bystanders(model: nn.Module) -> dict[str, Any]:
    """Returns what a step of a model may change without its result showing it: flags, hooks,
    counters and other plain attributes of every module, and which parameters take a gradient."""
    plain = (int, float, str, tuple)
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    entries: dict[str, Any] = {
        f"{name} requires_grad": p.requires_grad for name, p in model.named_parameters()
    }
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if key in hooks:
                entries[f"{name} {key}"] = len(value)
            elif not key.startswith("_") and isinstance(value, plain):
                entries[f"{name} {key}"] = value
    return entries


def differing(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Returns a line for every entry that two states do not share; tensors must be equal."""
    lines = []
    for name in sorted(first.keys() | second.keys()):
        value, other = first.get(name), second.get(name)
        tensors = isinstance(value, Tensor) and isinstance(other, Tensor)
        if not (torch.equal(value, other) if tensors else value == other):
            lines.append(f"{name}: {value} and {other}")
    return lines


@contextmanager
def nothing_else_changes(batch: Any, draws: bool = False) -> Iterator[None]:
    """Asserts that the inputs and, unless something ``draws``, the random state stay what they
    are."""
    tensors = batch.tensors() if isinstance(batch, sg.StaticBatch) else batch.to_dict()

    def state() -> dict[str, Any]:
        """Copies of the inputs, and the random state."""
        copies = {k: v.clone().nan_to_num() for k, v in tensors.items() if isinstance(v, Tensor)}
        return copies | ({} if draws else {"random state": torch.get_rng_state()})

    before = state()
    yield
    assert not differing(before, state())


def call(model: nn.Module, batch: Any) -> Any:
    """The plainest forward, which Dynamo traces."""
    return model(batch)


class Result:
    """Outputs, loss, gradients, buffers and :func:`bystanders` of one step."""

    def __init__(self, model: nn.Module, out: Tensor, mean: Tensor) -> None:
        self.bystanders = bystanders(model)
        self.values = {"out": out.detach(), "loss": mean.detach()}
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                self.values[f"grad {name}"] = parameter.grad.clone()
        for name, buffer in model.named_buffers():
            if "_staticgraph" in name:
                continue
            self.values[f"buffer {name}"] = buffer.detach().clone()

    def apart(self, other: Result) -> float:
        """Returns the largest difference, relative to the largest value of its kind."""
        return max(
            float((value - other.values[name]).abs().nan_to_num().max())
            / max(self.largest(name.split()[0]), 1e-30)
            for name, value in self.values.items()
            if value.numel()
        )

    def largest(self, kind: str) -> float:
        values = [v for k, v in self.values.items() if k.startswith(kind) and v.numel()]
        return max([float(value.abs().nan_to_num().max()) for value in values], default=0.0)


def backward(mean: Any, models: Sequence[nn.Module], twice: bool) -> None:
    """Takes the gradients of a loss, or of the sum of their squares (a gradient penalty)."""
    if twice:
        parameters = [p for model in models for p in model.parameters()]
        slopes = torch.autograd.grad(mean, parameters, create_graph=True, allow_unused=True)
        mean = sum(slope.square().sum() for slope in slopes if slope is not None)
    mean.backward()


def plain_step(
    model: nn.Module,
    forward: Callable[..., Any],
    batch: sg.StaticBatch,
    twice: bool = False,
    rounding: float = 0.0,
    follow: tuple[str, ...] = (),
) -> Result:
    """Runs plain PyG on the unpadded batch, which follows some fields.

    ``rounding`` changes parameters by about this share, for what plain PyG differs from itself.
    """
    model = copy.deepcopy(model)
    if rounding:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + rounding * torch.randn_like(parameter))
    data = Batch.from_data_list(batch.to_data_list(), follow_batch=list(follow))
    out = forward(model, data)
    mean = loss(out, data).mean()
    backward(mean, [model], twice)
    return Result(model, out, mean)


def allowed_difference(
    model: nn.Module,
    forward: Callable[..., Any],
    batch: sg.StaticBatch,
    plain: Result,
    twice: bool,
    least: float,
) -> float:
    """Returns eight times what plain PyG differs from itself when its parameters change by rounding
    alone; in float64 at least ``least``, in other dtypes some units of the last place."""
    eps = torch.finfo(batch.x.dtype).eps
    least = least if batch.x.dtype == torch.float64 else 16 * eps
    runs = [plain_step(model, forward, batch, twice, rounding=4 * eps) for _ in range(3)]
    return max([least, *(8 * plain.apart(other) for other in runs)])


def static_step(
    model: nn.Module,
    forward: Callable[..., Any],
    batch: sg.StaticBatch,
    trace: bool = False,
    twice: bool = False,
) -> tuple[Result | None, Trace | None]:
    """Runs the same with the static forms, eagerly or through the captured graph."""
    results, traced = static_steps([model], forward, batch, trace, twice)
    return results[0] if results else None, traced


def static_steps(
    models: Sequence[nn.Module],
    forward: Callable[..., Any],
    batch: sg.StaticBatch,
    trace: bool = False,
    twice: bool = False,
) -> tuple[list[Result], Trace | None]:
    """Runs the steps of several models at once, optionally through one captured graph.

    Half of the time to capture a layer's step is the same for all. If nothing could be captured,
    there are no results.
    """
    models = [copy.deepcopy(model) for model in models]
    contexts = [context_of(model) for model in models]
    real = int(batch.graph_mask.sum())

    def compute(padded: sg.StaticBatch) -> list[tuple[Tensor, Tensor]]:
        steps = []
        for model, context in zip(models, contexts, strict=True):
            context.enter(padded)
            out = forward(model, padded)
            mean = masked_mean(loss(out, padded), padded)
            context.leave()
            steps.append((out, mean))
        return steps

    traced = None
    with Restored():
        if trace:
            traced = trace_step(compute, batch)
            if traced.result is None:
                return [], traced
            steps = traced.result
        else:
            with nothing_else_changes(batch, draws=True):
                steps = compute(batch)
        backward(sum(mean for _, mean in steps), models, twice)
    results = [Result(m, out[:real], mean) for m, (out, mean) in zip(models, steps, strict=True)]
    return results, traced


def differences(plain: Result, static: Result, tolerance: float = TOLERANCE) -> list[str]:
    """Returns what differs by more than the tolerance, relative to the largest of its kind."""
    wrong = differing(plain.bystanders, static.bystanders)
    for name in sorted(plain.values.keys() | static.values.keys()):
        kind = name.split()[0]
        if name not in plain.values or name not in static.values:
            present = plain.values.get(name, static.values.get(name))
            if present.abs().max() > 0:
                wrong.append(f"{name} is missing on one side")
            continue
        a, b = plain.values[name], static.values[name]
        if a.shape != b.shape:
            wrong.append(f"{name}: {list(a.shape)} and {list(b.shape)}")
            continue
        scale = max(plain.largest(kind), 1e-30)
        apart = (a - b).abs().masked_fill(a.isnan() & b.isnan(), 0)
        off = float(apart.max()) / scale if a.numel() else 0.0
        if not off <= tolerance:
            wrong.append(f"{name}: off by {off:.1e}")
    return wrong
