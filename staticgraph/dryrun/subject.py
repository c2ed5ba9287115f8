"""What is dry-run: a model, built by name or unpickled, its loss and optimizer, and a plan.

It is made on the CPU, as anywhere; :func:`twin` is its copy over fake CUDA tensors.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from staticgraph.plans.choose import BucketPlan, plan_buckets
from staticgraph.store.graph_store import GraphStore

STAND_IN = "no loss was given: the mean square of the output stands for it"
BATCH_SIZE = 32


@dataclass
class Subject:
    """A model and how it is trained.

    Attributes:
        loss, forward, differentiable, clip_norm: as the runner takes them.
        optimizer: over the model's parameters, or what makes one of them; fused Adam where None.
        notes: what stands for something that was not given.
    """

    model: torch.nn.Module
    plan: BucketPlan
    loss: Any = None
    optimizer: Any = None
    forward: Any = None
    differentiable: tuple[str, ...] = ()
    clip_norm: float | None = None
    notes: list[str] = field(default_factory=list)


def subject_of(request: Mapping[str, Any]) -> Subject:
    """What a request asks for.

    Args:
        request: ``model`` (``module:build``) or ``pickled`` (a file of :func:`torch.save`),
            ``plan`` (a file), ``data`` (as for :func:`staticgraph.datasets.open`),
            ``batch_size``, ``loss``, ``optimizer``, ``forward`` (``module:name``),
            ``differentiable``, ``clip_norm``, ``kernels``.

    Raises:
        ValueError: a name that leads nowhere, or neither plan nor data.
    """
    given = {}
    if request.get("pickled"):
        given = torch.load(request["pickled"], weights_only=False, map_location="cpu")
    store = None
    if request.get("data"):
        from staticgraph import datasets

        store = datasets.open(request["data"])
    plan = _plan(request, store)
    torch.manual_seed(0)
    model = given.get("model") or built(request["model"], store, "model")
    options = {
        name: given.get(name) or (named(request[name], name) if request.get(name) else None)
        for name in ("loss", "optimizer", "forward")
    }
    if request.get("kernels"):
        from staticgraph.nn import convert

        model = convert(model, kernels=True)
    notes = []
    if options["loss"] is None:
        options["loss"] = mean_square
        notes.append(STAND_IN)
    return Subject(
        model,
        plan,
        **options,
        differentiable=tuple(request.get("differentiable") or ()),
        clip_norm=request.get("clip_norm"),
        notes=notes,
    )


def _plan(request: Mapping[str, Any], store: GraphStore | None) -> BucketPlan:
    if request.get("plan"):
        return BucketPlan.load(request["plan"])
    if store is None:
        raise ValueError("a dry run needs a plan or data: without, no shape is known")
    return plan_buckets(store, batch_size=min(request.get("batch_size", BATCH_SIZE), len(store)))


def built(spec: str, store: GraphStore | None, option: str) -> Any:
    """What ``module:name`` makes; called with the data where it takes an argument."""
    build = named(spec, option)
    parameters = inspect.signature(build).parameters.values()
    needs = any(p.default is p.empty and p.kind <= p.POSITIONAL_OR_KEYWORD for p in parameters)
    if needs and store is None:
        raise ValueError(f"{option} {spec}: it takes the data, and only a plan was given")
    return build(store) if needs else build()


def named(spec: str, option: str) -> Any:
    """What ``module:name`` names; modules of the present folder are found.

    Raises:
        ValueError: nothing.
    """
    module, _, name = spec.partition(":")
    if not name:
        raise ValueError(f"{option} {spec}: expected MODULE:NAME, such as mymodule:build")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ValueError(f"{option} {spec}: there is no module {module!r} here") from None
    except AttributeError:
        raise ValueError(f"{option} {spec}: {module} has nothing called {name!r}") from None


def mean_square(out: Any, batch: Any) -> Tensor:
    """A loss that needs no target: one value a row."""
    while not isinstance(out, Tensor):
        out = next(iter(out.values() if isinstance(out, Mapping) else out))
    return out.float().square().flatten(1).mean(1) if out.dim() > 1 else out.float().square()


def twin(subject: Subject) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Model and optimizer over fake tensors of the device; to be called inside the fake mode."""
    optimizer = subject.optimizer
    given = optimizer if isinstance(optimizer, torch.optim.Optimizer) else None
    memo: dict[int, Any] = {}
    for parameter in subject.model.parameters():
        memo[id(parameter)] = torch.nn.Parameter(_like(parameter), parameter.requires_grad)
    held = [*subject.model.buffers()]
    for state in given.state.values() if given is not None else ():
        held += [value for value in state.values() if isinstance(value, Tensor)]
    memo |= {id(tensor): _like(tensor) for tensor in held}
    model, copied = copy.deepcopy((subject.model, given), memo)
    if copied is not None:
        return model, copied
    parameters = [p for p in model.parameters() if p.requires_grad]
    if callable(optimizer):
        made: Any = optimizer(parameters)
        return model, made
    return model, torch.optim.Adam(parameters, lr=1e-3, capturable=True, fused=True)


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda")
