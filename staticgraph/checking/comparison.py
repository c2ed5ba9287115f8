"""Compares a model over padding with plain PyG without it: outputs and parameters' gradients.

The static side runs as a compiled step does, without real counts and with other rows as padding.
So a width taken from the batch, or a gradient that is not finite because of a division by the zero
nodes of a padding graph, is found before training. Both sides sum their real output rows with the
same random weights and differentiate the sum.
"""

from __future__ import annotations

import copy
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from staticgraph.batches.batch.containers import tensors_in
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.checking.example_batch import revalued
from staticgraph.checking.jitter import Jitter
from staticgraph.checking.plain_batch import PlainBatch
from staticgraph.nn.context.batch_context import BatchContext
from staticgraph.nn.context.present import Restored
from staticgraph.nn.convert import context_of
from staticgraph.nn.utils.own_sizes import with_own_sizes
from staticgraph.steps.computation.model_arguments import Forward

# Of the largest value: far above what float32 loses over a deep network, a tenth of what garbage
# causes. GINE 5x300 and GPS 10x64 on molecules of HIV differ by 4e-5 and 3e-7 in float32, gradients
# included.
TOLERANCE = 1e-3


class Comparison(NamedTuple):
    """How far apart the two sides are.

    Attributes:
        worst: the largest difference, relative to the largest value of its kind; None if plain PyG
            does not run.
        note: how it was measured, or why not.
        what: what differs by more than the tolerance, in words; None if nothing does.
        finite: whether all gradients over padding are finite.
    """

    worst: float | None
    note: str
    what: str | None = None
    finite: bool = True


def compare_with_plain(
    stock: torch.nn.Module,
    forward: Forward,
    batch: StaticBatch,
    plain_batch: PlainBatch,
    own_sizes: bool = False,
) -> Comparison:
    """Runs copies of a model on both sides; the model itself is left as it was.

    A difference is measured again without ties; see :mod:`staticgraph.checking.jitter`.

    Args:
        stock: the model.
        forward: how it is called.
        batch: with real graphs and padding of every kind.
        plain_batch: the same graphs as PyG batches them.
        own_sizes: whether the model reads sizes off the batch's own indices.
    """
    found = _compare(stock, forward, batch, plain_batch, own_sizes, None)
    if found.what is None or not found.finite or batch.layout.schema.hetero:
        return found
    untied = _compare(stock, forward, batch, plain_batch, own_sizes, Jitter(batch))
    if untied.worst is None or untied.what is not None:
        return found
    return Comparison(
        untied.worst,
        f"{untied.note}, without ties: with them {found.what}, as a choice among equal rows (TopK, "
        "max, sort) falls otherwise; with noise on the rows it does not differ",
    )


def _compare(
    stock: torch.nn.Module,
    forward: Forward,
    batch: StaticBatch,
    plain_batch: PlainBatch,
    own_sizes: bool,
    jitter: Jitter | None,
) -> Comparison:
    before = torch.get_rng_state()

    def side_of(training: bool) -> _Side:
        """Runs a copy of the model over the plain batch, with jitter if there is any."""
        model = copy.deepcopy(stock)
        model = model if training else model.eval()
        seen: Any = plain_batch if jitter is None else jitter.of(plain_batch.fresh())
        with nullcontext() if jitter is None else jitter.on(model):
            return _Side(model, forward(model, seen), None)

    try:
        expected = side_of(training=True)
        random = not torch.equal(before, torch.get_rng_state())
        if random:  # dropout draws different patterns for different shapes
            expected = side_of(training=False)
    except Exception as error:  # whatever the model raises
        return Comparison(None, f"plain PyG raised {type(error).__name__}: {error}")
    training = stock.training and not random
    found = _static_side(stock, forward, batch, training, own_sizes, jitter)
    note = "in evaluation mode: it draws random numbers" if random else "in the model's own mode"
    outputs = _worst(expected.outputs, found.outputs)
    worst_gradient, name = max(
        ((_apart(g, found.gradients.get(n), expected.scale), n) for n, g in expected.named()),
        default=(0.0, ""),
    )
    worst = max(outputs, worst_gradient)
    if not outputs <= TOLERANCE:
        return Comparison(worst, note, f"off by {outputs:.1e} of the largest value")
    if not worst_gradient <= TOLERANCE:
        finite = bool(torch.isfinite(found.gradients.get(name, torch.zeros(()))).all())
        how = f"off by {worst_gradient:.1e} of the largest gradient" if finite else "not finite"
        return Comparison(worst, note, f"the gradient of {name} is {how}", finite)
    return Comparison(worst, note)


