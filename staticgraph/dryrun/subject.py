"""The subject of a dry run, whose model is built by name or given, and its plan.

It is created on the CPU, as usual; :func:`device_twin` makes its copy over fake CUDA tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from staticgraph.internals.fakes import FakeTensorMode
from staticgraph.models.named import make_model, named
from staticgraph.plans.choose_capacities import plan_buckets
from staticgraph.plans.plan import BucketPlan
from staticgraph.probing.fake_tensors import fake_twin
from staticgraph.steps.computation.model_setup import Subject

STAND_IN = "no loss was given: the mean square of the output is used instead"
BATCH_SIZE = 32


@dataclass(frozen=True, slots=True)
class Candidate:
    """The model and plan that a dry run is for.

    Attributes:
        subject: the model and how it is trained.
        plan: the buckets.
        make_optimizer: called with the model's parameters, where the subject has no optimizer.
        notes: remarks about stand-ins for arguments that were not given.
    """

    subject: Subject
    plan: BucketPlan
    make_optimizer: Callable[..., torch.optim.Optimizer]
    notes: tuple[str, ...]


def candidate_of(request: Mapping[str, Any]) -> Candidate:
    """Builds the candidate that a request describes.

    Args:
        request: ``model`` (a module, or ``module:build``), ``plan``, ``data``, ``data_target`` and
            ``data_task`` (as for :func:`staticgraph.datasets.open`), ``batch_size``, ``loss``,
            ``optimizer``, ``forward`` (an object, or ``module:name``), ``autocast`` (a dtype, or
            its name), ``differentiable``, ``clip_norm``, ``kernels``.

    Raises:
        ValueError: a name that cannot be resolved, or neither plan nor data.
    """
    store, plan = None, request.get("plan")
    if request.get("data"):
        from staticgraph import datasets

        store = datasets.open(
            request["data"],
            target=request.get("data_target") or None,
            task=request.get("data_task", "auto"),
        )
    if plan is None:
        if store is None:
            raise ValueError("a dry run needs a plan or data: without, no shape is known")
        size = request.get("batch_size") or BATCH_SIZE
        plan = plan_buckets(store, batch_size=min(size, len(store)))
    torch.manual_seed(0)
    model = request["model"]
    if isinstance(model, str):
        model = make_model(model, store)
    if request.get("kernels"):
        from staticgraph.nn import convert

        model = convert(model, kernels=True)
    loss, optimizer, forward = (
        named(value, f"--{name}") if isinstance(value := request.get(name), str) else value
        for name in ("loss", "optimizer", "forward")
    )
    autocast = request.get("autocast")
    is_made = isinstance(optimizer, torch.optim.Optimizer)
    subject = Subject(
        model,
        loss=loss or mean_square,
        optimizer=optimizer if is_made else None,
        forward=forward,
        autocast=getattr(torch, autocast) if isinstance(autocast, str) else autocast,
        clip_norm=request.get("clip_norm"),
        differentiable=request.get("differentiable") or (),
    )
    make = _fused_adam if is_made or optimizer is None else optimizer
    return Candidate(subject, plan, make, () if loss else (STAND_IN,))


def mean_square(out: Any, batch: Any) -> Tensor:
    """A loss that needs no target: one value per row."""
    while not isinstance(out, Tensor):
        out = next(iter(out.values() if isinstance(out, Mapping) else out))
    return out.float().square().flatten(1).mean(1) if out.dim() > 1 else out.float().square()


def device_twin(candidate: Candidate, mode: FakeTensorMode) -> Subject:
    """The subject over fake tensors of the device; must be called inside the fake mode."""
    subject = candidate.subject
    model, optimizer = fake_twin(subject.model, subject.optimizer, mode, "cuda")
    if optimizer is None:
        optimizer = candidate.make_optimizer([p for p in model.parameters() if p.requires_grad])
    return replace(subject, model=model, optimizer=optimizer, check_padding=False)


def _fused_adam(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3, capturable=True, fused=True)
