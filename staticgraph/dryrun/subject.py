"""The subject of a dry run, whose model is built by name or unpickled, and its plan.

It is created on the CPU, as usual; :func:`twin` makes its copy over fake CUDA tensors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from staticgraph.models.named import made, named
from staticgraph.plans.choose import plan_buckets
from staticgraph.plans.plan import BucketPlan
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.store.graph_store import GraphStore

STAND_IN = "no loss was given: the mean square of the output is used instead"
BATCH_SIZE = 32


@dataclass(frozen=True, slots=True)
class Candidate:
    """The model and plan that a dry run is for.

    Attributes:
        subject: the model and how it is trained.
        plan: the buckets.
        make_optimizer: called with the model's parameters, where the subject has no optimizer;
            fused Adam where this is None, too.
        notes: remarks about stand-ins for arguments that were not given.
    """

    subject: Subject
    plan: BucketPlan
    make_optimizer: Callable[..., torch.optim.Optimizer] | None = None
    notes: tuple[str, ...] = ()


def candidate_of(request: Mapping[str, Any]) -> Candidate:
    """Builds the candidate that a request describes.

    Args:
        request: ``model`` (``module:build``) or ``pickled`` (a file of :func:`torch.save`),
            ``plan`` (a file), ``data``, ``data_target`` and ``data_task`` (as for
            :func:`staticgraph.datasets.open`), ``batch_size``, ``loss``, ``optimizer``,
            ``forward`` (``module:name``), ``autocast`` (a dtype's name), ``differentiable``,
            ``clip_norm``, ``kernels``.

    Raises:
        ValueError: a name that cannot be resolved, or neither plan nor data.
    """
    given = {}
    if request.get("pickled"):
        given = torch.load(request["pickled"], weights_only=False, map_location="cpu")
    store = None
    if request.get("data"):
        from staticgraph import datasets

        store = datasets.open(
            request["data"],
            target=request.get("data_target") or None,
            task=request.get("data_task", "auto"),
        )
    plan = _plan(request, store)
    torch.manual_seed(0)
    model = given.get("model") or made(request["model"], store)
    options = {
        name: given.get(name) or (named(request[name], f"--{name}") if request.get(name) else None)
        for name in ("loss", "optimizer", "forward")
    }
    if request.get("kernels"):
        from staticgraph.nn import convert

        model = convert(model, kernels=True)
    optimizer, autocast = options["optimizer"], request.get("autocast")
    is_made = isinstance(optimizer, torch.optim.Optimizer)
    subject = Subject(
        model,
        loss=options["loss"] or mean_square,
        optimizer=optimizer if is_made else None,
        forward=options["forward"],
        autocast=autocast and getattr(torch, autocast),
        clip_norm=request.get("clip_norm"),
        differentiable=request.get("differentiable") or (),
    )
    notes = () if options["loss"] else (STAND_IN,)
    return Candidate(subject, plan, None if is_made else optimizer, notes)


def _plan(request: Mapping[str, Any], store: GraphStore | None) -> BucketPlan:
    if request.get("plan"):
        return BucketPlan.load(request["plan"])
    if store is None:
        raise ValueError("a dry run needs a plan or data: without, no shape is known")
    return plan_buckets(store, batch_size=min(request.get("batch_size", BATCH_SIZE), len(store)))


def mean_square(out: Any, batch: Any) -> Tensor:
    """A loss that needs no target: one value per row."""
    while not isinstance(out, Tensor):
        out = next(iter(out.values() if isinstance(out, Mapping) else out))
    return out.float().square().flatten(1).mean(1) if out.dim() > 1 else out.float().square()


def twin(candidate: Candidate) -> Subject:
    """The subject over fake tensors of the device; must be called inside the fake mode."""
    subject = candidate.subject
    given = subject.optimizer
    memo: dict[int, Any] = {}
    for parameter in subject.model.parameters():
        memo[id(parameter)] = torch.nn.Parameter(_like(parameter), parameter.requires_grad)
    held = [*subject.model.buffers()]
    for state in given.state.values() if given is not None else ():
        held += [value for value in state.values() if isinstance(value, Tensor)]
    memo |= {id(tensor): _like(tensor) for tensor in held}
    model, copied = copy.deepcopy((subject.model, given), memo)
    if copied is None:
        parameters = [p for p in model.parameters() if p.requires_grad]
        make = candidate.make_optimizer or _fused_adam
        copied = make(parameters)
    return replace(subject, model=model, optimizer=copied, check_padding=False)


def _fused_adam(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3, capturable=True, fused=True)


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
