"""A model as compiled code on disk: one AOTInductor package per bucket, with plan and fields.

Loading it needs neither the model's source nor a compiler. What a folder holds, and what is checked
before it runs, is described in :mod:`staticgraph.runner.export_manifest`; loading, in
:mod:`staticgraph.runner.exported`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from staticgraph.batches.batch.containers import tensors_in
from staticgraph.batches.batch.static_batch import StaticBatch
from staticgraph.batches.slots.slots import SlotLayout
from staticgraph.errors import NotStatic
from staticgraph.files.folder import replacing
from staticgraph.files.versions import STEPS, versions
from staticgraph.internals.inductor import compile_and_package
from staticgraph.plans.plan import BucketPlan
from staticgraph.runner.export_manifest import (
    KIND,
    ExportManifest,
    categories_of,
    check_entries,
    digest_of,
    machine_of,
    package_name,
)
from staticgraph.runner.prediction import require_rows
from staticgraph.runner.trials import trial_batch
from staticgraph.steps.computation.computation import Computation
from staticgraph.steps.computation.model_setup import Subject
from staticgraph.steps.state.training_state import evaluating, untouched
from staticgraph.steps.tracing.obstacles import obstacles
from staticgraph.steps.tracing.trace import tracing_options
from staticgraph.store.graph_columns import GraphColumns
from staticgraph.text.progress import bar


class _Forward(torch.nn.Module):
    """The module that torch exports: the model's parameters, and a function of tensors.

    Everything else in an output is stored in the manifest (:func:`form`): a package would
    return None as one more tensor, and cannot return strings.
    """

    def __init__(self, model: torch.nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self._function = function

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        """Maps the tensors of a batch, in the order of their names, to the output's tensors."""
        return tensors_in(self._function(*tensors))


def export(
    folder: str | Path,
    computation: Computation,
    subject: Subject,
    plan: BucketPlan,
    example: StaticBatch | GraphColumns | None = None,
    *,
    overwrite: bool = False,
    progress: bool = True,
) -> str:
    """Writes the folder; see :meth:`staticgraph.StaticGraphRunner.export`."""
    packages, inputs, shapes = [], [], []
    schema = plan.schema
    assert schema is not None
    device = subject.device.type
    with (
        replacing(folder, KIND, overwrite) as new,
        untouched(subject.model, subject.optimizer),
        evaluating(subject.model),
        bar(range(len(plan.capacities)), desc="exporting", unit="", show=progress) as progress_bar,
    ):
        for bucket in progress_bar:
            layout = SlotLayout(bucket, plan.capacities[bucket], schema, subject.pointers)
            batch = trial_batch(layout, example, subject.device)
            path = new / package_name(bucket)
            shapes.append(_compile(path, computation, subject.model, batch))
            check_entries(path, path.read_bytes())
            packages.append(digest_of(path.read_bytes()))
            inputs.append(tuple(batch.tensors()))
        _require_alike(shapes, subject.model)
        return ExportManifest(
            plan,
            tuple(packages),
            tuple(inputs),
            shapes[0],
            subject.pointers,
            device,
            type(subject.model).__name__,
            versions(STEPS),
            machine_of(device),
            categories=categories_of(subject.model.state_dict(), schema),
        ).save(new)


def _compile(
    path: Path, computation: Computation, model: torch.nn.Module, batch: StaticBatch
) -> Any:
    """Writes one package; returns the form of the output."""
    tensors = tuple(batch.tensors().values())
    function = computation.of_tensors("forward", batch)
    with torch.no_grad(), computation.active():
        out = function(*tensors)
        require_rows(out, computation.levels(out, batch))
    try:
        with torch.no_grad(), computation.active(), tracing_options():
            program = torch.export.export(_Forward(model, function), tensors, strict=False)
    except Exception as error:
        reasons = str(error).splitlines()[0] if str(error) else "no message"
        raise NotStatic(
            f"{type(model).__name__} cannot be exported in fixed shapes: {type(error).__name__}: "
            f"{reasons}; sg.check(model, plan) names what stands in the way"
        ) from error
    if causes := obstacles(program.graph_module):
        raise NotStatic(
            f"{type(model).__name__} has shapes or numbers that depend on data: {causes[0]}; "
            "sg.check(model, plan) names what stands in the way"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch's, about its own tree specs
        compile_and_package(program, package_path=str(path))
    return form(out)


def _require_alike(forms: list[Any], model: torch.nn.Module) -> None:
    """Refuses an output whose form or plain values differ between buckets."""
    if other := next((form for form in forms if form != forms[0]), None):
        raise NotStatic(
            f"{type(model).__name__} returns {forms[0]} in the first bucket and {other} in another "
            "one, and an export has one answer for all: leave out what depends on the size of a "
            "bucket, with forward=lambda model, batch: ..."
        )


def form(out: Any) -> Any:
    """Describes how tensors are nested in an output, as plain values.

    The values are ``"tensor"``, ``{"dict":
    [[key, form], ...]}``, ``{"tuple": [...]}``, ``{"list": [...]}``, ``{"value": ...}``.

    Raises:
        NotStatic: the output holds a value that no exported model can return.
    """
    if isinstance(out, Tensor):
        return "tensor"
    if type(out) is dict and all(isinstance(key, str | int) for key in out):
        return {"dict": [[key, form(value)] for key, value in out.items()]}
    if type(out) in (tuple, list):
        return {type(out).__name__: [form(value) for value in out]}
    if isinstance(out, bool | int | float | str | None):
        return {"value": out}
    raise NotStatic(
        f"the model returns a {type(out).__name__}, which cannot be exported: return tensors, in "
        "tuples, lists or dicts whose keys are strings, with forward=lambda model, batch: ..."
    )