def relative_difference(expected: Tensor, found: Tensor) -> float:
    """Returns the difference relative to the largest value.

    Infinite if either side is not finite, or if integers differ.
    """
    if not expected.numel():
        return 0.0
    if not expected.is_floating_point():
        return 0.0 if torch.equal(expected, found) else float("inf")
    return _apart(expected, found, max(float(expected.abs().max()), 1e-6))


class _Side:
    """The real rows of the outputs, and the gradients of a weighted sum of them."""

    def __init__(self, model: torch.nn.Module, out: Any, context: BatchContext | None) -> None:
        outputs = [_real_rows(tensor, context) for tensor in tensors_in(out)]
        summed = [t for t in outputs if t.requires_grad and t.is_floating_point()]
        self.outputs = [t.detach() for t in outputs]
        self.gradients: dict[str, Tensor] = {}
        if summed:
            named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
            total = torch.stack([(t * _weights(t)).sum() for t in summed]).sum()
            gradients = torch.autograd.grad(total, [p for _, p in named], allow_unused=True)
            pairs = zip(named, gradients, strict=True)
            self.gradients = {n: g for (n, _), g in pairs if g is not None}
        largest = [float(g.abs().max()) for g in self.gradients.values() if g.numel()]
        self.scale = max([*largest, 1e-6])

    def named(self) -> list[tuple[str, Tensor]]:
        """Returns the gradients with the names of their parameters."""
        return list(self.gradients.items())


def _static_side(
    stock: torch.nn.Module,
    forward: Forward,
    batch: StaticBatch,
    training: bool,
    own_sizes: bool,
    jitter: Jitter | None,
) -> _Side:
    model = copy.deepcopy(stock).train(training) if training else copy.deepcopy(stock).eval()
    context = context_of(model)
    unknown = StaticBatch(batch.layout, revalued(batch, whole_rows=True).tensors())
    if jitter is not None:
        unknown = jitter.of(unknown)
    with Restored(), nullcontext() if jitter is None else jitter.on(model):
        context.enter(unknown)
        seen = with_own_sizes(unknown) if own_sizes else unknown.replace()
        return _Side(model, forward(model, seen), context)


def _real_rows(tensor: Tensor, context: BatchContext | None) -> Tensor:
    rows = context.find_rows(tensor.shape[0]) if context is not None and tensor.dim() else None
    return tensor if rows is None else tensor[rows.mask]


def _weights(like: Tensor) -> Tensor:
    """Returns random weights, the same on both sides for outputs of the same shape."""
    drawn = torch.rand(like.shape, generator=torch.Generator().manual_seed(0))
    return (drawn + 0.5).to(like)


def _worst(expected: list[Tensor], found: list[Tensor]) -> float:
    if [t.shape for t in expected] != [t.shape for t in found]:
        return float("inf")
    pairs = zip(expected, found, strict=True)
    return max((relative_difference(a, b) for a, b in pairs), default=0.0)


def _apart(expected: Tensor, found: Tensor | None, scale: float) -> float:
    """Returns the largest difference relative to ``scale``; a missing tensor counts as zero."""
    other = torch.zeros_like(expected) if found is None else found
    if not expected.numel():
        return 0.0
    off = float((expected - other).abs().max()) / scale
    return off if off == off else float("inf")
